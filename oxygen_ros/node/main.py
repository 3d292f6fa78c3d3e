# SPDX-License-Identifier: Apache-2.0
"""The process `oxygen_node`: signals, executor, exit code.

It ends with 0 and no traceback on SIGINT and SIGTERM in every state, also while it is importing or loading.
It ends with DEVICE_LOST when the device is lost, so that launch starts it again.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Sequence
from typing import Any

from oxygen_ros.processes import Shutdown

# As in sysexits.h: a service is unavailable; the command line is wrong. launch restarts with `respawn`.
DEVICE_LOST = 69
CANNOT_START = 64
USAGE = """usage: oxygen_node --ros-args --params-file ROBOT.yaml [-p NAME:=VALUE ...] [-r FROM:=TO ...]

The lifecycle node `oxygen`: cameras and joints in, action chunks and texts out. Its parameters:"""


def main(args: Sequence[str] | None = None, load: Any = None) -> int:
    """Run the node until it is asked to end. Returns the exit code.

    args: command line, default sys.argv. load: see OxygenNode.
    """
    if {"-h", "--help"} & set(sys.argv[1:] if args is None else args):
        from oxygen_ros.node.parameters import describe_table

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as any program that prints into `head`
        print(f"{USAGE}\n\n{describe_table()}")
        return 0
    shutdown = Shutdown()
    shutdown.watch_signals()
    # All files are local. Libraries that could query a hub read this when they are imported.
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import rclpy
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.signals import SignalHandlerOptions

    try:
        rclpy.init(args=None if args is None else list(args), signal_handler_options=SignalHandlerOptions.NO)
    except Exception as error:
        # A parameter file that is no YAML, or wrong --ros-args; there is no node yet to report it.
        print(f"oxygen_node: cannot start: {error}", file=sys.stderr)
        return CANNOT_START
    # torch, which takes seconds, only when the command line is right.
    from oxygen_ros.models import load_model
    from oxygen_ros.node.oxygen_node import OxygenNode

    node = OxygenNode(lambda reason: shutdown.end(DEVICE_LOST, reason), load or load_model)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    # Its callback does nothing: being ready is what makes `spin_once` return.
    wake = node.create_guard_condition(lambda: None)
    shutdown.call_when_asked(wake.trigger)
    executor.create_task(node.start)
    while not shutdown.is_asked.is_set():
        try:
            executor.spin_once()
        except Exception as error:
            # A failed callback, as for a malformed request, must not end the node.
            node.get_logger().error(f"a callback failed: {type(error).__name__}: {error}")
    node.get_logger().info(f"ending: {shutdown.reason}")
    has_ended = node.stop()
    executor.shutdown(timeout_sec=1.0)
    node.destroy_node()
    rclpy.shutdown()
    if shutdown.exit_code or not has_ended:
        # Threads that wait for a lost device or compute would keep the process alive.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(shutdown.exit_code)
    return shutdown.exit_code
