# SPDX-License-Identifier: Apache-2.0
"""Room around blocks: grasp directions and places to set a block down.

Plane geometry of the blocks on the mat, for `expert`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

import numpy as np

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.motion import roll_for
from oxygen_ros.demo.sim.state import Block, State

_CLEARANCE: Final = 0.003
"""Room of the fingers to the neighbors of a block [m]."""
_FAR: Final = (g.OPEN + g.FINGER_THICKNESS) / 2 + g.BLOCK * math.sqrt(0.5) + 0.013 + _CLEARANCE
"""Blocks this far [m] from each other are not in each other's way: half a finger's diagonal is 0.013."""
_SPOT: Final = 0.068
"""A free place is at least this far from every block [m]."""


def grasp_roll(state: State, block: Block) -> float:
    """joint6 for the better of two ways to grasp a cube: first room for the fingers, then little turning."""
    x, y, _ = block.position
    options = []
    for yaw in (block.yaw, block.yaw + math.pi / 2):
        roll = roll_for(x, y, yaw)
        turn = abs(roll - float(state.targets[5]))
        options.append((3000.0 * crowding(state, block, yaw) + turn, roll))
    return min(options)[1]


def crowding(state: State, block: Block, yaw: float) -> float:
    """How much [m] the open fingers around `block` lack of `_CLEARANCE` to its neighbors; 0: they fit."""
    reach = (g.OPEN + g.FINGER_THICKNESS) / 2
    finger = (g.FINGER_WIDTH / 2, g.FINGER_THICKNESS / 2)
    lack = 0.0
    for other in state.blocks:
        if other is block or other.in_box or _far(block, other):
            continue
        for side in (-reach, reach):
            dx = other.position[0] - (block.position[0] - side * math.sin(yaw))
            dy = other.position[1] - (block.position[1] + side * math.cos(yaw))
            lack = max(lack, _CLEARANCE - _gap(dx, dy, yaw, finger, other.yaw, (g.BLOCK / 2, g.BLOCK / 2)))
    return lack


def _far(block: Block, other: Block) -> bool:
    return math.dist(block.position[:2], other.position[:2]) > _FAR


def _gap(
    dx: float,
    dy: float,
    yaw1: float,
    half1: tuple[float, float],
    yaw2: float,
    half2: tuple[float, float],
) -> float:
    """Distance [m] between two rectangles along their best separating axis; negative when they overlap.

    (dx, dy) leads from the center of the first to that of the second; a rectangle has half sizes
    (along its x, along its y) and is turned by its yaw.
    """
    cos, sin = abs(math.cos(yaw2 - yaw1)), abs(math.sin(yaw2 - yaw1))
    gaps = []
    for yaw, own, others in ((yaw1, half1, half2), (yaw2, half2, half1)):
        along_x = abs(math.cos(yaw) * dx + math.sin(yaw) * dy)
        along_y = abs(-math.sin(yaw) * dx + math.cos(yaw) * dy)
        gaps.append(along_x - own[0] - cos * others[0] - sin * others[1])
        gaps.append(along_y - own[1] - sin * others[0] - cos * others[1])
    return max(gaps)


def free_places(state: State, held: Block) -> Iterator[tuple[float, float]]:
    """Places on the mat with room for a block; the whole mat when it is full."""
    spots = [
        (g.MAT_CENTER[0] + dx, g.MAT_CENTER[1] + dy)
        for dx in np.linspace(-0.065, 0.065, 4).tolist()
        for dy in np.linspace(-0.090, 0.090, 5).tolist()
    ]
    others = [block.position for block in state.blocks if block is not held and not block.in_box]
    free = [s for s in spots if all(math.hypot(s[0] - o[0], s[1] - o[1]) > _SPOT for o in others)]
    yield from free or spots
