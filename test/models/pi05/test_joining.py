# SPDX-License-Identifier: Apache-2.0
"""Real-time chunking through a whole session: the denoiser is guided to what will have been executed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from models_scene import DELTA, ROOMY, make_model, observe, task
from numpy.typing import NDArray

from oxygen_ros.engine import MODES, Budget, FinishReason, Session, TextKind, make_engine
from oxygen_ros.observation import Observation
from oxygen_ros.robot.chunk import Chunk
from oxygen_ros.robot.joining import ChunkJoiner, JoinRule
from oxygen_ros.robot.limits import Limits

RULE = JoinRule("rtc", delay=4, schedule="exp", max_weight=10.0)
STEP_NS = 100_000_000


class Robot:
    """Publishes what a session makes, and remembers it in the joiner."""

    def __init__(self, network: Any, rule: JoinRule, mode: str = "oxygen") -> None:
        self.model = make_model(network)
        self.joiner = ChunkJoiner(rule, Limits({}, "clamp"))
        self.chunks: list[NDArray[np.float64]] = []
        memory = TextKind(task("memory", max_tokens=4), every_n_ticks=2, feed_after=3)
        self.session = Session(
            make_engine(mode, self.model, ROOMY), [memory], Budget(steps=2, rows=32), instruction="stack"
        )

    def tick(self, seen: Observation) -> NDArray[np.float64]:
        expert = self.model.spec.experts[0]
        leftover = self.joiner.find_leftover(seen.stamp, seen.joints, expert.horizon, expert.step)
        started = self.session.begin(seen.stamp, seen.images, seen.joints, leftover)
        chunk = self.joiner.blend(Chunk(seen.stamp, expert.step, expert.action_space, started.actions))
        self.joiner.remember(chunk)
        self.chunks.append(chunk.values)
        self.session.finish()
        return chunk.values

    def instruct(self, words: str) -> None:
        self.session.instruct(words)
        self.joiner.forget(still_followed=True)

    def stop(self) -> None:
        self.session.stop(FinishReason.CANCELLED)
        self.joiner.forget()


@pytest.fixture
def make(demo_network: Any) -> Callable[..., Robot]:
    return lambda rule=RULE, mode="oxygen": Robot(demo_network, rule, mode)


def test_normalize_undoes_unprocess(demo_network: Any) -> None:
    model, seen = make_model(demo_network), observe(3)
    actions = np.random.default_rng(0).normal(0.0, 1.0, (model.spec.experts[0].horizon, 7))
    again = model.unprocess(model.normalize(actions, seen), seen)
    np.testing.assert_allclose(again, actions, atol=1e-5)


def test_deltas_are_seen_from_the_observation_of_now(demo_network: Any) -> None:
    """The same place, seen from joints that have moved: the deltas are smaller by that, the rest the same."""
    model, seen = make_model(demo_network), observe(3)
    moved = replace(seen, joints=seen.joints + 0.25)
    actions = np.zeros((model.spec.experts[0].horizon, 7))
    before, after = (model.normalize(actions, o).double().numpy() for o in (seen, moved))
    names = model.spec.experts[0].action_space.joints
    delta = np.array([name in DELTA for name in names])
    shift = model.normalize(actions + 0.25 * delta, moved).double().numpy()
    np.testing.assert_allclose(shift, before, atol=1e-5)
    assert (before[:, ~delta] == after[:, ~delta]).all()


def test_the_new_chunk_goes_on_where_the_old_one_leads(make: Callable[..., Robot]) -> None:
    """Other pictures and joints each tick: alone, a chunk jumps away; guided, it starts on the old way."""
    guided, alone = make(), make(JoinRule("replace"))
    first, second = observe(1), observe(2)
    assert (guided.tick(first) == alone.tick(first)).all()  # the first chunk has no one before it
    old = guided.chunks[0]
    new, free = guided.tick(second), alone.tick(second)
    # One step later: action i of the new chunk is due when action i + 1 of the old one is.
    frozen = slice(0, RULE.delay)
    away = np.abs(free[frozen] - old[1:5]).max()
    held = np.abs(new[frozen] - old[1:5]).max()
    assert away > 0.3
    assert held < 0.15 * away
    # The end of the chunk is its own: closer to the free chunk than to the old one.
    assert np.abs(new[-1] - free[-1]).mean() < np.abs(new[-1] - old[-1]).mean()


@pytest.mark.parametrize("mode", sorted(MODES))
def test_all_modes_of_execution_give_the_same_joined_chunks(make: Callable[..., Robot], mode: str) -> None:
    robots = make(), make(mode=mode)
    for tick in (1, 2, 3):
        one, other = (robot.tick(observe(tick)) for robot in robots)
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_a_replay_gives_the_same_chunks_again(make: Callable[..., Robot]) -> None:
    """Only stamps, pictures, joints and texts matter."""
    robots = make(), make()
    for tick in (1, 2, 4, 5):
        one, other = (robot.tick(observe(tick)) for robot in robots)
        assert (one == other).all()


def test_another_instruction_and_a_stop_leave_nothing_to_join(make: Callable[..., Robot]) -> None:
    """The chunk after them is what it would be without one before."""
    ends: dict[str, Callable[[Robot], object]] = {
        "other words": lambda robot: robot.instruct("sort"),
        "the same again": lambda robot: robot.instruct("stack"),
        "stopped": lambda robot: robot.stop(),
        "held": lambda robot: robot.joiner.forget(),
    }
    for words, end in ends.items():
        guided, alone = make(), make(JoinRule("replace"))
        for robot in (guided, alone):
            robot.tick(observe(1))
            end(robot)
            robot.tick(observe(2))
        assert (guided.chunks[1] == alone.chunks[1]).all(), words
        # And the one after is joined again.
        assert (guided.tick(observe(3)) != alone.tick(observe(3))).any(), words


def test_time_that_went_back_joins_nothing(make: Callable[..., Robot]) -> None:
    guided, alone = make(), make(JoinRule("replace"))
    for robot in (guided, alone):
        robot.tick(observe(5))
        robot.tick(observe(3))
    assert (guided.chunks[1] == alone.chunks[1]).all()


def test_blend_mixes_the_published_chunk_and_leaves_the_denoiser_alone(make: Callable[..., Robot]) -> None:
    rule = JoinRule("blend", delay=2, overlap=0)
    blended, alone = make(rule), make(JoinRule("replace"))
    for robot in (blended, alone):
        robot.tick(observe(1))
        robot.tick(observe(2))
    old, new, free = blended.chunks[0], blended.chunks[1], alone.chunks[1]
    np.testing.assert_allclose(new[:2], old[1:3], atol=1e-12)
    assert (new[2:] == free[2:]).all()
