# SPDX-License-Identifier: Apache-2.0
"""Sizes of the demo robot and its table: written down once, read by the scene, the kinematics, the expert.

World frame: origin under the arm's base on the table top, x away from the
base over the table, y to the left, z up (REP-103). SI units.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

JOINTS: Final = ("joint1", "joint2", "joint3", "joint4", "joint5", "joint6", "gripper")
"""The seven commanded joints. `gripper` is the distance between the finger pads [m]; 0 = closed."""

PHYSICS_STEP: Final = 0.002
"""Seconds of one physics step."""
CONTROL_PERIOD: Final = 0.01
"""Seconds between two joint targets; a whole number of physics steps."""

# --- the arm: yaw, pitch, pitch, roll, pitch, roll; upright when every joint is zero
SHOULDER_HEIGHT: Final = 0.20
UPPER_ARM: Final = 0.25
FOREARM: Final = 0.25
HAND: Final = 0.155
"""From the wrist's axis (joint5) to the point between the finger pads (the TCP)."""

JOINT_LOWER: Final = np.array([-2.6, -1.9, -0.2, -2.9, -2.2, -3.1, 0.0])
JOINT_UPPER: Final = np.array([2.6, 1.9, 2.75, 2.9, 2.2, 3.1, 0.075])
JOINT_SPEED: Final = np.array([2.0, 2.0, 2.5, 3.0, 3.0, 3.5, 0.25])
"""Largest speeds the expert asks for [rad/s], [m/s]."""
OPEN: Final = 0.068
CLOSED: Final = 0.0

# --- the finger pads and their surroundings, for clearances
FINGER_THICKNESS: Final = 0.010
FINGER_WIDTH: Final = 0.023
FINGER_BELOW_TCP: Final = 0.012

# --- the blocks
COLORS: Final = ("red", "green", "blue")
BLOCK: Final = 0.04
"""Edge of a block."""
MAX_BLOCKS: Final = 6

# --- the mat the blocks lie on (25 cm x 20 cm) and the box beside it
MAT_CENTER: Final = (0.335, -0.03)
MAT_SIZE: Final = (0.20, 0.25)
BOX_CENTER: Final = (0.300, 0.225)
BOX_OUTER: Final = 0.16
BOX_HEIGHT: Final = 0.12
BOX_WALL: Final = 0.005
HOLE: Final = 0.11
"""Edge of the square hole in the roof. A black slit curtain hides the inside and lets blocks through."""
CURTAIN_DEPTH: Final = 0.012
"""How far below the roof's upper face the curtain hangs."""

# --- heights of the TCP
GRASP_HEIGHT: Final = BLOCK / 2
TRANSIT_HEIGHT: Final = 0.185
"""High enough to carry a block over the box and an empty hand over anything."""

REST_POSE: Final = (0.235, -0.03, 0.235, 0.0)
"""TCP x, y, z [m] and yaw [rad] at rest: above the near edge of the mat."""


def clip_joints(positions: NDArray[np.float64]) -> NDArray[np.float64]:
    """Joint positions [7] moved to the nearest ones inside the joints' ranges."""
    return np.clip(positions, JOINT_LOWER, JOINT_UPPER)
