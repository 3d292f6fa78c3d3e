# SPDX-License-Identifier: Apache-2.0
"""The process `oxygen_node`: signals, executor, exit code.

Here lives how it ends: 0 without a traceback on SIGINT and SIGTERM, in every state, also while it is
importing or loading; non-zero when the device is lost, so that launch starts it again. Signals are blocked in
all threads and waited for in one of their own, so that none ever interrupts a computation or a callback.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

SIGNALS = {signal.SIGINT, signal.SIGTERM}
# As in sysexits.h: a service is unavailable; the command line is wrong. launch restarts with `respawn`.
DEVICE_LOST = 69
CANNOT_START = 64
USAGE = """usage: oxygen_node --ros-args --params-file ROBOT.yaml [-p NAME:=VALUE ...] [-r FROM:=TO ...]

The lifecycle node `oxygen`: cameras and joints in, action chunks and texts out. Its parameters:"""


class Ending:
    """When and how the process is to end."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.exit_code = 0
        self.reason = ""
        self._notify: Callable[[], None] | None = None

    def watch_signals(self) -> None:
        """Block the signals and wait for them in a thread. To be called before other threads are made."""
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=self._wait_for_signal, name="signals", daemon=True).start()

    def call_when_asked(self, notify: Callable[[], None]) -> None:
        """notify: from now on ends the process's main loop; before, there is nothing to end in order."""
        self._notify = notify
        if self.is_asked.is_set():
            notify()

    def end(self, exit_code: int, reason: str) -> None:
        self.exit_code = exit_code
        self.reason = reason
        self.is_asked.set()
        if self._notify is not None:
            self._notify()

    def _wait_for_signal(self) -> None:
        number = signal.sigwait(SIGNALS)
        if self._notify is None:
            # Still importing: nothing is open yet.
            os._exit(0)
        self.end(0, signal.Signals(number).name)


def main(args: Sequence[str] | None = None, load: Any = None) -> int:
    """Run the node until it is asked to end. Returns the exit code.

    args: command line, default sys.argv. load: see OxygenNode.
    """
    if {"-h", "--help"} & set(sys.argv[1:] if args is None else args):
        from oxygen_ros.node.parameters import describe_table

        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as any program that prints into `head`
        print(f"{USAGE}\n\n{describe_table()}")
        return 0
    ending = Ending()
    ending.watch_signals()
    # Everything is a local file; libraries that could ask a hub look at this when they are imported.
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

    node = OxygenNode(lambda reason: ending.end(DEVICE_LOST, reason), load or load_model)
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    # Its callback does nothing: being ready is what makes `spin_once` return.
    wake = node.create_guard_condition(lambda: None)
    ending.call_when_asked(wake.trigger)
    executor.create_task(node.start)
    while not ending.is_asked.is_set():
        try:
            executor.spin_once()
        except Exception as error:
            # A callback failed. The robot must not lose its node over, say, a malformed request.
            node.get_logger().error(f"a callback failed: {type(error).__name__}: {error}")
    node.get_logger().info(f"ending: {ending.reason}")
    has_ended = node.stop()
    executor.shutdown(timeout_sec=1.0)
    node.destroy_node()
    rclpy.shutdown()
    if ending.exit_code or not has_ended:
        # Threads that wait for a lost device, or are deep inside a computation, would keep the process.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ending.exit_code)
    return ending.exit_code
