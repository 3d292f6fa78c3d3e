# SPDX-License-Identifier: Apache-2.0
"""The simulated world: deterministic, stable, well laid out; no camera sees into the box."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.expert import act
from oxygen_ros.demo.sim.kinematics import Pose, inverse
from oxygen_ros.demo.sim.render import GraphicsUnavailable
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World, rest_joints


@pytest.fixture(scope="module")
def shared() -> Iterator[World]:
    world = World(0)
    yield world
    world.close()


@pytest.fixture
def world(shared: World) -> World:
    shared.reset(0)
    return shared


def test_same_seed_and_commands_give_the_same_states_bit_for_bit(world: World) -> None:
    other = World(5)
    world.reset(5)
    for _ in range(250):
        ours, theirs = world.state(), other.state()
        np.testing.assert_array_equal(ours.positions, theirs.positions)
        assert ours.blocks == theirs.blocks
        world.step(act(ours, world.task))
        other.step(act(theirs, other.task))


def test_reset_after_anything_is_a_fresh_start(world: World) -> None:
    world.reset(9)
    first = world.state()
    world.step(np.full(7, 0.3))
    world.advance(0.3)
    world.reset(9)
    again = world.state()
    assert first.blocks == again.blocks
    assert first.time == again.time == 0.0
    np.testing.assert_array_equal(first.positions, again.positions)
    np.testing.assert_array_equal(first.target_rates, again.target_rates)


def test_restore_repeats_the_future(world: World) -> None:
    world.advance(0.1)
    mark = world.snapshot()
    targets = rest_joints() + 0.05
    futures = []
    for _ in range(2):
        world.restore(mark)
        for _ in range(20):
            world.step(targets)
        futures.append(world.state())
    assert futures[0].blocks == futures[1].blocks
    np.testing.assert_array_equal(futures[0].positions, futures[1].positions)


def test_layouts_have_the_promised_blocks_apart_and_on_the_mat(world: World) -> None:
    seen = set()
    for seed in range(60):
        world.reset(seed)
        blocks = world.state().blocks
        colors = [block.color for block in blocks]
        seen.add((colors.count("red"), len(blocks) - colors.count("red")))
        for i, block in enumerate(blocks):
            x, y, z = block.position
            assert abs(x - g.MAT_CENTER[0]) <= g.MAT_SIZE[0] / 2 - g.BLOCK / 2
            assert abs(y - g.MAT_CENTER[1]) <= g.MAT_SIZE[1] / 2 - g.BLOCK / 2
            assert z == pytest.approx(g.BLOCK / 2)
            assert all(math.dist(block.position, other.position) > 0.068 for other in blocks[:i])
            inverse(Pose(x, y, z, 0.0))  # reachable
    assert seen == {(3, 1), (3, 2), (4, 1), (4, 2)}


def test_at_rest_nothing_moves(world: World) -> None:
    world.advance(0.5)
    before = world.state()
    world.advance(2.0)
    after = world.state()
    np.testing.assert_allclose(after.positions, before.positions, atol=1e-5)
    np.testing.assert_allclose(after.positions, rest_joints(), atol=1e-4)
    assert np.abs(after.velocities).max() < 1e-4
    for one, two in zip(before.blocks, after.blocks, strict=True):
        assert math.dist(one.position, two.position) < 1e-5


def test_joints_go_where_they_are_sent(world: World) -> None:
    goal = np.append(inverse(Pose(0.33, 0.05, 0.2, 0.5)), 0.02)
    start = world.joint_positions()
    for part in np.linspace(0.0, 1.0, 100):
        world.step(start + (goal - start) * part)
    world.advance(0.3)
    np.testing.assert_allclose(world.joint_positions(), goal, atol=2e-3)


def test_a_grasped_block_does_not_slip(world: World) -> None:
    """Through a fast swing (0.7 m/s) and ten seconds of waiting it stays between the pads."""
    x, y = 0.33, -0.03
    for index in range(1, len(world.state().blocks)):
        world.place_block(index, (0.0 + 0.05 * index, -0.30, g.BLOCK / 2))
    world.place_block(0, (x, y, g.BLOCK / 2))
    low, high = inverse(Pose(x, y, 0.02, 0.0)), inverse(Pose(x, y, 0.18, 0.0))
    aside = inverse(Pose(0.30, 0.2, 0.18, 0.0))
    way = [(high, g.OPEN, 0.6), (low, g.OPEN, 0.6), (low, 0.0, 0.5), (high, 0.0, 0.4), (aside, 0.0, 0.5)]
    for arm, opening, seconds in way:
        start, goal = world.state().targets, np.append(arm, opening)
        steps = round(seconds / g.CONTROL_PERIOD)
        for i in range(1, steps + 1):
            world.step(start + (goal - start) * (0.5 - 0.5 * math.cos(math.pi * i / steps)))
    world.advance(0.5)
    before = world.state()
    assert before.held == 0
    world.advance(10.0)
    after = world.state()
    assert after.held == 0
    assert math.dist(before.blocks[0].position, after.blocks[0].position) < 0.0005
    assert math.dist(after.blocks[0].position, (0.30, 0.2, 0.18)) < 0.004


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (np.zeros(6), r"shape \(6,\); they must be \[7\]"),
        (np.array([0, 0, np.nan, 0, 0, 0, 0]), "joint3 is not finite"),
    ],
)
def test_targets_that_make_no_sense_are_refused(world: World, targets: np.ndarray, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        world.step(targets)


def test_the_state_is_a_value(world: World) -> None:
    state = world.state()
    kept = state.positions.copy()
    with pytest.raises(ValueError, match="read-only"):
        state.positions[0] = 1.0
    world.step(rest_joints() + 0.1)
    world.advance(0.2)
    np.testing.assert_array_equal(state.positions, kept)


def test_blocks_dropped_through_the_hole_are_in_the_box_and_counted(world: World) -> None:
    assert world.blocks_in_box("red") == 0
    for index in range(len(world.state().blocks)):
        x, y = g.BOX_CENTER
        place = (x + 0.02 * (-1) ** index, y + 0.02 * (-1) ** (index // 2), 0.15)
        world.place_block(index, place, 0.2 * index)
        world.advance(0.7)
    state = world.state()
    assert all(block.in_box for block in state.blocks)
    assert world.blocks_in_box("red") == sum(block.color == "red" for block in state.blocks)


@pytest.mark.parametrize("camera", ["top", "wrist", "side"])
def test_pictures(world: World, camera: str) -> None:
    picture = world.render(camera)
    assert picture.shape == (224, 224, 3)
    assert picture.dtype == np.uint8
    assert picture.std() > 20
    np.testing.assert_array_equal(picture, world.render(camera))
    assert world.render(camera, 60, 80).shape == (60, 80, 3)


def test_the_top_camera_sees_the_colors(world: World) -> None:
    picture = world.render("top").astype(int)
    red = (picture[..., 0] > 150) & (picture[..., 1:].max(-1) < 70)
    assert red.sum() > 500


@pytest.mark.parametrize("camera", ["top", "wrist", "side"])
@pytest.mark.parametrize("pose", [g.REST_POSE, (*g.BOX_CENTER, g.TRANSIT_HEIGHT, 0.3)])
def test_what_is_in_the_box_is_invisible(world: World, camera: str, pose: tuple[float, ...]) -> None:
    """Pixel for pixel the same with a block in the box and without, also with the wrist above the hole."""
    goal = np.append(inverse(Pose(*pose)), g.OPEN)
    start = world.joint_positions()
    for part in np.linspace(0.0, 1.0, 80):
        world.step(start + (goal - start) * part)
    last = len(world.state().blocks) - 1
    world.place_block(last, (g.BOX_CENTER[0] + 0.03, g.BOX_CENTER[1] + 0.02, 0.02), 0.4)
    assert world.state().blocks[last].in_box
    inside = world.render(camera)
    world.place_block(last, (*g.BOX_CENTER, 0.08))
    np.testing.assert_array_equal(inside, world.render(camera))
    world.remove_block(last)
    np.testing.assert_array_equal(inside, world.render(camera))


def test_an_unknown_camera_is_named_with_those_there_are(world: World) -> None:
    with pytest.raises(ValueError, match="camera 'left' does not exist; the cameras are top, side, wrist"):
        world.render("left")


def test_without_graphics_the_error_names_the_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUJOCO_GL", "nonsense")
    with pytest.raises(GraphicsUnavailable, match="use one of egl, osmesa, glfw"):
        World(0).render("top")
    script = (
        "import sys; sys.modules['OpenGL'] = None\n"  # as if the library could not be loaded
        "from oxygen_ros.demo.sim.world import World\n"
        "world = World(0); world.advance(0.05); world.render('top')\n"
    )
    environment = {**os.environ, "MUJOCO_GL": "egl"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert "apt-get install libegl1 libgl1-mesa-dri" in done.stderr


def test_the_simulator_needs_no_torch_and_no_ros() -> None:
    script = (
        "import sys, oxygen_ros.demo.sim.expert, oxygen_ros.demo.sim.world, oxygen_ros.demo.sim.trajectory\n"
        "sys.exit(','.join(m for m in ('torch', 'rclpy') if m in sys.modules) or 0)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_other_tasks_have_their_own_color() -> None:
    world = World(1, Task("blue", 1))
    assert sum(block.color == "blue" for block in world.state().blocks) in (3, 4)
