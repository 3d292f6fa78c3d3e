# SPDX-License-Identifier: Apache-2.0
"""Pushes off the expert's path, so that the demonstrations show how to come back.

Here lives only the choice of the push; `collect` carries it out and keeps no frame of it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.sim import geometry as g
from oxygen_ros.sim.kinematics import Pose, Unreachable, gripper_pose, inverse
from oxygen_ros.sim.state import State

_PUSH = np.array([0.028, 0.028, 0.022])
"""Standard deviation of a push of the TCP [m]."""
_LOWEST = 0.014


def draw_push(state: State, rng: np.random.Generator) -> NDArray[np.float64]:
    """Joint targets [7] a push ends at: near where the arm is, or the same place with other fingers.

    The arm stays near its path on purpose: an empty hand over the box must go on meaning that a
    block was just let go.
    """
    targets = np.array(state.targets)
    kind = rng.random()
    if kind < 0.12:  # stand still for a moment
        return targets
    if kind < 0.30:  # fingers only
        targets[6] = rng.uniform(g.CLOSED, g.OPEN)
        return g.clip_joints(targets)
    here = gripper_pose(state.targets)
    size = _PUSH * (0.35 if rng.random() < 0.4 else 1.0)
    x, y, z = np.array([here.x, here.y, here.z]) + rng.normal(0.0, size)
    z = max(z, min(here.z, _LOWEST) if rng.random() < 0.5 else 0.05)
    try:
        arm = inverse(Pose(float(x), float(y), float(z), 0.0))
    except Unreachable:
        return targets
    targets[:5] = arm[:5]
    targets[5] += rng.normal(0.0, 0.25)
    if rng.random() < 0.15:
        targets[6] = rng.uniform(g.CLOSED, g.OPEN)
    return g.clip_joints(targets)


def path_to(start: NDArray[np.float64], end: NDArray[np.float64], seconds: float) -> NDArray[np.float64]:
    """Joint targets [periods, 7] from `start` to `end`, starting and ending at rest, within speed limits."""
    speed_limited = float(np.max(1.6 * np.abs(end - start) / g.JOINT_SPEED))
    periods = max(2, round(max(seconds, speed_limited) / g.CONTROL_PERIOD))
    s = np.linspace(0.0, 1.0, periods + 1)[1:, None]
    path: NDArray[np.float64] = start + (end - start) * (s * s * (3 - 2 * s))
    return path
