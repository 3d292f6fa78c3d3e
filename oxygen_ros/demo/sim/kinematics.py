# SPDX-License-Identifier: Apache-2.0
"""Joints to gripper pose and back, for our own arm with its gripper pointing straight down.

The world frame and the link lengths are those of `geometry`. The inverse is
closed-form (two links in the vertical plane of joint1: the law of cosines), elbow up, joint4 = 0.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim.geometry import (
    FOREARM,
    HAND,
    JOINT_LOWER,
    JOINT_UPPER,
    JOINTS,
    SHOULDER_HEIGHT,
    UPPER_ARM,
)


class Unreachable(ValueError):
    """The arm cannot bring its vertical gripper to the pose; the message gives the pose and the reason."""


@dataclass(frozen=True, slots=True)
class Pose:
    """The point between the finger pads, gripper vertical.

    x, y, z:  [m] in the world frame
    yaw:      [rad] about z, from the y axis to the line the fingers move along
    """

    x: float
    y: float
    z: float
    yaw: float


def inverse(pose: Pose) -> NDArray[np.float64]:
    """Arm joints [6] that bring the vertical gripper to `pose`.

    The yaw is taken modulo pi, which is the same for a two-finger gripper, so that joint6 stays
    within half a turn of zero. Raises `Unreachable` outside the workspace or the joints' ranges.
    """
    radius = math.hypot(pose.x, pose.y)
    height = pose.z + HAND - SHOULDER_HEIGHT
    distance = math.hypot(radius, height)
    if not abs(UPPER_ARM - FOREARM) < distance < UPPER_ARM + FOREARM:
        raise Unreachable(
            f"{pose}: the wrist would be {distance:.3f} m from the shoulder; the arm reaches "
            f"{UPPER_ARM + FOREARM:.3f} m"
        )
    inner = (UPPER_ARM**2 + FOREARM**2 - distance**2) / (2 * UPPER_ARM * FOREARM)
    elbow = math.pi - math.acos(inner)
    lift = (UPPER_ARM**2 + distance**2 - FOREARM**2) / (2 * UPPER_ARM * distance)
    shoulder = math.atan2(radius, height) - math.acos(lift)
    base = math.atan2(pose.y, pose.x)
    roll = wrap_half_turn(base - pose.yaw)
    joints = np.array([base, shoulder, elbow, 0.0, math.pi - shoulder - elbow, roll])
    outside = (joints < JOINT_LOWER[:6]) | (joints > JOINT_UPPER[:6])
    if outside.any():
        worst = int(np.flatnonzero(outside)[0])
        raise Unreachable(
            f"{pose}: {JOINTS[worst]} would be {joints[worst]:.3f} rad; its range is "
            f"{JOINT_LOWER[worst]:.2f}..{JOINT_UPPER[worst]:.2f}"
        )
    return joints


def forward(joints: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """TCP position [3] and rotation [3, 3] in the world frame of arm joints [6] (more are ignored).

    The rotation's columns are the hand's axes: z points out of the gripper, the fingers move along y.
    """
    base, shoulder, elbow, forearm_roll, wrist, roll = (float(q) for q in joints[:6])
    turn = _about_z(base) @ _about_y(shoulder)
    position = np.array([0.0, 0.0, SHOULDER_HEIGHT]) + turn[:, 2] * UPPER_ARM
    turn = turn @ _about_y(elbow)
    position = position + turn[:, 2] * FOREARM
    turn = turn @ _about_z(forearm_roll) @ _about_y(wrist)
    position = position + turn[:, 2] * HAND
    return position, turn @ _about_z(roll)


def gripper_pose(joints: NDArray[np.float64]) -> Pose:
    """`Pose` of arm joints [6] (more are ignored); of a tilted gripper, the yaw of its horizontal part."""
    position, turn = forward(joints)
    yaw = math.atan2(-turn[0, 1], turn[1, 1])
    return Pose(float(position[0]), float(position[1]), float(position[2]), wrap_half_turn(yaw))


def tilt(joints: NDArray[np.float64]) -> float:
    """Angle [rad] between the gripper's axis and straight down, of arm joints [6]."""
    _, turn = forward(joints)
    return math.acos(min(1.0, max(-1.0, -float(turn[2, 2]))))


def wrap_half_turn(angle: float) -> float:
    """The angle modulo pi, in -pi/2 .. pi/2."""
    return angle - math.pi * round(angle / math.pi)


def _about_z(angle: float) -> NDArray[np.float64]:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])


def _about_y(angle: float) -> NDArray[np.float64]:
    c, s = math.cos(angle), math.sin(angle)
    return np.array([[c, 0.0, s], [0.0, 1.0, 0.0], [-s, 0.0, c]])
