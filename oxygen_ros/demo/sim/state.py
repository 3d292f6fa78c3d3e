# SPDX-License-Identifier: Apache-2.0
"""The simulator's state at one instant, as an immutable value."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim.kinematics import wrap_half_turn


@dataclass(frozen=True, slots=True)
class Block:
    """One block in play.

    color:    "red" | "green" | "blue"
    position:  center (x, y, z) [m] in the world frame
    quaternion: orientation (w, x, y, z)
    in_box:    the center is inside the box, below its roof
    held:      both finger pads touch it
    """

    color: str
    position: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]
    in_box: bool
    held: bool

    @property
    def yaw(self) -> float:
        """Angle [rad] of the block's most level edge about z, modulo a quarter turn, in -pi/4 .. pi/4."""
        w, x, y, z = self.quaternion
        edges = (
            (1 - 2 * (y * y + z * z), 2 * (x * y + w * z)),
            (2 * (x * y - w * z), 1 - 2 * (x * x + z * z)),
            (2 * (x * z + w * y), 2 * (y * z - w * x)),
        )
        along, across = max(edges, key=lambda edge: edge[0] * edge[0] + edge[1] * edge[1])
        return wrap_half_turn(2 * math.atan2(across, along)) / 2


@dataclass(frozen=True, slots=True)
class State:
    """All inputs of the scripted expert. Arrays are read-only.

    time:             [s] since the reset
    positions:        [7] measured joints, in the order of `geometry.JOINTS` [rad], [m]
    velocities:       [7] their rates [rad/s], [m/s]
    targets:          [7] what the joints are commanded to now
    target_rates:     [7] how fast the command moved in the last control period
    blocks:           the blocks in play, always in the same order
    """

    time: float
    positions: NDArray[np.float64]
    velocities: NDArray[np.float64]
    targets: NDArray[np.float64]
    target_rates: NDArray[np.float64]
    blocks: tuple[Block, ...]

    @property
    def held(self) -> int | None:
        """Index of the block between the fingers, or None."""
        return next((i for i, block in enumerate(self.blocks) if block.held), None)

    def count_in_box(self, color: str) -> int:
        """How many blocks of `color` are in the box."""
        return sum(block.in_box and block.color == color for block in self.blocks)
