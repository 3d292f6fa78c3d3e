# SPDX-License-Identifier: Apache-2.0
"""oxygen_sim as a real process over DDS: what it publishes, follows and refuses, and how it ends."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

rclpy = pytest.importorskip("rclpy", reason="ROS 2 is not here (no rclpy): the bridge to it is NOT tested")

from builtin_interfaces.msg import Duration, Time  # noqa: E402
from rclpy.node import Node  # noqa: E402
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image, JointState  # noqa: E402
from std_msgs.msg import String  # noqa: E402
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint  # noqa: E402

from oxygen_ros.demo.sim.description import urdf  # noqa: E402
from oxygen_ros.demo.sim.geometry import CONTROL_PERIOD, JOINTS  # noqa: E402
from oxygen_ros.demo.sim.task import Task  # noqa: E402
from oxygen_ros.demo.sim.words import Phase, memory, narration  # noqa: E402
from oxygen_ros.demo.sim.world import rest_joints  # noqa: E402

ROOT = Path(__file__).resolve().parents[3]
PROGRAM = [sys.executable, str(ROOT / "bin" / "oxygen_sim")]
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
QUIET = {f"cameras.{name}.rate": 0 for name in ("top", "wrist", "side")}


class Probe:
    """A node of the test's own that keeps every message with the time it arrived."""

    def __init__(self) -> None:
        self.context = rclpy.Context()
        rclpy.init(context=self.context)
        self.node = Node("probe", context=self.context)
        self.executor = rclpy.executors.SingleThreadedExecutor(context=self.context)
        self.executor.add_node(self.node)
        self.heard: dict[str, list[Any]] = {}
        self.arrived: dict[str, list[int]] = {}

    def listen(self, kind: type, topic: str, qos: Any) -> None:
        self.heard[topic], self.arrived[topic] = [], []

        def keep(message: Any) -> None:
            self.arrived[topic].append(self.now())
            self.heard[topic].append(message)

        self.node.create_subscription(kind, topic, keep, qos)

    def now(self) -> int:
        return int(self.node.get_clock().now().nanoseconds)

    def until(self, done: Callable[[], bool], what: str, timeout: float = 60.0) -> None:
        end = time.monotonic() + timeout
        while not done():
            assert time.monotonic() < end, f"not in {timeout} s: {what}"
            self.executor.spin_once(timeout_sec=0.05)

    def spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.executor.spin_once(timeout_sec=0.02)

    def joints(self) -> np.ndarray:
        """The newest joint positions [7]."""
        before = len(self.heard["joint_states"])
        self.until(lambda: len(self.heard["joint_states"]) > before, "a joint state")
        return np.array(self.heard["joint_states"][-1].position)

    def truth(self) -> dict[str, Any]:
        """The next /sim/state."""
        before = len(self.heard["sim/state"])
        self.until(lambda: len(self.heard["sim/state"]) > before, "a state")
        state: dict[str, Any] = json.loads(self.heard["sim/state"][-1].data)
        return state

    def close(self) -> None:
        self.executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown(context=self.context)


@pytest.fixture
def probe() -> Iterator[Probe]:
    probe = Probe()
    probe.listen(JointState, "joint_states", qos_profile_sensor_data)
    probe.listen(String, "sim/state", 10)
    probe.listen(String, "sim/task", LATCHED)
    yield probe
    probe.close()


def nanoseconds(stamp: Time) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)


def trajectory(
    points: list[tuple[float, np.ndarray]], names: tuple[str, ...] = JOINTS, stamp_ns: int = 0
) -> JointTrajectory:
    message = JointTrajectory(joint_names=list(names))
    message.header.stamp = Time(sec=stamp_ns // 10**9, nanosec=stamp_ns % 10**9)
    for seconds, positions in points:
        whole = int(seconds)
        message.points.append(
            JointTrajectoryPoint(
                positions=[float(p) for p in positions],
                time_from_start=Duration(sec=whole, nanosec=round((seconds - whole) * 1e9)),
            )
        )
    return message


def test_what_it_publishes(run_process: Callable[..., Any], probe: Probe) -> None:
    for name in ("top", "wrist", "side"):
        probe.listen(Image, f"camera/{name}/image_raw", qos_profile_sensor_data)
    probe.listen(CompressedImage, "camera/top/image_raw/compressed", qos_profile_sensor_data)
    probe.listen(String, "robot_description", LATCHED)
    params = {
        "task": "put one green block in the box",
        "cameras.top.compressed": True,
        "image_height": 60,
        "image_width": 80,
        "cameras.top.rate": 10,  # a whole number for a real one is fine
        "cameras.wrist.rate": 10.0,
    }
    started = probe.now()
    process = run_process(PROGRAM, params)
    probe.until(lambda: len(probe.heard["camera/side/image_raw"]) >= 5, "five pictures of the side camera")
    jpeg = probe.heard["camera/top/image_raw/compressed"][-1]
    process.stop(signal.SIGINT)

    for name in ("top", "wrist", "side"):
        topic = f"camera/{name}/image_raw"
        for message, arrived in zip(probe.heard[topic], probe.arrived[topic], strict=True):
            assert (message.height, message.width, message.step) == (60, 80, 240)
            assert message.encoding == "rgb8"
            assert len(message.data) == 60 * 80 * 3
            assert message.header.frame_id == f"camera_{name}_optical_frame"
            assert started <= nanoseconds(message.header.stamp) <= arrived, "stamps are the ROS clock's"
        assert np.frombuffer(probe.heard[topic][-1].data, np.uint8).std() > 20
    stamps = {
        n: [nanoseconds(m.header.stamp) for m in probe.heard[f"camera/{n}/image_raw"]]
        for n in ("top", "wrist")
    }
    assert set(stamps["top"][1:-1]) & set(stamps["wrist"]), "pictures of one instant carry one stamp"
    assert all(a < b for a, b in zip(stamps["top"], stamps["top"][1:], strict=False))

    assert [message.data for message in probe.heard["robot_description"]] == [urdf()]
    assert jpeg.format == "rgb8; jpeg compressed bgr8"
    assert bytes(jpeg.data[:2]) == b"\xff\xd8"

    states = probe.heard["joint_states"]
    assert all(state.name == list(JOINTS) for state in states)
    assert all(len(s.position) == len(s.velocity) == len(s.effort) == 7 for s in states)
    times = [nanoseconds(state.header.stamp) for state in states]
    assert all(a < b for a, b in itertools.pairwise(times))
    assert [message.data for message in probe.heard["sim/task"]] == ["put one green block in the box"]
    truth = json.loads(probe.heard["sim/state"][-1].data)
    inside = truth["blocks_in_box"]
    assert set(inside) == {"red", "green", "blue"}
    assert truth["memory"] == memory(Task("green", 1), inside["green"])
    # How far the arm has come by now depends on the machine.
    assert truth["narration"] in {narration(phase, "green") for phase in Phase}


def test_a_trajectory_moves_the_arm_and_a_refused_one_does_not(
    run_process: Callable[..., Any], probe: Probe
) -> None:
    process = run_process(PROGRAM, {"driver": "commands", **QUIET})
    publisher = probe.node.create_publisher(JointTrajectory, "joint_trajectory", 10)
    probe.until(lambda: publisher.get_subscription_count() == 1, "the simulator's subscription")
    rest = rest_joints()
    np.testing.assert_allclose(probe.joints(), rest, atol=1e-3)

    goal = rest + np.array([0.3, 0.1, 0.0, 0.2, 0.0, -0.4, -0.03])
    publisher.publish(trajectory([(0.2, (rest + goal) / 2), (0.4, goal)]))
    probe.until(lambda: bool(np.abs(probe.joints() - goal).max() < 2e-3), "the arm at the goal")
    probe.spin(0.3)
    np.testing.assert_allclose(probe.joints(), goal, atol=2e-3)
    assert probe.truth()["trajectories_refused"] == 0

    back = trajectory([(0.1, rest)])
    past = trajectory([(0.1, rest)], stamp_ns=probe.now() - 1_000_000_000)
    empty = trajectory([])
    stranger = trajectory([(0.1, rest)], names=(*JOINTS[:6], "elbow"))
    short = trajectory([(0.1, rest[:5])])
    nan = trajectory([(0.1, np.where(np.arange(7) == 2, np.nan, rest))])
    refused = {
        "all 1 points are past": past,
        "it has no points": empty,
        "unknown joint elbow": stranger,
        "point 0 has 5 positions for 7 joint names": short,
        "position 2 of point 0 is nan": nan,
    }
    for number, (reason, message) in enumerate(refused.items(), start=1):
        publisher.publish(message)
        probe.until(lambda n=number: probe.truth()["trajectories_refused"] == n, "the refusal counted")
        assert reason in probe.truth()["last_refusal"]
    np.testing.assert_allclose(probe.joints(), goal, atol=2e-3)
    process.wait_for_line("trajectory refused: all 1 points are past")

    publisher.publish(back)  # the sentinel: a good one still works
    probe.until(lambda: bool(np.abs(probe.joints() - rest).max() < 2e-3), "the arm back at rest")
    process.stop(signal.SIGTERM)


def test_simulated_time_and_episodes(run_process: Callable[..., Any], probe: Probe) -> None:
    probe.listen(Clock, "/clock", qos_profile_sensor_data)
    params = {
        "publish_clock": True,
        "real_time_factor": 3.0,
        "episodes": True,
        "episode_timeout": 2.0,
        "seed": 11,
        **QUIET,
    }
    process = run_process(PROGRAM, params)
    probe.until(lambda: bool(probe.heard["sim/state"]) and probe.truth()["episode"] >= 2, "two new episodes")
    assert probe.truth()["seed"] == 11 + probe.truth()["episode"]
    process.stop(signal.SIGINT)
    clock = [nanoseconds(message.clock) for message in probe.heard["/clock"]]
    assert all(a < b for a, b in itertools.pairwise(clock)), "simulated time goes on over episodes"
    period = round(CONTROL_PERIOD * 1e9)
    assert all(time % period == 0 for time in clock)
    stamps = [nanoseconds(message.header.stamp) for message in probe.heard["joint_states"]]
    assert 0 < stamps[0] < 60_000_000_000, "stamps are simulated time"


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"sed": 3}, r"unknown parameter sed; known are cameras\.side\.compressed"),
        ({"cameras.left.rate": 3.0}, "unknown parameter cameras.left.rate"),
        ({"seed": 1.5}, "parameter seed: 1.5 is not a whole number"),
        ({"publish_clock": "yes"}, "parameter publish_clock: 'yes' is not true or false"),
        ({"cameras.top.rate": "fast"}, "parameter cameras.top.rate: 'fast' is not a number"),
        (
            {"real_time_factor": 0.0},
            r"parameter real_time_factor: 0.0 is out of range; it must be 0\.05 to 20",
        ),
        ({"driver": "model"}, "parameter driver: 'model' is unknown; use expert or commands"),
        ({"task": "juggle"}, "parameter task: instruction 'juggle' is not understood"),
    ],
)
def test_a_bad_parameter_ends_it_with_its_name(
    run_process: Callable[..., Any], params: dict[str, Any], reason: str
) -> None:
    process = run_process(PROGRAM, params)
    assert process.wait() == 1
    process.wait_for_line(reason)
    assert "Traceback" not in process.output


def test_without_graphics_it_ends_with_the_packages_to_install(run_process: Callable[..., Any]) -> None:
    process = run_process(PROGRAM, {}, env={"MUJOCO_GL": "nonsense"})
    assert process.wait() == 1
    process.wait_for_line("MUJOCO_GL='nonsense' is unknown; use one of egl")
    assert "Traceback" not in process.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.8])
def test_a_signal_while_it_starts_ends_it_cleanly(
    run_process: Callable[..., Any], number: signal.Signals, delay: float
) -> None:
    """delay [s]: not for something to happen, but to land in different parts of the start."""
    process = run_process(PROGRAM, {})
    process.wait_until_signals_are_held()
    time.sleep(delay)
    process.stop(number)


def test_config_of_the_demo_is_accepted(run_process: Callable[..., Any]) -> None:
    process = run_process(PROGRAM, ROOT / "config" / "sim.yaml")
    process.wait_for_line("simulating: 'put two red blocks in the box', driver commands, seed 7")
    process.stop()
