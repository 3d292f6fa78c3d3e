# SPDX-License-Identifier: Apache-2.0
"""The launch files with real launch code: described arguments, the right processes, respawn, a clean end.

`launch_ros` is no registry package: where it does not import, every test here is skipped with that reason.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("launch_ros") is None:
    pytest.skip(
        "LAUNCH FILES NOT TESTED: launch_ros does not import here (registry wheels of ROS 2 have none); "
        "run the suite on a sourced ROS 2 distribution",
        allow_module_level=True,
    )

import rclpy
import rclpy.executors
from ament_index_python.packages import get_package_share_directory
from launch.actions import DeclareLaunchArgument
from launch.launch_description_sources import get_launch_description_from_python_launch_file
from lifecycle_msgs.srv import GetState
from rcl_interfaces.srv import GetParameters
from rclpy.node import Node

from launch import LaunchContext
from oxygen_ros.msg import ActionChunk

SHARE = Path(get_package_share_directory("oxygen_ros"))
LAUNCHED = re.compile(r"\[INFO\] \[(oxygen_node|oxygen_sim)-\d+\]: process started with pid \[(\d+)\]")


@pytest.fixture
def observer() -> Iterator[Node]:
    """A node of the test's own in the same domain."""
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node("launch_observer", context=context)
    yield node
    node.destroy_node()
    context.shutdown()


def spin_until(node: Node, true: Callable[[], bool], process: Any, timeout: float = 90.0) -> None:
    """Let `node` receive until `true()`; AssertionError with the launch's output when it does not come."""
    executor = rclpy.executors.SingleThreadedExecutor(context=node.context)
    executor.add_node(node)
    deadline = time.monotonic() + timeout
    while not true():
        assert process.running(), process.output
        assert time.monotonic() < deadline, f"nothing in {timeout} s\n{process.output}"
        executor.spin_once(timeout_sec=0.1)
    executor.shutdown()


def pids(process: Any, executable: str) -> list[int]:
    """Process ids that launch reported for an executable, oldest first."""
    return [int(pid) for name, pid in LAUNCHED.findall(process.output) if name == executable]


def declared(file: str) -> dict[str, DeclareLaunchArgument]:
    description = get_launch_description_from_python_launch_file(str(SHARE / "launch" / file))
    return {argument.name: argument for argument in description.get_launch_arguments()}


@pytest.mark.parametrize("file", ["oxygen.launch.py", "demo.launch.py", "rviz.launch.py"])
def test_every_argument_is_described(file: str) -> None:
    arguments = declared(file)
    assert arguments
    for name, argument in arguments.items():
        assert len(argument.description) > 20, f"{file}: {name} has no description"


def test_oxygen_has_the_arguments_of_the_manual() -> None:
    wanted = {"model", "robot", "joint_states", "joint_trajectory", "namespace", "autostart", "use_sim_time"}
    wanted |= {"respawn", "log_level", "rviz", "urdf"}
    wanted |= set(declared("rviz.launch.py"))
    assert set(declared("oxygen.launch.py")) == wanted


def test_robot_has_no_default_that_hides_a_missing_file() -> None:
    arguments = declared("oxygen.launch.py")
    assert arguments["robot"].default_value is None
    with pytest.raises(RuntimeError, match="robot"):
        arguments["robot"].visit(LaunchContext())


def test_parameter_files_of_the_demo_are_installed() -> None:
    for name in ("sim.yaml", "demo.yaml"):
        assert (SHARE / "config" / name).is_file()


def test_demo_gives_chunks_and_ends_cleanly(launch: Callable[..., Any], observer: Node) -> None:
    chunks: list[ActionChunk] = []
    observer.create_subscription(ActionChunk, "/oxygen/action_chunk", chunks.append, 1)
    process = launch("demo.launch.py")
    spin_until(observer, lambda: len(chunks) >= 3, process)
    output = process.stop(signal.SIGINT, timeout=40, group=True)
    for name in ("oxygen_sim", "oxygen_node"):
        assert re.search(rf"\[{name}-\d+\]: process has finished cleanly", output), output


def test_arguments_reach_the_node_under_its_namespace(launch: Callable[..., Any], observer: Node) -> None:
    robot = str(SHARE / "config" / "demo.yaml")
    process = launch(
        "oxygen.launch.py",
        robot=robot,
        namespace="left",
        autostart="false",
        model="/none",
        use_sim_time="true",
    )
    names = ["model", "autostart", "use_sim_time"]
    client = observer.create_client(GetParameters, "/left/oxygen/get_parameters")
    spin_until(observer, client.service_is_ready, process)
    answer = client.call_async(GetParameters.Request(names=names))
    spin_until(observer, answer.done, process)
    model, autostart, use_sim_time = answer.result().values
    assert model.string_value == "/none"
    assert autostart.bool_value is False
    assert use_sim_time.bool_value is True
    process.stop(signal.SIGINT, timeout=40, group=True)


def test_node_is_started_again_when_it_dies(launch: Callable[..., Any], observer: Node) -> None:
    process = launch("oxygen.launch.py", robot=str(SHARE / "config" / "demo.yaml"), autostart="false")
    process.wait_for_line(r"oxygen_node-1\]: process started")
    os.kill(pids(process, "oxygen_node")[0], signal.SIGKILL)
    process.wait_for_line(r"oxygen_node-1\]: process started", after=r"process has died")
    # Not before it answers: `launch` itself stumbles over a Ctrl-C in the instant it starts a process.
    client = observer.create_client(GetState, "/oxygen/get_state")
    spin_until(observer, client.service_is_ready, process)
    process.stop(signal.SIGINT, timeout=40, group=True)
    assert len(pids(process, "oxygen_node")) == 2


def test_without_respawn_launch_ends_with_the_node(launch: Callable[..., Any]) -> None:
    robot = str(SHARE / "config" / "demo.yaml")
    process = launch("oxygen.launch.py", robot=robot, autostart="false", respawn="false")
    process.wait_for_line(r"oxygen_node-1\]: process started")
    os.kill(pids(process, "oxygen_node")[0], signal.SIGKILL)
    process.wait_for_line(r"process has died")
    process.wait(timeout=20)
    assert len(pids(process, "oxygen_node")) == 1


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file"), ("oxygen: {period: [0.1}", "expected")]
)
def test_a_robot_file_that_cannot_be_read_is_named(
    launch: Callable[..., Any], tmp_path: Path, content: str | None, reason: str
) -> None:
    """Not a node that asks for parameters it was given in an unreadable file."""
    robot = tmp_path / "robot.yaml"
    if content is not None:
        robot.write_text(content)
    process = launch("oxygen.launch.py", robot=str(robot))
    assert process.wait(timeout=40) != 0
    assert f"robot:={robot} cannot be read as a parameter file" in process.output
    assert reason in process.output
    assert not pids(process, "oxygen_node")


def test_joint_topics_are_where_they_are_told_to_be(launch: Callable[..., Any], observer: Node) -> None:
    process = launch(
        "oxygen.launch.py",
        robot=str(SHARE / "config" / "demo.yaml"),
        joint_states="/robot/joint_states",
        joint_trajectory="/arm_controller/joint_trajectory",
    )
    spin_until(observer, lambda: observer.count_subscribers("/robot/joint_states") > 0, process)
    spin_until(observer, lambda: observer.count_publishers("/arm_controller/joint_trajectory") > 0, process)
    process.stop(signal.SIGINT, timeout=40, group=True)
