# SPDX-License-Identifier: Apache-2.0
"""The ROS node `oxygen_sim`: the simulated robot's topics, in real time. `main` is its executable.

This and `parameters` are the only ROS of demo/sim. Two threads: the main thread spins the executor, whose
callbacks only put trajectories into a queue and answer parameter services; the simulation's thread owns the
world, the trajectory executor, the clockwork and every publisher.

Published (relative names): camera/<name>/image_raw (+ /compressed), joint_states, robot_description, the
task (parameter `task_topic`), sim/state, /clock with `publish_clock`. Read, with driver `commands`:
joint_trajectory.
Positions outside a joint's range are moved to its end, as the actuators do.
"""

from __future__ import annotations

import array
import io
import json
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from numpy.typing import NDArray
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, qos_profile_sensor_data
from rclpy.signals import SignalHandlerOptions
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.demo.sim.description import urdf
from oxygen_ros.demo.sim.expert import act, narrate, remember
from oxygen_ros.demo.sim.geometry import COLORS, CONTROL_PERIOD, JOINTS
from oxygen_ros.demo.sim.pacing import Pacer, Periodic
from oxygen_ros.demo.sim.parameters import BadParameter, SimCameraSettings, SimSettings, declare
from oxygen_ros.demo.sim.render import GraphicsUnavailable
from oxygen_ros.demo.sim.trajectory import TrajectoryExecutor, TrajectoryRefused
from oxygen_ros.demo.sim.world import World, rest_joints
from oxygen_ros.processes import Shutdown

NANOSECONDS: Final = 1_000_000_000
_BURST: Final = 0.25
"""Wall seconds of physics caught up with at most after something slow."""
_STATE_RATE: Final = 2.0
_REPORT_EVERY: Final = 5.0
"""Wall seconds between reports that the machine is too slow."""
_LATCHED: Final = QoSProfile(
    depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)


class SimBridge(Node):
    """The node. `run` is the body of the simulation's thread; everything else here is called from it,
    except the constructor and `_receive` (main thread)."""

    def __init__(self) -> None:
        """Raises BadParameter."""
        super().__init__("oxygen_sim", automatically_declare_parameters_from_overrides=True)
        self.settings: SimSettings = declare(self)
        self._inbox: deque[JointTrajectory] = deque(maxlen=16)
        self._joints = self.create_publisher(JointState, "joint_states", 10)
        self._task = self.create_publisher(String, self.settings.task_topic, _LATCHED)
        self._truth = self.create_publisher(String, "sim/state", 10)
        self._description = self.create_publisher(String, "robot_description", _LATCHED)
        self._clock_out = self.create_publisher(Clock, "/clock", 10) if self.settings.publish_clock else None
        self._cameras = [
            _CameraOutput(self, name, camera)
            for name, camera in self.settings.cameras.items()
            if camera.rate > 0.0
        ]
        if self.settings.driver == "commands":
            self.create_subscription(JointTrajectory, "joint_trajectory", self._receive, 10)
        self._steps = 0
        self._episode = 0
        self._refused = 0
        self._refusal = ""
        self._done_since: float | None = None

    def run(self, stop: threading.Event) -> None:
        """Simulate and publish until `stop`. Raises GraphicsUnavailable when no picture can be made."""
        settings = self.settings
        self._world = World(settings.seed, settings.task)
        self._follow = TrajectoryExecutor(JOINTS, rest_joints())
        self._joints_due = Periodic(settings.joint_state_rate)
        self._truth_due = Periodic(_STATE_RATE)
        pacer = Pacer(CONTROL_PERIOD, settings.real_time_factor, _BURST)
        try:
            for camera in self._cameras:  # make the graphics contexts before time starts
                self._world.render(camera.name, settings.image_height, settings.image_width)
            self._description.publish(String(data=urdf()))
            self._task.publish(String(data=settings.task.instruction))
            self.get_logger().info(
                f"simulating: '{settings.task.instruction}', driver {settings.driver}, seed {settings.seed}"
            )
            reported, lost = time.monotonic(), 0.0
            while not stop.is_set():
                for _ in range(pacer.owed(time.monotonic())):
                    self._step()
                self._publish_pictures()
                now = time.monotonic()
                if now - reported >= _REPORT_EVERY:
                    if pacer.lost > lost:
                        self.get_logger().warning(
                            f"this machine is too slow: {pacer.lost - lost:.2f} s of the last "
                            f"{now - reported:.1f} s were lost; lower cameras.<name>.rate or real_time_factor"
                        )
                    reported, lost = now, pacer.lost
                stop.wait(pacer.wait(now))
        finally:
            self._world.close()

    # --- main thread ----------------------------------------------------------------------------

    def _receive(self, message: JointTrajectory) -> None:
        self._inbox.append(message)

    # --- the simulation's thread ----------------------------------------------------------------

    def _now(self) -> int:
        """Nanoseconds: simulated time with `publish_clock` (it goes on over episodes), else the ROS clock."""
        if self.settings.publish_clock:
            return round(self._steps * CONTROL_PERIOD * 1e9)
        return int(self.get_clock().now().nanoseconds)

    def _step(self) -> None:
        while self._inbox:
            self._take(self._inbox.popleft())
        if self.settings.driver == "expert":
            targets = act(self._world.state(), self.settings.task)
        else:
            targets = self._follow.target(self._now())
        self._world.step(targets)
        self._steps += 1
        elapsed = self._steps * CONTROL_PERIOD
        if self._clock_out is not None:
            self._clock_out.publish(Clock(clock=to_time(self._now())))
        if self._joints_due.due(elapsed):
            world = self._world
            self._joints.publish(
                joint_state(
                    JOINTS,
                    world.joint_positions(),
                    world.joint_velocities(),
                    world.joint_efforts(),
                    self._now(),
                )
            )
        if self._truth_due.due(elapsed):
            self._tell_truth()

    def _take(self, message: JointTrajectory) -> None:
        try:
            stamp, times, positions = trajectory_arrays(message)
            self._follow.accept(message.joint_names, stamp, times, positions, self._now())
        except TrajectoryRefused as reason:
            self._refused += 1
            self._refusal = str(reason)
            self.get_logger().warning(
                f"trajectory refused: {reason} ({self._refused} refused so far)", throttle_duration_sec=1.0
            )

    def _publish_pictures(self) -> None:
        """Every camera that is due, all of the same instant: they carry one stamp."""
        elapsed = self._steps * CONTROL_PERIOD
        stamp = self._now()
        for camera in self._cameras:
            if camera.due.due(elapsed):
                camera.publish(self._world, stamp)

    def _tell_truth(self) -> None:
        """Publish the simulator's state, and make a new layout when the episode is over."""
        state, settings = self._world.state(), self.settings
        inside = {color: state.count_in_box(color) for color in COLORS}
        truth = {
            "episode": self._episode,
            "seed": self._world.seed,
            "time": round(state.time, 3),
            "task": settings.task.instruction,
            "driver": settings.driver,
            "blocks_in_box": inside,
            "narration": narrate(state, settings.task),
            "memory": remember(state, settings.task),
            "trajectories_refused": self._refused,
            "last_refusal": self._refusal,
            "pictures_dropped": {camera.name: camera.due.missed for camera in self._cameras},
        }
        self._truth.publish(String(data=json.dumps(truth)))
        if inside[settings.task.color] < settings.task.count:
            self._done_since = None
        elif self._done_since is None:
            self._done_since = state.time
        paused = self._done_since is not None and state.time - self._done_since >= settings.episode_pause
        late = 0.0 < settings.episode_timeout <= state.time
        if settings.episodes and (paused or late):
            self._episode += 1
            self._done_since = None
            self._world.reset(self._world.seed + 1)
            self._follow.hold(rest_joints())
            self._task.publish(String(data=settings.task.instruction))
            self.get_logger().info(f"episode {self._episode}: seed {self._world.seed}")


class _CameraOutput:
    """One camera's publishers and its rate."""

    def __init__(self, node: SimBridge, name: str, camera: SimCameraSettings) -> None:
        settings = node.settings
        self.name = name
        self.due = Periodic(camera.rate)
        self._frame = f"camera_{name}_optical_frame"
        self._size = (settings.image_height, settings.image_width)
        self._quality = settings.jpeg_quality
        self._message = ImageMessage(*self._size, self._frame)
        topic = f"camera/{name}/image_raw"
        self._raw = node.create_publisher(Image, topic, qos_profile_sensor_data) if camera.raw else None
        self._jpeg = (
            node.create_publisher(CompressedImage, f"{topic}/compressed", qos_profile_sensor_data)
            if camera.compressed
            else None
        )

    def publish(self, world: World, stamp_ns: int) -> None:
        picture = world.render(self.name, *self._size)
        if self._raw is not None:
            self._raw.publish(self._message.fill(picture, stamp_ns))
        if self._jpeg is not None:
            self._jpeg.publish(compress(picture, stamp_ns, self._frame, self._quality))


def to_time(stamp_ns: int) -> Time:
    """A ROS time from nanoseconds."""
    return Time(sec=stamp_ns // NANOSECONDS, nanosec=stamp_ns % NANOSECONDS)


def to_nanoseconds(time: Time) -> int:
    """Nanoseconds of a ROS time or duration."""
    return int(time.sec) * NANOSECONDS + int(time.nanosec)


class ImageMessage:
    """One sensor_msgs/Image (rgb8), refilled for every picture of one camera."""

    def __init__(self, height: int, width: int, frame_id: str) -> None:
        self._message = Image(height=height, width=width, encoding="rgb8", is_bigendian=0, step=3 * width)
        self._message.header.frame_id = frame_id
        self._message.data = array.array("B", bytes(3 * height * width))
        # The message may have copied the array: write to its own one.
        self._pixels: NDArray[np.uint8] = np.frombuffer(self._message.data, np.uint8).reshape(
            height, width, 3
        )

    def fill(self, picture: NDArray[np.uint8], stamp_ns: int) -> Image:
        """The message with `picture` uint8 [H, W, 3]; valid until the next call."""
        self._pixels[:] = picture
        self._message.header.stamp = to_time(stamp_ns)
        return self._message


def compress(picture: NDArray[np.uint8], stamp_ns: int, frame_id: str, quality: int) -> CompressedImage:
    """A sensor_msgs/CompressedImage (JPEG) of `picture` uint8 [H, W, 3], labeled as image_transport does.

    Raises RuntimeError that names the package when Pillow is not installed.
    """
    try:
        from PIL import Image as Pillow
    except ImportError as error:
        raise RuntimeError(
            f"compressed pictures need Pillow (pip install pillow, or python3-pil): {error}"
        ) from error
    stream = io.BytesIO()
    Pillow.fromarray(picture).save(stream, "JPEG", quality=quality)
    message = CompressedImage(format="rgb8; jpeg compressed bgr8")
    message.header.frame_id = frame_id
    message.header.stamp = to_time(stamp_ns)
    message.data = array.array("B", stream.getvalue())
    return message


def joint_state(
    names: Sequence[str],
    positions: NDArray[np.float64],
    velocities: NDArray[np.float64],
    efforts: NDArray[np.float64],
    stamp_ns: int,
) -> JointState:
    """A sensor_msgs/JointState; all arrays [J] in the order of `names`."""
    message = JointState(name=list(names))
    message.header.stamp = to_time(stamp_ns)
    message.position = array.array("d", positions)
    message.velocity = array.array("d", velocities)
    message.effort = array.array("d", efforts)
    return message


def trajectory_arrays(message: JointTrajectory) -> tuple[int, NDArray[np.int64], NDArray[np.float64]]:
    """Stamp [ns], times [N] (ns since it) and positions [N, J] of a message.

    Raises TrajectoryRefused when a point does not have one position for each name.
    """
    joints = len(message.joint_names)
    for number, point in enumerate(message.points):
        if len(point.positions) != joints:
            raise TrajectoryRefused(
                f"point {number} has {len(point.positions)} positions for {joints} joint names"
            )
    times = np.array([to_nanoseconds(point.time_from_start) for point in message.points], np.int64)
    positions = np.array([point.positions for point in message.points], np.float64).reshape(
        len(times), joints
    )
    return to_nanoseconds(message.header.stamp), times, positions


USAGE = """usage: oxygen_sim [--ros-args --params-file sim.yaml -p NAME:=VALUE ...]

The simulated robot: cameras, joint states, a scripted expert or commands by joint_trajectory.
config/sim.yaml lists its parameters with comments; `ros2 param describe /oxygen_sim NAME` explains each."""


def main(shutdown: Shutdown, args: Sequence[str] | None = None) -> int:
    """Run the node until it is asked to end; returns the exit status (1: a parameter or graphics error).

    shutdown: is watching signals already
    """
    if {"-h", "--help"} & set(sys.argv[1:] if args is None else args):
        print(USAGE)
        return 0
    shutdown.call_when_asked()
    rclpy.init(args=None if args is None else list(args), signal_handler_options=SignalHandlerOptions.NO)
    try:
        return _spin(shutdown)
    finally:
        rclpy.try_shutdown()


def _spin(shutdown: Shutdown) -> int:
    try:
        node = SimBridge()
    except BadParameter as error:
        rclpy.logging.get_logger("oxygen_sim").fatal(str(error))
        return 1
    failures: list[Exception] = []

    def simulate() -> None:
        try:
            node.run(shutdown.is_asked)
        except Exception as error:  # handed to the main thread, which reports it
            failures.append(error)
            shutdown.end(1, "the simulation failed")

    thread = threading.Thread(target=simulate, name="simulation")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    thread.start()
    try:
        while not shutdown.is_asked.is_set():
            executor.spin_once(timeout_sec=0.1)
    finally:
        shutdown.is_asked.set()
        thread.join()
        executor.shutdown()
        node.destroy_node()
    for failure in failures:
        if not isinstance(failure, GraphicsUnavailable | RuntimeError):
            raise failure
        rclpy.logging.get_logger("oxygen_sim").fatal(str(failure))
    return 1 if failures else 0
