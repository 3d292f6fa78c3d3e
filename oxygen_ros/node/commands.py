# SPDX-License-Identifier: Apache-2.0
"""Trajectories to the controller, and the hold that stops them.

The node's only lock is here. A hold must win against a trajectory being published at that moment: the worker
publishes, and the service's callback latches, under the same lock. It covers one publication, no inference.
"""

from __future__ import annotations

import array
import threading
from collections.abc import Iterable, Sequence

from builtin_interfaces.msg import Duration, Time
from rclpy.node import Node
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from oxygen_ros.node import qos
from oxygen_ros.robot.joining import Trajectory


def to_time(stamp_ns: int) -> Time:
    return Time(sec=stamp_ns // 1_000_000_000, nanosec=stamp_ns % 1_000_000_000)


def to_duration(span_ns: int) -> Duration:
    return Duration(sec=span_ns // 1_000_000_000, nanosec=span_ns % 1_000_000_000)


class Commands:
    """Publisher of ~/joint_trajectory.

    is_held:  whether a hold stands; holds: how many there were, by which the worker notices a short one
    """

    def __init__(self, node: Node) -> None:
        self._lock = threading.Lock()
        self._publisher = node.create_publisher(JointTrajectory, "~/joint_trajectory", qos.NEWEST)
        self.is_enabled = False
        self.is_held = False
        self.holds = 0

    @property
    def may_move(self) -> bool:
        """Whether chunks become trajectories now."""
        return self.is_enabled and not self.is_held

    def send(self, joints: Sequence[str], trajectory: Trajectory) -> None:
        """Publish what is left of a chunk, if moving is allowed. Called by the worker.

        joints: the columns of the trajectory's positions
        """
        message = JointTrajectory(joint_names=list(joints))
        # The time of the observation: the controller splices the new points in by it.
        message.header.stamp = to_time(trajectory.stamp_ns)
        message.points = [
            JointTrajectoryPoint(
                positions=array.array("d", row.tobytes()), time_from_start=to_duration(int(at))
            )
            for at, row in zip(trajectory.offsets, trajectory.positions, strict=True)
        ]
        with self._lock:
            if self.may_move:
                self._publisher.publish(message)

    def hold(self, joints: Sequence[str], newest: Iterable[JointState], now_ns: int, reach_in: float) -> str:
        """Latch: one point at the current position, then nothing until `release`. Called by the executor.

        joints:    the robot's names of the joints commanded
        newest:    joint states, the newest last
        reach_in:  seconds the controller is given for the point

        Returns what was done, for the service's response.
        """
        with self._lock:
            self.is_held = True
            self.holds += 1
            if not self.is_enabled:
                return "held; commands are not enabled, so no point was published"
            position = _find_position(joints, newest)
            missing = [name for name in joints if name not in position]
            if missing or not joints:
                return (
                    f"held; no point was published: position of {', '.join(missing) or 'any joint'} unknown"
                )
            point = JointTrajectoryPoint(time_from_start=to_duration(int(reach_in * 1e9)))
            point.positions = array.array("d", [position[name] for name in joints])
            point.velocities = array.array("d", [0.0] * len(joints))
            message = JointTrajectory(joint_names=list(joints), points=[point])
            message.header.stamp = to_time(now_ns)
            self._publisher.publish(message)
        return "held at the current position"

    def release(self) -> str:
        """Let chunks become trajectories again. Called by the executor."""
        with self._lock:
            was_held, self.is_held = self.is_held, False
        return "released" if was_held else "was not held"


def _find_position(joints: Sequence[str], newest: Iterable[JointState]) -> dict[str, float]:
    """The last finite position of each joint."""
    position: dict[str, float] = {}
    wanted = set(joints)
    for message in reversed(list(newest)):
        for name, value in zip(message.name, message.position, strict=False):
            if name in wanted and name not in position and abs(value) < float("inf"):
                position[name] = value
        if len(position) == len(wanted):
            break
    return position
