# SPDX-License-Identifier: Apache-2.0
"""What replays a recording imports the node's ROS-free half where no ROS is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("control", "device", "layout", "parameters", "preparation", "record", "settings", "trigger")
PROGRAM = """
import importlib, sys

class NoRos:
    def find_spec(self, name, path=None, target=None):
        top = name.partition(".")[0]
        if top in ("rclpy", "ament_index_python", "launch", "cv_bridge") or top.endswith("_msgs"):
            raise ImportError(f"{name} is not here")
        if name.startswith("oxygen_ros.msg"):
            raise ImportError(f"{name} is not here")

sys.meta_path.insert(0, NoRos())
for name in sys.argv[1:]:
    importlib.import_module(f"oxygen_ros.node.{name}")
from oxygen_ros.node.preparation import PreparationError, resolve_folder
try:
    resolve_folder("package://oxygen_ros/resource/demo_model")
except PreparationError as error:
    print(error)
"""


def test_the_ros_free_half_needs_no_ros() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, *MODULES], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "package 'oxygen_ros' is not installed" in done.stdout
