# SPDX-License-Identifier: Apache-2.0
"""Every kind of bad input stops the chunks, is named with its topic and reason, and is recovered from."""

from __future__ import annotations

import array
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import rclpy
from builtin_interfaces.msg import Time
from node_lab import SENSOR, Robot
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

NAN = float("nan")


@pytest.fixture(scope="module", autouse=True)
def node(start_node: Callable[..., Any], robot: Robot) -> Iterator[Any]:
    process = start_node({"max_age": 0.3, "max_skew": 0.01, "instruction": "wait"})
    robot.wait_for("/oxygen/tick", timeout=60, after=robot.now("/oxygen/tick"))
    return process


def _no_top(camera: str, image: Image) -> Image | None:
    return None if camera == "top" else image


class _Frozen:
    """A driver that goes on, at its rate, with the last picture it has."""

    def __init__(self) -> None:
        self._last: Image | None = None

    def __call__(self, camera: str, image: Image) -> Image:
        if camera == "wrist":
            self._last = self._last or image
            return self._last
        return image


def _unstamped(camera: str, image: Image) -> Image:
    image.header.stamp.sec = image.header.stamp.nanosec = 0
    return image


def _late_wrist(camera: str, image: Image) -> Image:
    """Stamps on two grids of 0.1 s: never nearer than 50 ms, whichever images a busy machine lets through."""
    stamp_ns = image.header.stamp.sec * 10**9 + image.header.stamp.nanosec
    stamp_ns = stamp_ns // 100_000_000 * 100_000_000 - (50_000_000 if camera == "wrist" else 0)
    image.header.stamp.sec, image.header.stamp.nanosec = divmod(stamp_ns, 10**9)
    return image


def _from_the_past(camera: str, image: Image) -> Image:
    image.header.stamp.sec -= 30
    return image


def _from_the_future(camera: str, image: Image) -> Image:
    image.header.stamp.sec += 30
    return image


def _depth(camera: str, image: Image) -> Image:
    if camera == "wrist":
        image.encoding = "32FC1"
    return image


def _torn(camera: str, image: Image) -> Image:
    if camera == "top":
        image.data = array.array("B", image.data[:100])
    return image


@pytest.mark.parametrize(
    ("spoil", "topic", "reason"),
    [
        # message_filters#169: which stream, its rate, its age
        (_no_top, "/camera/top/image_raw", r"stale: .*\(rate [\d.]+ Hz, age [\d.]+ s, \d+ messages"),
        # portal#69, grabette PR#89: by its stamp, for it comes as often as before
        (_Frozen(), "/camera/wrist/image_raw", r"stale: .*\(rate [1-9]\d*\.\d Hz, age [\d.]+ s"),
        (_unstamped, "/camera/top/image_raw", "unstamped"),
        (
            _late_wrist,
            "/camera/wrist/image_raw",
            r"unsynchronized: skew to 'top' is 0\.[1-9]50 s|is 0\.050 s",
        ),
        (_from_the_past, "/camera/top/image_raw", "stale"),
        (_from_the_future, "/camera/wrist/image_raw", "future"),
        (_depth, "/camera/wrist/image_raw", "32FC1"),
        (_torn, "/camera/top/image_raw", "bytes"),
    ],
    ids=["dead", "frozen", "unstamped", "apart", "old", "future", "depth", "torn"],
)
def test_bad_images_are_named_and_recovered_from(
    robot: Robot, spoil: Callable[[str, Image], Image | None], topic: str, reason: str
) -> None:
    with robot.spoiled(image=spoil):
        status = robot.wait_for_status("inputs", topic, level="error")
        assert re.search(f"{topic}: .*{reason}", status.message), status.message
        _assert_no_chunk_comes(robot)
    robot.wait_for_status("inputs", level="ok")
    robot.wait_for("/oxygen/action_chunk", after=robot.now("/oxygen/action_chunk"))


def _without(name: str) -> Callable[[JointState], JointState]:
    def spoil(joints: JointState) -> JointState:
        kept = [index for index, joint in enumerate(joints.name) if joint != name]
        joints.name = [joints.name[index] for index in kept]
        joints.position = array.array("d", [joints.position[index] for index in kept])
        return joints

    return spoil


def _with(name: str, value: float) -> Callable[[JointState], JointState]:
    def spoil(joints: JointState) -> JointState:
        joints.position[joints.name.index(name)] = value
        return joints

    return spoil


def _stampless(joints: JointState) -> JointState:
    joints.header.stamp = Time()
    return joints


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda joints: None, "stale"),
        (_without("joint3"), "joint3"),
        (_with("joint2", NAN), "nan"),
        (_with("joint5", -3.5), "joint5"),
        (_stampless, "unstamped"),
    ],
    ids=["dead", "one missing", "NaN", "out of range", "unstamped"],
)
def test_bad_joints_are_named_and_recovered_from(
    robot: Robot, spoil: Callable[[JointState], JointState | None], words: str
) -> None:
    with robot.spoiled(joints=spoil):
        status = robot.wait_for_status("inputs", "/joint_states", level="error")
        assert words in status.message
        _assert_no_chunk_comes(robot)
    robot.wait_for_status("inputs", level="ok")
    robot.wait_for("/oxygen/action_chunk", after=robot.now("/oxygen/action_chunk"))


def test_nan_in_what_is_not_used_is_ignored(robot: Robot) -> None:
    def spoil(joints: JointState) -> JointState:
        joints.name = ["wheel", *joints.name[::-1]]
        joints.position = array.array("d", [NAN, *joints.position[::-1]])
        joints.velocity = joints.effort = array.array("d", [NAN] * 8)
        return joints

    with robot.spoiled(joints=spoil):
        robot.wait_for_tick(6)
        robot.wait_for_status("inputs", level="ok")


def test_incompatible_qos_is_said_with_both_profiles(robot: Robot) -> None:
    """A best-effort instruction would never be received, without a reason."""
    publisher = robot.node.create_publisher(String, "/oxygen/instruction", SENSOR)
    try:
        status = robot.wait_for_status("inputs", "incompatible QoS")
        assert "/robot offers best_effort volatile" in status.message
        assert "this node requests reliable" in status.message
        assert "/oxygen/instruction" in status.message
    finally:
        robot.node.destroy_publisher(publisher)
    robot.wait_for_status("inputs", level="ok")


def test_another_message_type_is_named_with_the_cure(robot: Robot) -> None:
    context = rclpy.Context()  # another participant: within one, a topic has one type
    rclpy.init(context=context)
    driver = rclpy.create_node("driver", context=context)
    driver.create_publisher(CompressedImage, "/camera/top/image_raw", SENSOR)
    try:
        # A type is discovered before the name of its node.
        status = robot.wait_for_status(
            "inputs", "/driver publishes sensor_msgs/msg/CompressedImage", level="warn"
        )
        assert "this node reads sensor_msgs/msg/Image; set the camera's transport" in status.message
    finally:
        driver.destroy_node()
        rclpy.shutdown(context=context)
    robot.wait_for_status("inputs", level="ok")


def _assert_no_chunk_comes(robot: Robot) -> None:
    """Two diagnostics later (the sentinel) no chunk has come."""
    before = robot.now("/oxygen/action_chunk")
    for _ in range(2):
        robot.wait_for_status("control", "no chunk", level="warn")
    assert robot.now("/oxygen/action_chunk") == before
