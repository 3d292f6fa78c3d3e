# SPDX-License-Identifier: Apache-2.0
"""The scripted expert: what to do next, as a pure function of the simulator's state.

Here lives the choice of the goal; how to get there is `motion`, how to say it is `words`. Nothing is
remembered between calls: how far the work is follows from where the gripper and the blocks are, so
a block that slips, is pushed or is taken out of the box is simply dealt with next.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.sim import geometry as g
from oxygen_ros.sim import words
from oxygen_ros.sim.kinematics import Pose, Unreachable, forward, gripper_pose, inverse
from oxygen_ros.sim.motion import SPEED, Goal, approach, roll_for
from oxygen_ros.sim.prediction import periods_in, predict
from oxygen_ros.sim.state import Block, State
from oxygen_ros.sim.task import Task
from oxygen_ros.sim.words import Phase

DROP_HEIGHT: Final = 0.152
"""TCP height [m] at which a block is let go: its lower face is just above the roof."""
_DESCENT_SPEED: Final = 0.20
_AT: Final = 0.0015
"""Closer than this [m] counts as being there."""
_ROLL_AT: Final = 0.04
_SLIDE: Final = 0.010
"""On the way down and while closing a block may be this far off across the fingers [m]."""
_WIDE: Final = 0.060
"""The fingers go down only when at least this far apart [m]."""
_NOTHING: Final = g.BLOCK - 0.006
"""Fingers closer than this hold nothing [m]."""

_CLEARANCE: Final = 0.003
"""Room the fingers want to the neighbours of a block [m]."""
_STILL: Final = 0.005
"""Slower than this [m/s] the fingers are pushing against something."""
_SPOT: Final = 0.068
"""A free place is at least this far from every block [m]."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What to do now: the phase, the colour it is about, and where to go."""

    phase: Phase
    colour: str
    goal: Goal


def act(state: State, task: Task) -> NDArray[np.float64]:
    """Joint targets [7] for the next control period."""
    return approach(state, decide(state, task).goal)


def plan(state: State, task: Task, horizon: int, step: float) -> NDArray[np.float64]:
    """The next `horizon` joint targets [horizon, 7], `step` seconds apart, the first one `step` from now.

    Rolls `prediction` forward under `act`; `step` must be a multiple of the control period.
    """
    periods = periods_in(step)
    rows = []
    for _ in range(horizon):
        for _ in range(periods):
            state = predict(state, act(state, task))
        rows.append(state.targets)
    return np.stack(rows)


def narrate(state: State, task: Task) -> str:
    """What the expert is doing, one sentence of `words`."""
    intent = decide(state, task)
    return words.narration(intent.phase, intent.colour)


def remember(state: State, task: Task) -> str:
    """How much of the task is done, one sentence of `words`; the cameras cannot tell."""
    return words.memory(task, state.count_in_box(task.colour))


def decide(state: State, task: Task) -> Intent:
    """The intent that follows from the state."""
    finished = state.count_in_box(task.colour) >= task.count
    held = state.held
    if held is not None:
        block = state.blocks[held]
        if block.colour == task.colour and not finished:
            return _put_in_box(state, block)
        return _put_back(state, block)
    falling = next((block for block in state.blocks if _falls_into_box(state, block)), None)
    if falling is not None:
        return Intent(Phase.DROP, falling.colour, _stay(state, g.OPEN))
    if finished:
        return Intent(Phase.DONE, task.colour, _rest(state))
    target = _choose(state, task)
    if target is None:
        return Intent(Phase.STUCK, task.colour, _rest(state))
    return _fetch(state, target)


# --- the four things to do ----------------------------------------------------------------------


def _fetch(state: State, block: Block) -> Intent:
    """Get `block` between the fingers and close them."""
    here = gripper_pose(state.targets)
    x, y, z = block.position
    roll = _grasp_roll(state, block)
    opening = float(state.positions[6])
    if _between(state, here, block, roll):
        shut = state.targets[6] <= g.CLOSED and abs(state.velocities[6]) < _STILL
        if opening < _NOTHING or shut:  # closed beside it or on two at once: up and once more
            return Intent(Phase.REACH, block.colour, _above(state, g.OPEN))
        return Intent(Phase.GRASP, block.colour, _stay(state, g.CLOSED))
    off = math.hypot(x - here.x, y - here.y)
    on_way_down = here.z < g.TRANSIT_HEIGHT - _AT and off < _SLIDE and here.z > z - _AT
    aligned = off < _AT and abs(roll - state.targets[5]) < _ROLL_AT
    if (aligned or on_way_down) and opening > _WIDE:
        return Intent(Phase.REACH, block.colour, Goal((x, y, z), roll, g.OPEN, _DESCENT_SPEED))
    if off < _AT and here.z > g.TRANSIT_HEIGHT - _AT:
        return Intent(Phase.REACH, block.colour, Goal((x, y, g.TRANSIT_HEIGHT), roll, g.OPEN))
    return Intent(Phase.REACH, block.colour, _travel(state, here, x, y, roll, g.OPEN))


def _put_in_box(state: State, block: Block) -> Intent:
    here = gripper_pose(state.targets)
    x, y = g.BOX_CENTRE
    roll = float(state.targets[5])
    if math.hypot(x - here.x, y - here.y) > _AT:
        return Intent(Phase.CARRY, block.colour, _travel(state, here, x, y, roll, g.CLOSED))
    measured, _ = forward(state.positions)
    arrived = abs(float(measured[2]) - DROP_HEIGHT) < 0.006 and abs(here.z - DROP_HEIGHT) < _AT
    if arrived or state.targets[6] > g.BLOCK:  # once opening, go on opening
        return Intent(Phase.DROP, block.colour, _stay(state, g.OPEN))
    return Intent(Phase.CARRY, block.colour, Goal((x, y, DROP_HEIGHT), roll, g.CLOSED, _DESCENT_SPEED))


def _put_back(state: State, block: Block) -> Intent:
    """Set down a block that does not belong in the box (any more) at the nearest free place of the mat."""
    here = gripper_pose(state.targets)
    x, y = min(_free_places(state, block), key=lambda place: math.hypot(place[0] - here.x, place[1] - here.y))
    roll = float(state.targets[5])
    low = g.GRASP_HEIGHT + 0.002
    if math.hypot(x - here.x, y - here.y) > _AT:
        goal = _travel(state, here, x, y, roll, g.CLOSED)
    elif here.z - low > _AT:
        goal = Goal((x, y, low), roll, g.CLOSED, _DESCENT_SPEED)
    else:
        goal = _stay(state, g.OPEN)
    return Intent(Phase.RETURN, block.colour, goal)


def _rest(state: State) -> Goal:
    x, y, z, yaw = g.REST_POSE
    here = gripper_pose(state.targets)
    if here.z < g.TRANSIT_HEIGHT - _AT:
        return _above(state, g.OPEN)
    return Goal((x, y, z), roll_for(x, y, yaw), g.OPEN)


# --- pieces of a way ----------------------------------------------------------------------------


def _stay(state: State, opening: float) -> Goal:
    here, _ = forward(state.targets)
    return Goal((float(here[0]), float(here[1]), float(here[2])), float(state.targets[5]), opening)


def _above(state: State, opening: float) -> Goal:
    here, _ = forward(state.targets)
    return Goal((float(here[0]), float(here[1]), g.TRANSIT_HEIGHT), float(state.targets[5]), opening)


def _travel(state: State, here: Pose, x: float, y: float, roll: float, opening: float) -> Goal:
    """Straight up first, then level to above (x, y)."""
    if here.z < g.TRANSIT_HEIGHT - _AT:
        return _above(state, opening)
    return Goal((x, y, g.TRANSIT_HEIGHT), roll, opening, SPEED)


# --- geometry -----------------------------------------------------------------------------------


def _between(state: State, here: Pose, block: Block, roll: float) -> bool:
    """Whether closing the fingers now would catch the block."""
    dx, dy = block.position[0] - here.x, block.position[1] - here.y
    along = -math.sin(here.yaw) * dx + math.cos(here.yaw) * dy
    across = math.cos(here.yaw) * dx + math.sin(here.yaw) * dy
    level = abs(here.z - max(block.position[2], g.GRASP_HEIGHT)) < _AT
    turned = abs(roll - float(state.targets[5])) < 6 * _ROLL_AT
    return level and turned and abs(across) < _SLIDE and abs(along) < (g.OPEN - g.BLOCK) / 2


def _falls_into_box(state: State, block: Block) -> bool:
    """The block is over the hole and not yet in: let go a moment ago, it needs no help."""
    x, y, z = block.position
    over = abs(x - g.BOX_CENTRE[0]) < g.HOLE / 2 and abs(y - g.BOX_CENTRE[1]) < g.HOLE / 2
    here, _ = forward(state.targets)
    close = math.hypot(x - float(here[0]), y - float(here[1])) < g.HOLE / 2
    return over and close and not block.in_box and z > g.BOX_HEIGHT / 2


def _choose(state: State, task: Task) -> Block | None:
    """The nearest block of the task's colour outside the box; nearest stays nearest on the way.

    Blocks the fingers have no room around come last, as if they were further away.
    """
    here = gripper_pose(state.targets)

    def cost(block: Block) -> float:
        crowding = min(_crowding(state, block, block.yaw + turn) for turn in (0.0, math.pi / 2))
        return math.hypot(block.position[0] - here.x, block.position[1] - here.y) + 30.0 * crowding

    outside = [b for b in state.blocks if b.colour == task.colour and not b.in_box and _reachable(b)]
    return min(outside, key=cost, default=None)


def _reachable(block: Block) -> bool:
    x, y, z = block.position
    if not -0.01 < z < g.TRANSIT_HEIGHT - g.BLOCK / 2:
        return False
    try:
        inverse(Pose(x, y, z, 0.0))
        inverse(Pose(x, y, g.TRANSIT_HEIGHT, 0.0))
    except Unreachable:
        return False
    return True


def _grasp_roll(state: State, block: Block) -> float:
    """joint6 for the better of two ways to grasp a cube: first room for the fingers, then little turning."""
    x, y, _ = block.position
    options = []
    for yaw in (block.yaw, block.yaw + math.pi / 2):
        roll = roll_for(x, y, yaw)
        turn = abs(roll - float(state.targets[5]))
        options.append((3000.0 * _crowding(state, block, yaw) + turn, roll))
    return min(options)[1]


def _crowding(state: State, block: Block, yaw: float) -> float:
    """How much [m] the open fingers around `block` lack of `_CLEARANCE` to its neighbours; 0: they fit."""
    reach = (g.OPEN + g.FINGER_THICKNESS) / 2
    finger = (g.FINGER_WIDTH / 2, g.FINGER_THICKNESS / 2)
    lack = 0.0
    for other in state.blocks:
        if other is block or other.in_box:
            continue
        for side in (-reach, reach):
            dx = other.position[0] - (block.position[0] - side * math.sin(yaw))
            dy = other.position[1] - (block.position[1] + side * math.cos(yaw))
            lack = max(lack, _CLEARANCE - _gap(dx, dy, yaw, finger, other.yaw, (g.BLOCK / 2, g.BLOCK / 2)))
    return lack


def _gap(
    dx: float,
    dy: float,
    yaw1: float,
    half1: tuple[float, float],
    yaw2: float,
    half2: tuple[float, float],
) -> float:
    """Distance [m] between two rectangles along their best separating axis; negative when they overlap.

    (dx, dy) leads from the centre of the first to that of the second; a rectangle has half sizes
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


def _free_places(state: State, held: Block) -> Iterator[tuple[float, float]]:
    """Places on the mat with room for a block; the whole mat when it is full."""
    spots = [
        (g.MAT_CENTRE[0] + dx, g.MAT_CENTRE[1] + dy)
        for dx in np.linspace(-0.065, 0.065, 4).tolist()
        for dy in np.linspace(-0.090, 0.090, 5).tolist()
    ]
    others = [block.position for block in state.blocks if block is not held and not block.in_box]
    free = [s for s in spots if all(math.hypot(s[0] - o[0], s[1] - o[1]) > _SPOT for o in others)]
    yield from free or spots
