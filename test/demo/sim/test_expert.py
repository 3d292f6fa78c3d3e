# SPDX-License-Identifier: Apache-2.0
"""The scripted expert solves its tasks, stops, recovers, and is a pure function of the state."""

from __future__ import annotations

import math

import numpy as np
import pytest

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.expert import act, decide, narrate, plan, remember
from oxygen_ros.demo.sim.kinematics import Pose, forward, inverse, tilt
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.words import Phase, all_sentences
from oxygen_ros.demo.sim.world import World, rest_joints

LIMIT = 25.0


@pytest.fixture(scope="module")
def world() -> World:
    return World(0)


def run(world: World, task: Task, seconds: float = LIMIT) -> tuple[list[str], list[str]]:
    """Let the expert work until it rests; its narration and its memory, without repetitions."""
    said: list[str] = []
    kept: list[str] = []
    end = world.time + seconds
    while world.time < end:
        state = world.state()
        for sentence, sentences in ((narrate(state, task), said), (remember(state, task), kept)):
            if sentence not in sentences[-1:]:
                sentences.append(sentence)
        if decide(state, task).phase is Phase.DONE and at_rest(world):
            break
        world.step(act(state, task))
    return said, kept


def at_rest(world: World) -> bool:
    return bool(np.abs(world.joint_positions() - rest_joints()).max() < 0.005)


def in_box(world: World) -> dict[str, int]:
    return {color: world.blocks_in_box(color) for color in g.COLORS}


@pytest.mark.parametrize("seed", [1, 2])
def test_two_red_blocks_of_three_or_four(world: World, seed: int) -> None:
    task = Task("red", 2)
    world.reset(seed)
    said, kept = run(world, task)
    assert in_box(world) == {"red": 2, "green": 0, "blue": 0}
    assert at_rest(world)
    assert kept == [
        "no red block is in the box.",
        "one of two red blocks is in the box.",
        "two of two red blocks are in the box.",
    ]
    cycle = [f"{verb} a red block." for verb in ("reaching for", "grasping", "carrying", "dropping")]
    assert said == [*cycle, *cycle, "done."]
    assert {*said, *kept} <= set(all_sentences())
    for _ in range(100):  # and it stays there
        world.step(act(world.state(), task))
    assert at_rest(world)


def test_one_red_block(world: World) -> None:
    world.reset(3)
    run(world, Task("red", 1))
    assert in_box(world) == {"red": 1, "green": 0, "blue": 0}
    assert at_rest(world)


def test_what_is_already_inside_counts(world: World) -> None:
    world.reset(4)
    world.place_block(0, (*g.BOX_CENTER, g.BLOCK / 2))
    world.advance(0.2)
    assert remember(world.state(), Task("red", 2)) == "one of two red blocks is in the box."
    run(world, Task("red", 2))
    assert in_box(world) == {"red": 2, "green": 0, "blue": 0}


def test_a_block_that_slips_is_fetched_again(world: World) -> None:
    task = Task("red", 1)
    world.reset(5)
    while decide(world.state(), task).phase is not Phase.CARRY or world.joint_positions()[1] < 0:
        world.step(act(world.state(), task))
    for _ in range(60):
        world.step(act(world.state(), task))
    held = world.state().held
    assert held is not None
    world.place_block(held, (0.42, -0.13, g.BLOCK / 2), 0.3)
    assert narrate(world.state(), task) == "reaching for a red block."
    run(world, task)
    assert in_box(world)["red"] == 1


def test_a_wrong_block_in_the_hand_is_put_back(world: World) -> None:
    world.reset(1)
    color = next(block.color for block in world.state().blocks if block.color != "red")
    other = Task(color, 1)
    while decide(world.state(), other).phase is not Phase.CARRY:
        world.step(act(world.state(), other))
    for _ in range(80):
        world.step(act(world.state(), other))
    assert narrate(world.state(), Task("red", 1)) == f"putting a {color} block back."
    run(world, Task("red", 1))
    assert in_box(world) == {"red": 1, "green": 0, "blue": 0}


def test_from_a_folded_and_tilted_arm(world: World) -> None:
    world.reset(2)
    start, odd = rest_joints(), np.array([-1.2, -0.6, 1.9, 1.0, -0.8, 2.0, 0.0])
    for part in np.linspace(0.0, 1.0, 150):
        world.step(start + (odd - start) * part)
    assert tilt(world.joint_positions()) > 0.5
    run(world, Task("red", 1))
    assert in_box(world)["red"] == 1


def test_no_block_in_reach_is_said_and_waited_for(world: World) -> None:
    world.reset(6)
    task = Task("red", 1)
    for index, block in enumerate(world.state().blocks):
        if block.color == "red":
            world.place_block(index, (0.58, 0.30 - 0.06 * index, g.BLOCK / 2))
    assert narrate(world.state(), task) == "no red block is in reach."
    for _ in range(100):
        world.step(act(world.state(), task))
    assert at_rest(world)


def test_the_same_state_gives_the_same_targets_whatever_came_before(world: World) -> None:
    world.reset(7)
    task = Task("red", 2)
    states = []
    for _ in range(300):
        states.append(world.state())
        world.step(act(states[-1], task))
    rng = np.random.default_rng(0)
    for i in rng.permutation(len(states) - 1)[:60]:
        np.testing.assert_array_equal(act(states[i], task), states[i + 1].targets)


def test_motion_is_smooth_and_the_gripper_stays_vertical(world: World) -> None:
    world.reset(8)
    task = Task("red", 1)
    tips, joints = [], []
    while decide(world.state(), task).phase is not Phase.DONE:
        targets = act(world.state(), task)
        joints.append(targets)
        tips.append(forward(targets)[0])
        assert tilt(targets) < 1e-6
        world.step(targets)
    path = np.array(tips)
    speed = np.linalg.norm(np.diff(path, axis=0), axis=1) / g.CONTROL_PERIOD
    assert speed.max() < 0.30
    assert (np.abs(np.diff(np.array(joints), axis=0)) <= g.JOINT_SPEED * g.CONTROL_PERIOD + 1e-12).all()
    assert np.abs(np.diff(speed)).max() / g.CONTROL_PERIOD < 6.0  # m/s^2, at the corners too


def test_a_plan_is_what_then_happens(world: World) -> None:
    world.reset(5)
    task = Task("red", 2)
    horizon, step = 16, 0.05
    periods = round(step / g.CONTROL_PERIOD)
    plans, taken = {}, []
    for k in range(560):
        if k % 40 == 0:
            plans[k] = plan(world.state(), task, horizon, step)
        taken.append(act(world.state(), task))
        world.step(taken[-1])
    errors = []
    for k, planned in plans.items():
        assert planned.shape == (horizon, 7)
        for i in range(horizon):
            then = k + periods * (i + 1) - 1
            if then < len(taken):
                errors.append(math.dist(forward(planned[i])[0], forward(taken[then])[0]))
    assert np.median(errors) < 1e-4
    assert max(errors) < 0.04  # around a drop the plan is ahead by the time the block falls


@pytest.mark.parametrize("step", [0.0, -0.1, 0.015])
def test_a_step_between_control_periods_is_refused(world: World, step: float) -> None:
    with pytest.raises(ValueError, match="not a positive multiple of the control period"):
        plan(world.state(), Task(), 4, step)


def test_a_crowded_block_is_left_for_a_free_one(world: World) -> None:
    """The nearest block has neighbors on two sides, so that no pair of fingers fits around it."""
    seed = next(s for s in range(20) if _colors(world, s).count("red") == 3 and len(_colors(world, s)) == 5)
    world.reset(seed)
    red = [i for i, block in enumerate(world.state().blocks) if block.color == "red"]
    others = [i for i, block in enumerate(world.state().blocks) if block.color != "red"]
    x, y = 0.28, -0.03
    world.place_block(red[0], (x, y, g.BLOCK / 2))
    world.place_block(others[0], (x + 0.043, y, g.BLOCK / 2))
    world.place_block(others[1], (x, y + 0.043, g.BLOCK / 2))
    world.place_block(red[1], (0.40, -0.10, g.BLOCK / 2))
    world.place_block(red[2], (0.10, -0.33, g.BLOCK / 2))
    run(world, Task("red", 1))
    assert [block.in_box for block in world.state().blocks] == [i == red[1] for i in range(5)]
    run(world, Task("red", 2))
    assert in_box(world) == {"red": 2, "green": 0, "blue": 0}


def _colors(world: World, seed: int) -> list[str]:
    world.reset(seed)
    return [block.color for block in world.state().blocks]


def test_a_little_off_is_sent_a_little_another_way(world: World) -> None:
    """Over a block no millimeter turns the hand about: imitation needs that."""
    task = Task("red", 1)
    world.reset(3)
    rest = world.state()
    block = min((b for b in rest.blocks if b.color == "red"), key=lambda b: abs(b.position[1]))
    x, y, _ = block.position
    ways = []
    for off in np.linspace(0.0, 0.03, 31):
        for height in (0.035, 0.06, 0.09):
            world.place_arm(np.append(inverse(Pose(x - off, y, height, block.yaw)), g.OPEN))
            ways.append(
                forward(plan(world.state(), task, 1, 0.2)[0])[0] - forward(world.joint_positions())[0]
            )
    steps = np.diff(np.array(ways).reshape(31, 3, 3), axis=0)
    assert np.abs(steps).max() < 0.009  # m, of the 0.05 m a hand makes in that time


def test_the_hand_forgives_a_miss_of_a_centimetre(world: World) -> None:
    """From beside the block's middle, at its height: close, not up and again."""
    world.reset(3)
    block = next(b for b in world.state().blocks if b.color == "red")
    x, y, z = block.position
    world.place_arm(np.append(inverse(Pose(x + 0.006, y + 0.006, z + 0.004, block.yaw)), g.OPEN))
    assert decide(world.state(), Task("red", 1)).phase is Phase.GRASP
