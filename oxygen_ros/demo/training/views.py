# SPDX-License-Identifier: Apache-2.0
"""Views: every frame another layout, the arm anywhere, nothing moved; labeled with what the expert would do.

Detecting blocks takes many layouts, not long episodes. Labels are rolled out by the simulator's `prediction`,
without physics: slightly less exact than those of `collect`, far more varied. `collect` starts from the arm's
places chosen here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.clearance import grasp_roll
from oxygen_ros.demo.sim.expert import act, decide, plan
from oxygen_ros.demo.sim.kinematics import Pose, Unreachable, gripper_pose, inverse
from oxygen_ros.demo.sim.prediction import predict
from oxygen_ros.demo.sim.state import Block, State
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training.records import NOT_YET, PHASES, RECORD, STEP, write_shard

_FIRST_SEED: Final = 700_000_000
_PLANNED: Final = 8
"""Steps of a label; what is executed of a chunk is less."""
_DT: Final = 0.025
"""Seconds of one step of the rolling out."""
_CLEAR: Final = 0.062
"""Lower hands [m] have their fingers between blocks."""


def draw_arm(state: State, rng: np.random.Generator, to_box: bool = True) -> NDArray[np.float64] | None:
    """Joints [7] somewhere: over a block of any color, over the mat or (`to_box`) on the way to the box.

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
        x, y = (np.array(g.MAT_CENTER) + rng.uniform(-half, half)).tolist()
        roll = None
        if to_box and kind > 0.85:
            x, y = g.BOX_CENTER[0] + float(rng.normal(0, 0.03)), float(rng.uniform(0.0, 0.25))
            height = float(rng.uniform(0.15, 0.2))
    try:
        arm = inverse(Pose(x, y, height, yaw))
    except Unreachable:
        return None
    if roll is not None:
        arm[5] = roll
    return g.clip_joints(np.append(arm, g.OPEN))


def draw_task(rng: np.random.Generator) -> tuple[Task, int]:
    """A task, and how many of its blocks are in the box already."""
    task = Task(str(rng.choice(g.COLORS)), int(rng.choice((1, 2), p=(0.4, 0.6))))
    shares = (0.82, 0.18) if task.count == 1 else (0.45, 0.40, 0.15)
    return task, int(rng.choice(task.count + 1, p=shares))


def collect_views(folder: Path, number: int, frames: int, size: int) -> int:
    """Make shard `number` of views; returns how many frames. One that exists is left alone.

    What the box holds is drawn too, as no camera shows it.
    """
    name = f"view{number:04d}"
    if (folder / f"{name}.records.npy").exists():
        return 0
    rng = np.random.default_rng([number, 77])
    world = World(0)
    pictures, records = [], np.zeros(frames, RECORD)
    try:
        for i in range(frames):
            task = draw_task(rng)[0]
            world.task = task
            world.reset(_FIRST_SEED + number * 10_000 + i)
            arm = draw_arm(world.state(), rng)
            if arm is not None:
                world.place_arm(arm)
                if rng.random() < 0.25:
                    _hold(world, rng)
            state = world.state()
            records[i] = make_record(state, task, world.seed)
            records[i] = label(records[i], rng)
            pictures.append(np.stack([world.render(camera, size, size) for camera in ("top", "wrist")]))
    finally:
        world.close()
    write_shard(folder, name, np.stack(pictures), records)
    return frames


def make_record(state: State, task: Task, seed: int) -> np.void:
    """A record of what stands where, without a label."""
    record: np.void = np.zeros(1, RECORD)[0]
    record["seed"], record["joints"], record["targets"] = seed, state.positions, state.positions
    record["colour"], record["count"] = g.COLORS.index(task.color), task.count
    record["blocks"][:, 4] = -1
    for k, block in enumerate(state.blocks):
        record["blocks"][k] = (*block.position, block.yaw, g.COLORS.index(block.color))
    return record


def label(record: np.void, rng: np.random.Generator) -> np.void:
    """`record` with a progress that is drawn, and what the expert would do about it.

    An empty hand over the box gets no label (`valid` 0): it must mean that a block was just
    released.
    """
    record = record.copy()
    task = Task(g.COLORS[record["colour"]], int(record["count"]))
    shares = (0.85, 0.15) if task.count == 1 else (0.45, 0.43, 0.12)
    inside = int(rng.choice(task.count + 1, p=shares))
    record["inside"] = NOT_YET if inside == 0 and rng.random() < 0.1 else inside
    record["inside"][0] = inside
    state = _state_of(record, inside)
    here = gripper_pose(state.positions)
    away = math.dist((here.x, here.y), g.BOX_CENTER)
    intent = decide(state, task)
    record["phase"], record["acted"] = PHASES.index(intent.phase.value), g.COLORS.index(intent.color)
    if state.held is None and away < 0.13:
        return record
    if rng.random() < 0.75:  # an arm is seldom at rest: let it have started
        moved = state
        for _ in range(5):
            moved = predict(moved, act(moved, task, _DT), _DT)
        state = replace(state, target_rates=moved.target_rates)
    record["targets"][:_PLANNED] = plan(state, task, _PLANNED, STEP, _DT)
    record["targets"][_PLANNED:] = record["targets"][_PLANNED - 1]
    record["valid"] = _PLANNED
    return record


def _state_of(record: np.void, inside: int) -> State:
    """The state a record was made of, with `inside` more blocks of its color in the box."""
    joints = record["joints"].astype(np.float64)
    here = gripper_pose(joints)
    blocks = []
    for x, y, z, yaw, color in record["blocks"].astype(np.float64):
        if color >= 0:
            turn = (math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
            held = joints[6] < g.BLOCK + 0.001 and math.dist((x, y), (here.x, here.y)) < 0.002
            blocks.append(Block(g.COLORS[int(color)], (x, y, z), turn, False, held))
    center = (*g.BOX_CENTER, g.BLOCK / 2)
    color = g.COLORS[record["colour"]]
    blocks += [Block(color, center, (1.0, 0.0, 0.0, 0.0), True, False)] * inside
    targets = joints.copy()
    if any(block.held for block in blocks):
        targets[6] = g.CLOSED
    return State(0.0, joints, np.zeros(7), targets, np.zeros(7), tuple(blocks))


def _hold(world: World, rng: np.random.Generator) -> None:
    """Put a block between the fingers of the hand where it is."""
    joints = world.joint_positions()
    here = gripper_pose(joints)
    world.place_block(int(rng.integers(3)), (here.x, here.y, here.z + float(rng.normal(0, 0.003))), here.yaw)
    joints[6] = g.BLOCK
    world.place_arm(joints)
