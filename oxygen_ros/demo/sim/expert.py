# SPDX-License-Identifier: Apache-2.0
"""The scripted expert: what to do next, as a pure function of the simulator's state.

It chooses the goal; `motion` makes the targets, `words` the sentences. It has no memory: the progress follows
from the poses of gripper and blocks, so a block that slips, is pushed or is taken out of the box is handled
next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim import words
from oxygen_ros.demo.sim.clearance import crowding, free_places, grasp_roll
from oxygen_ros.demo.sim.kinematics import Pose, Unreachable, forward, gripper_pose, inverse
from oxygen_ros.demo.sim.motion import SPEED, Goal, approach, roll_for
from oxygen_ros.demo.sim.prediction import periods_in, predict
from oxygen_ros.demo.sim.state import Block, State
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.words import Phase

_HOVER: Final = 0.11
"""Height of the TCP [m] on the way to a block."""
_FUNNEL: Final = 0.008
"""A miss [m] up to which the hand comes straight down; the fingers tolerate 0.014."""
_SLOPE: Final = 4.6
"""Height [m] to keep for each meter of miss beyond it: fingers that could hit the block are above it."""
_TURN_COUNTS: Final = 0.03
"""A turn [rad] beyond `_TURN_FREE` counts as a miss of so many meters."""
_TURN_FREE: Final = 0.15
_TURN_MOST: Final = 0.5
"""Fingers turned more than this [rad] against a block do not close on it."""
_LEVEL: Final = 0.008
"""Fingers this little above a block's middle [m] hold it."""
_CATCH: Final = 0.012
"""A block this far off the middle [m] is caught by closing fingers."""
_WIDE: Final = 0.064
"""Narrower fingers [m] stay above the block."""
_NOTHING: Final = g.BLOCK - 0.006
"""Fingers closer than this hold nothing [m]."""
_STILL: Final = 0.005
"""Slower than this [m/s] the fingers are pushing against something."""
_RISE: Final = 0.03
"""Within this [m] below the height it needs, the hand moves sideways the slower the lower it is."""
_OVER_HOLE: Final = 0.020
"""A block this near to the hole's middle [m] is released; the hole tolerates 0.027."""
_OPENING: Final = 0.012
"""A command beyond this [m] lets go; what has begun over the hole goes on."""
_LOW: Final = g.GRASP_HEIGHT + 0.002
"""Where a block is set down [m]."""
_DOWN: Final = 0.20
"""Speed on the way down [m/s]."""


@dataclass(frozen=True, slots=True)
class Intent:
    """What to do now: the phase, the color it is about, and where to go."""

    phase: Phase
    color: str
    goal: Goal


def act(state: State, task: Task, dt: float = g.CONTROL_PERIOD) -> NDArray[np.float64]:
    """Joint targets [7] for the next period of `dt` seconds."""
    return approach(state, decide(state, task).goal, dt)


def plan(
    state: State, task: Task, horizon: int, step: float, dt: float = g.CONTROL_PERIOD
) -> NDArray[np.float64]:
    """The next `horizon` joint targets [horizon, 7], `step` seconds apart, the first one `step` from now.

    Rolls `prediction` forward under `act`; `step` must be a multiple of `dt`; a
    coarser one is faster and a little less true.
    """
    periods = periods_in(step, dt)
    rows = []
    for _ in range(horizon):
        for _ in range(periods):
            state = predict(state, act(state, task, dt), dt)
        rows.append(state.targets)
    return np.stack(rows)


def narrate(state: State, task: Task) -> str:
    """What the expert is doing, one sentence of `words`."""
    intent = decide(state, task)
    return words.narration(intent.phase, intent.color)


def remember(state: State, task: Task) -> str:
    """How much of the task is done, one sentence of `words`; the cameras cannot tell."""
    return words.memory(task, state.count_in_box(task.color))


def decide(state: State, task: Task) -> Intent:
    """The intent that follows from the state."""
    finished = state.count_in_box(task.color) >= task.count
    held = state.held
    if held is not None:
        block = state.blocks[held]
        if block.color == task.color and not finished:
            return _put_in_box(state, block)
        return _put_back(state, block)
    falling = next((block for block in state.blocks if _falls_into_box(state, block)), None)
    if falling is not None:
        return Intent(Phase.DROP, falling.color, _stay(state, g.OPEN))
    if finished:
        return Intent(Phase.DONE, task.color, _rest(state))
    target = _choose(state, task)
    if target is None:
        return Intent(Phase.STUCK, task.color, _rest(state))
    return _fetch(state, target)


# --- the four things to do ----------------------------------------------------------------------
#
# No threshold decides alone where the hand goes: directions and heights change evenly with the state, so
# that an imitation a little off gets a slightly different target, not the opposite one.


def _fetch(state: State, block: Block) -> Intent:
    """Get `block` between the fingers and close them: down through a funnel over it."""
    here = gripper_pose(state.targets)
    x, y, z = block.position
    roll = grasp_roll(state, block)
    opening = float(state.positions[6])
    turn = abs(roll - float(state.targets[5]))
    if _between(here, block, turn):
        shut = state.targets[6] <= g.CLOSED and abs(state.velocities[6]) < _STILL
        if opening < _NOTHING or shut:  # closed beside it or on two at once: go up and retry
            above = Goal((here.x, here.y, _HOVER), float(state.targets[5]), g.OPEN)
            return Intent(Phase.REACH, block.color, above)
        return Intent(Phase.GRASP, block.color, Goal((x, y, z), roll, g.CLOSED, _DOWN))
    miss = math.hypot(x - here.x, y - here.y) + _TURN_COUNTS * max(turn - _TURN_FREE, 0.0)
    miss = max(miss, _FUNNEL + 0.6 * (_WIDE - opening))
    height = min(z + _SLOPE * max(miss - _FUNNEL, 0.0), _HOVER)
    needed = max(height - _LEVEL, _over_box(here, 0.145))
    goal = _sideways(here, (x, y, max(height, _over_box(here, 0.145))), needed)
    speed = _DOWN + (SPEED - _DOWN) * max(height - z, 0.0) / (_HOVER - g.GRASP_HEIGHT)
    return Intent(Phase.REACH, block.color, Goal(goal, roll, g.OPEN, speed))


def _put_in_box(state: State, block: Block) -> Intent:
    here = gripper_pose(state.targets)
    x, y = g.BOX_CENTER
    roll = float(state.targets[5])
    off = math.hypot(x - here.x, y - here.y)
    high = here.z > g.BOX_HEIGHT + g.BLOCK / 2
    begun = off < g.HOLE / 2 - g.BLOCK / 2 and state.targets[6] > _OPENING
    if high and (off < _OVER_HOLE or begun):
        return Intent(Phase.DROP, block.color, Goal((x, y, here.z), roll, g.OPEN, _DOWN))
    return Intent(Phase.CARRY, block.color, Goal(_carry(here, x, y), roll, g.CLOSED))


def _put_back(state: State, block: Block) -> Intent:
    """Set down a block that does not belong in the box (any more) at the nearest free place of the mat."""
    here = gripper_pose(state.targets)
    places = free_places(state, block)
    x, y = min(places, key=lambda place: math.hypot(place[0] - here.x, place[1] - here.y))
    roll = float(state.targets[5])
    if math.hypot(x - here.x, y - here.y) > _FUNNEL:
        goal = Goal(_carry(here, x, y), roll, g.CLOSED)
    elif here.z > _LOW + _LEVEL:
        goal = Goal((x, y, _LOW), roll, g.CLOSED, _DOWN)
    else:
        goal = Goal((here.x, here.y, _LOW), roll, g.OPEN, _DOWN)
    return Intent(Phase.RETURN, block.color, goal)


def _rest(state: State) -> Goal:
    x, y, z, yaw = g.REST_POSE
    here = gripper_pose(state.targets)
    needed = max(_HOVER - _RISE, _over_box(here, 0.145))
    return Goal(_sideways(here, (x, y, z), needed), roll_for(x, y, yaw), g.OPEN)


# --- pieces of a way ----------------------------------------------------------------------------


def _stay(state: State, opening: float) -> Goal:
    here, _ = forward(state.targets)
    return Goal((float(here[0]), float(here[1]), float(here[2])), float(state.targets[5]), opening)


def _carry(here: Pose, x: float, y: float) -> tuple[float, float, float]:
    """Towards high above (x, y) with a block in the hand: over the other blocks and the box's rim."""
    return _sideways(here, (x, y, g.TRANSIT_HEIGHT), max(0.085, _over_box(here, 0.165)))


def _over_box(here: Pose, height: float) -> float:
    """The height [m] a hand needs at `here`: `height` over the box, less with every step away from it."""
    away = math.hypot(g.BOX_CENTER[0] - here.x, g.BOX_CENTER[1] - here.y)
    return min(height, height - 5.0 * (away - 0.13))


def _sideways(here: Pose, to: tuple[float, float, float], needed: float) -> tuple[float, float, float]:
    """`to`, or less of the way sideways while the hand is lower than `needed`: up comes first."""
    part = min(max((here.z - needed) / _RISE + 1.0, 0.0), 1.0)
    return here.x + part * (to[0] - here.x), here.y + part * (to[1] - here.y), to[2]


# --- geometry -----------------------------------------------------------------------------------


def _between(here: Pose, block: Block, turn: float) -> bool:
    """Whether closing the fingers now would catch the block."""
    off = math.hypot(block.position[0] - here.x, block.position[1] - here.y)
    level = here.z < max(block.position[2], g.GRASP_HEIGHT) + _LEVEL
    return level and off < _CATCH and turn < _TURN_MOST


def _falls_into_box(state: State, block: Block) -> bool:
    """The block is over the hole and not yet in: released a moment ago, it falls by itself."""
    x, y, z = block.position
    over = abs(x - g.BOX_CENTER[0]) < g.HOLE / 2 and abs(y - g.BOX_CENTER[1]) < g.HOLE / 2
    here, _ = forward(state.targets)
    close = math.hypot(x - float(here[0]), y - float(here[1])) < g.HOLE / 2
    return over and close and not block.in_box and z > g.BOX_HEIGHT / 2


def _choose(state: State, task: Task) -> Block | None:
    """The nearest block of the task's color outside the box; nearest stays nearest on the way.

    Blocks the fingers have no room around come last, as if they were further away.
    """
    here = gripper_pose(state.targets)

    def cost(block: Block) -> float:
        lack = min(crowding(state, block, block.yaw + turn) for turn in (0.0, math.pi / 2))
        return math.hypot(block.position[0] - here.x, block.position[1] - here.y) + 30.0 * lack

    outside = [b for b in state.blocks if b.color == task.color and not b.in_box and _reachable(b)]
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
