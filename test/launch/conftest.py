# SPDX-License-Identifier: Apache-2.0
"""A launch file of the installed package, run by real launch code in its own process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# What `ros2 launch FILE NAME:=VALUE ...` does, without the command-line packages.
DRIVER = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
arguments = [tuple(word.split(":=", 1)) for word in sys.argv[2:]]
service = LaunchService(argv=sys.argv[2:])
source = PythonLaunchDescriptionSource(sys.argv[1])
service.include_launch_description(
    LaunchDescription([IncludeLaunchDescription(source, launch_arguments=arguments)]))
sys.exit(service.run())
"""


@pytest.fixture
def launch(run_process: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """launch("demo.launch.py", model="...") -> Process; prefix: of further packages, or None."""
    from ament_index_python.packages import get_package_share_directory

    folder = Path(get_package_share_directory("oxygen_ros")) / "launch"

    def start(file: str, prefix: Path | None = None, **arguments: str) -> Any:
        words = [f"{name}:={value}" for name, value in arguments.items()]
        env = {"ROS_LOG_DIR": str(tmp_path / "log")}
        if prefix is not None:
            env["AMENT_PREFIX_PATH"] = f"{prefix}:{os.environ['AMENT_PREFIX_PATH']}"
        return run_process([sys.executable, "-c", DRIVER, str(folder / file), *words], env=env)

    return start
