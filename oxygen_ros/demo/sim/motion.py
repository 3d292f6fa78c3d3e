# SPDX-License-Identifier: Apache-2.0
"""From a goal of the gripper to the next joint targets: straight lines with a trapezoidal speed.

`expert` says where the arm should go. Pure functions: the speed so far is read from the state's
`target_rates`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.kinematics import Pose, Unreachable, forward, inverse
from oxygen_ros.demo.sim.state import State

SPEED: Final = 0.28
"""Of the TCP [m/s]."""
_ACCELERATION: Final = 0.9
_ROLL_ACCELERATION: Final = 10.0
_GRIPPER_SPEED: Final = 0.12
_SLACK: Final = 0.9
"""Part of the acceleration braking is planned with; the rest is for the steps being finite."""


@dataclass(frozen=True, slots=True)
class Goal:
    """Where the vertical gripper should go, in a straight line.

    position:  TCP (x, y, z) [m]
    roll:      joint6 [rad]
    opening:   between the pads [m]
    speed:     largest TCP speed [m/s]
    """

    position: tuple[float, float, float]
    roll: float
    opening: float
    speed: float = SPEED


def roll_for(x: float, y: float, yaw: float) -> float:
    """joint6 [rad] that turns the vertical gripper at (x, y) to `yaw` (modulo pi)."""
    return float(inverse(Pose(x, y, g.TRANSIT_HEIGHT, yaw))[5])


def approach(state: State, goal: Goal, dt: float = g.CONTROL_PERIOD) -> NDArray[np.float64]:
    """Joint targets [7] one period of `dt` seconds further towards `goal`.

    Raises `Unreachable` when the goal itself cannot be reached. From where no straight line of the
    vertical gripper is possible (the arm was left folded or stretched) the joints go directly.
    """
    here, _ = forward(state.targets)
    before, _ = forward(state.targets - state.target_rates * dt)
    way = np.array(goal.position) - here
    distance = float(np.linalg.norm(way))
    if distance > 0.0:
        along = float((here - before) @ way) / (distance * dt)
        speed = _trapezoid(distance, max(along, 0.0), goal.speed, _ACCELERATION, dt)
        here = here + way * min(1.0, speed * dt / distance)
    try:
        arm = inverse(Pose(float(here[0]), float(here[1]), float(here[2]), 0.0))
    except Unreachable:
        arm = inverse(Pose(*goal.position, 0.0))
    turn = goal.roll - float(state.targets[5])
    rate = float(state.target_rates[5]) * math.copysign(1.0, turn)
    turn_speed = _trapezoid(abs(turn), max(rate, 0.0), float(g.JOINT_SPEED[5]), _ROLL_ACCELERATION, dt)
    wanted = state.targets.copy()
    wanted[:5] = arm[:5]
    wanted[5] += math.copysign(min(abs(turn), turn_speed * dt), turn)
    wanted[6] += np.clip(goal.opening - state.targets[6], -_GRIPPER_SPEED * dt, _GRIPPER_SPEED * dt)
    most = g.JOINT_SPEED * dt
    return g.clip_joints(state.targets + np.clip(wanted - state.targets, -most, most))


def _trapezoid(distance: float, speed: float, top: float, acceleration: float, dt: float) -> float:
    """Speed for the next period: faster by at most one period's acceleration, slow enough to stop in time."""
    braking = math.sqrt(2.0 * _SLACK * acceleration * distance)
    return min(top, speed + acceleration * dt, braking)
