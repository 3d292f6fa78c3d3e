# SPDX-License-Identifier: Apache-2.0
"""Views for the eyes alone: every frame another layout, the arm anywhere, nothing moved.

Blocks are found in pictures long before anything is done about them, and what finding takes is many
layouts, not long episodes. Here lives the choice of the arm's place, which `collect` starts from too.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.sim import geometry as g
from oxygen_ros.sim.clearance import grasp_roll
from oxygen_ros.sim.kinematics import Pose, Unreachable, gripper_pose, inverse
from oxygen_ros.sim.state import State
from oxygen_ros.sim.task import Task
from oxygen_ros.sim.world import World
from oxygen_ros.train.records import PHASES, RECORD, write_shard

_FIRST_SEED: Final = 700_000_000
_CLEAR: Final = 0.062
"""Lower hands [m] have their fingers between blocks."""


def draw_arm(state: State, rng: np.random.Generator, to_box: bool = True) -> NDArray[np.float64] | None:
    """Joints [7] somewhere: over a block of any colour, over the mat or (`to_box`) on the way to the box.

    None where the arm cannot be. Low only where open fingers would stand beside a block, not in it.
    """
    kind = rng.random()
    yaw = float(rng.normal(0.0, 0.5))
    height = float(rng.uniform(_CLEAR, 0.24))
    if kind < 0.55:
        block = state.blocks[int(rng.integers(len(state.blocks)))]
        x, y, _ = block.position
        roll: float | None = grasp_roll(state, block) + float(rng.normal(0.0, 0.15))
        off = rng.normal(0.0, 0.004 if rng.random() < 0.35 else 0.03, 2)
        if math.hypot(*off) < 0.009:
            height = float(rng.uniform(0.018, 0.12))
        x, y = x + float(off[0]), y + float(off[1])
    else:
        half = np.array(g.MAT_SIZE) * 0.6
        x, y = (np.array(g.MAT_CENTRE) + rng.uniform(-half, half)).tolist()
        roll = None
        if to_box and kind > 0.85:
            x, y = g.BOX_CENTRE[0] + float(rng.normal(0, 0.03)), float(rng.uniform(0.0, 0.25))
            height = float(rng.uniform(0.15, 0.2))
    try:
        arm = inverse(Pose(x, y, height, yaw))
    except Unreachable:
        return None
    if roll is not None:
        arm[5] = roll
    return g.clip_joints(np.append(arm, g.OPEN))


def collect_views(folder: Path, number: int, frames: int, size: int) -> int:
    """Make shard `number` of views; returns how many frames. One that exists is left alone.

    Its records have no action to learn (`valid` is 0): they are for `eyes`.
    """
    name = f"view{number:04d}"
    if (folder / f"{name}.records.npy").exists():
        return 0
    rng = np.random.default_rng([number, 77])
    world = World(0)
    pictures, records = [], np.zeros(frames, RECORD)
    try:
        for i in range(frames):
            seed = _FIRST_SEED + number * 10_000 + i
            world.task = Task(str(rng.choice(g.COLOURS)))
            world.reset(seed)
            state = world.state()
            arm = draw_arm(state, rng)
            if arm is not None:
                world.place_arm(arm)
                if rng.random() < 0.25:
                    _hold(world, rng)
            state = world.state()
            record = records[i : i + 1]
            record["seed"], record["joints"] = seed, state.positions
            record["targets"], record["phase"] = state.positions, PHASES.index("reach")
            record["blocks"][:, :, 4] = -1
            for k, block in enumerate(state.blocks):
                record["blocks"][0, k] = (*block.position, block.yaw, g.COLOURS.index(block.colour))
            pictures.append(np.stack([world.render(camera, size, size) for camera in ("top", "wrist")]))
    finally:
        world.close()
    write_shard(folder, name, np.stack(pictures), records)
    return frames


def _hold(world: World, rng: np.random.Generator) -> None:
    """Put a block between the fingers of the hand where it is."""
    joints = world.joint_positions()
    here = gripper_pose(joints)
    world.place_block(int(rng.integers(3)), (here.x, here.y, here.z + float(rng.normal(0, 0.003))), here.yaw)
    joints[6] = g.BLOCK
    world.place_arm(joints)
