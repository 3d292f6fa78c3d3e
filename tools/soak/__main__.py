# SPDX-License-Identifier: Apache-2.0
"""`python -m soak run` and `python -m soak stress`, with PYTHONPATH=tools; `make soak` and `make stress`."""

import importlib
import os
import sys

from oxygen_ros.processes import Shutdown

PROGRAMS = ("run", "stress")

if len(sys.argv) < 2 or sys.argv[1] not in PROGRAMS:
    sys.exit(f"usage: python -m soak {{{','.join(PROGRAMS)}}} [-h] ...")
# Before rclpy and numpy are imported, which start threads.
shutdown = Shutdown()
shutdown.watch_signals()
# Messages stay on this machine.
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")
sys.exit(importlib.import_module(f"soak.{sys.argv[1]}").main(shutdown, sys.argv[2:]))
