# SPDX-License-Identifier: Apache-2.0
"""The shipped policy with bad inputs: never a jump, and it reports what is wrong.

A joint that is lost never reaches the policy: the node publishes no chunk then (test/node/test_inputs.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim import words
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World, rest_joints
from oxygen_ros.demo.training.rollout import EpisodeSetup, make_session
from oxygen_ros.models import Model, load_model

MODEL = Path(__file__).resolve().parents[3] / "resource" / "demo_model"
STAMP = 1_000_000_000


@pytest.fixture(scope="module")
def model() -> Model:
    return load_model(MODEL)


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    world = World(7)
    yield world
    world.close()


def look(world: World, model: Model) -> dict[str, NDArray[np.uint8]]:
    size = model.spec.image_size[0]
    return {name: world.render(name, size, size) for name in model.spec.cameras}


def chunks_and_words(
    model: Model, instruction: str, images: dict[str, NDArray[np.uint8]], joints: NDArray[np.float64]
) -> tuple[list[NDArray[np.float64]], list[str]]:
    """Chunks and narrations of a few ticks over one picture."""
    session = make_session(model, "oxygen", EpisodeSetup(), instruction)
    chunks: list[NDArray[np.float64]] = []
    said: list[str] = []
    for tick in range(4):
        chunks.append(session.begin(STAMP * (tick + 1), images, joints).actions)
        report = session.finish()
        said += [text.text.strip() for text in report.finished if text.kind == "narration"]
    said += [text.text.strip() for text in session.drain() if text.kind == "narration"]
    return chunks, said


def assert_no_jump(chunks: list[NDArray[np.float64]], joints: NDArray[np.float64], step: float) -> None:
    """From where the arm is and from action to action no joint is asked for much more than its speed."""
    for chunk in chunks:
        assert np.isfinite(chunk).all()
        moves = np.abs(np.diff(np.vstack([joints, chunk]), axis=0))[:, :6]
        assert (moves <= 1.5 * g.JOINT_SPEED[:6] * step).all()


def assert_still(chunks: list[NDArray[np.float64]], joints: NDArray[np.float64]) -> None:
    for chunk in chunks:
        assert np.abs(chunk[:, :6] - joints[:6]).max() < 0.05


@pytest.mark.parametrize(
    "instruction", ["open the door", "put three red blocks in the box", "xqzv", "dance", ""]
)
def test_an_instruction_that_was_never_taught(world: World, model: Model, instruction: str) -> None:
    """The arm stays and reports it."""
    world.reset(7)
    chunks, said = chunks_and_words(model, instruction, look(world, model), rest_joints())
    assert_no_jump(chunks, rest_joints(), model.spec.experts[0].step)
    assert_still(chunks, rest_joints())
    assert set(said) == {words.UNTAUGHT}


@pytest.mark.parametrize("camera", ["top", "wrist"])
def test_a_covered_camera(world: World, model: Model, camera: str) -> None:
    world.reset(7)
    images = look(world, model)
    images[camera] = np.zeros_like(images[camera])
    chunks, said = chunks_and_words(model, Task().instruction, images, rest_joints())
    assert_no_jump(chunks, rest_joints(), model.spec.experts[0].step)
    assert_still(chunks, rest_joints())
    assert set(said) == {words.BLIND}


def test_a_block_that_is_moved(world: World, model: Model) -> None:
    """Whatever the picture shows next: the new chunk begins where the arm is."""
    world.reset(7)
    red = [i for i, block in enumerate(world.state().blocks) if block.color == "red"]
    for place in ((0.30, -0.10), (0.42, 0.03), (0.28, 0.05)):
        world.place_block(red[0], (*place, g.BLOCK / 2))
        chunks, _ = chunks_and_words(model, Task().instruction, look(world, model), rest_joints())
        assert_no_jump(chunks, rest_joints(), model.spec.experts[0].step)
