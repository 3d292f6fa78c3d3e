# SPDX-License-Identifier: Apache-2.0
"""The launch files with real launch code: described arguments, the right processes, respawn, a clean end.

`launch_ros` is no registry package: where it does not import, every test here says so and is skipped.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("launch_ros") is None:
    pytest.skip(
        "LAUNCH FILES NOT TESTED: launch_ros does not import here (registry wheels of ROS 2 have none); "
        "run the suite on a sourced ROS 2 distribution",
        allow_module_level=True,
    )

from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument
from launch.launch_description_sources import get_launch_description_from_python_launch_file

from launch import LaunchContext

SHARE = Path(get_package_share_directory("oxygen_ros"))
LAUNCHED = re.compile(r"\[INFO\] \[(oxygen_node|oxygen_sim)-\d+\]: process started with pid \[(\d+)\]")

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
    """Starts a launch file of the installed package: launch("demo.launch.py", model="...")."""

    def start(file: str, **arguments: str) -> Any:
        words = [f"{name}:={value}" for name, value in arguments.items()]
        command = [sys.executable, "-c", DRIVER, str(SHARE / "launch" / file), *words]
        return run_process(command, env={"ROS_LOG_DIR": str(tmp_path / "log")})

    return start


def pids(process: Any, executable: str) -> list[int]:
    """Process ids that launch reported for an executable, oldest first."""
    return [int(pid) for name, pid in LAUNCHED.findall(process.output) if name == executable]


def declared(file: str) -> dict[str, DeclareLaunchArgument]:
    description = get_launch_description_from_python_launch_file(str(SHARE / "launch" / file))
    return {argument.name: argument for argument in description.get_launch_arguments()}


@pytest.mark.parametrize("file", ["oxygen.launch.py", "demo.launch.py"])
def test_every_argument_is_described(file: str) -> None:
    arguments = declared(file)
    assert arguments
    for name, argument in arguments.items():
        assert len(argument.description) > 20, f"{file}: {name} has no description"


def test_oxygen_has_the_arguments_of_the_manual() -> None:
    wanted = {"model", "robot", "namespace", "autostart", "use_sim_time", "respawn", "log_level"}
    assert set(declared("oxygen.launch.py")) == wanted


def test_robot_has_no_default_that_hides_a_missing_file() -> None:
    arguments = declared("oxygen.launch.py")
    assert arguments["robot"].default_value is None
    with pytest.raises(RuntimeError, match="robot"):
        arguments["robot"].visit(LaunchContext())


def test_parameter_files_of_the_demo_are_installed() -> None:
    for name in ("sim.yaml", "demo.yaml"):
        assert (SHARE / "config" / name).is_file()


def test_demo_runs_both_processes_and_ends_cleanly(launch: Callable[..., Any]) -> None:
    process = launch("demo.launch.py")
    process.wait_for_line(r"oxygen_sim-\d+\]: process started")
    process.wait_for_line(r"oxygen_node-\d+\]: process started")
    process.wait_for_line(r"\[oxygen_node-\d+\].*\bactive\b", timeout=90)
    output = process.stop(signal.SIGINT, timeout=40, group=True)
    for name in ("oxygen_sim", "oxygen_node"):
        assert re.search(rf"\[{name}-\d+\]: process has finished cleanly", output), output


def test_node_is_started_again_when_it_dies(launch: Callable[..., Any]) -> None:
    process = launch("oxygen.launch.py", robot=str(SHARE / "config" / "demo.yaml"), autostart="false")
    process.wait_for_line(r"oxygen_node-1\]: process started")
    (first,) = pids(process, "oxygen_node")
    os.kill(first, signal.SIGKILL)
    process.wait_for_line(r"process has died")
    # Its own words: `launch` itself stumbles over a Ctrl-C in the instant it starts a process.
    process.wait_for_line(r"^\[oxygen_node-1\] ", after=r"process has died")
    process.stop(signal.SIGINT, timeout=40, group=True)
    assert len(pids(process, "oxygen_node")) == 2


def test_without_respawn_launch_ends_with_the_node(launch: Callable[..., Any]) -> None:
    robot = str(SHARE / "config" / "demo.yaml")
    process = launch("oxygen.launch.py", robot=robot, autostart="false", respawn="false")
    process.wait_for_line(r"oxygen_node-1\]: process started")
    (first,) = pids(process, "oxygen_node")
    os.kill(first, signal.SIGKILL)
    process.wait_for_line(r"process has died")
    process.wait(timeout=20)
    assert len(pids(process, "oxygen_node")) == 1
