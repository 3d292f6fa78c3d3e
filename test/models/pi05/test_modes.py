# SPDX-License-Identifier: Apache-2.0
"""What must not change an output of pi0.5: the mode, drafts, repetition on the device, text load.

Equality between runs of our own; that the outputs are right is tested in test_recompute.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from models_scene import ROOMY, drive, make_model, observe, task

from oxygen_ros.engine import MODES, Budget, make_engine

TICKS = 13
CAMERAS = (("top", "wrist"), ("wrist",), ("top",))
SCRIPT = {
    tick: (
        observe(tick, cameras=CAMERAS[tick % 3], instruction="stack " * (tick % 4), memory="m" * (tick % 3)),
        [
            task("memory", max_tokens=6),
            *([task("narration", max_tokens=9)] if tick % 2 else []),
            *(
                [task("answer", words={"question": f"what is it at tick {tick}?"}, max_tokens=4)]
                if tick % 5 == 0
                else []
            ),
            *(
                [task("subtask", max_tokens=5, temperature=0.8, top_p=0.9, seed=tick)]
                if tick % 3 == 0
                else []
            ),
        ],
    )
    for tick in range(1, TICKS + 1)
}
BUDGET = Budget(steps=3, rows=32)


def run(network, script=SCRIPT, budget=BUDGET, *, over_pool=False, mode="oxygen", **options):
    engine = make_engine(mode, make_model(network, over_pool=over_pool), ROOMY, **options)
    return engine, drive(engine, script, budget)


@pytest.fixture(scope="module")
def ours(demo_network):
    return run(demo_network)


def assert_same(outcome, expected) -> None:
    assert outcome.words() == expected.words()
    assert outcome.chunks.keys() == expected.chunks.keys()
    for tick, chunk in expected.chunks.items():
        np.testing.assert_array_equal(outcome.chunks[tick], chunk, err_msg=f"chunk of tick {tick}")


def test_the_run_is_worth_comparing(ours) -> None:
    engine, outcome = ours
    assert engine.counters.prefills == TICKS
    reasons = {text.finish_reason for text in outcome.texts.values()}
    assert reasons == {"eos", "length"}
    assert len(set(outcome.words().values())) > len(outcome.texts) // 2
    assert engine.counters.rejected == 0
    assert any(text.tick_finished > text.tick_asked + 1 for text in outcome.texts.values())


@pytest.mark.parametrize("mode", MODES)
def test_the_four_modes_give_the_same_outputs(demo_network, ours, mode: str) -> None:
    engine, outcome = run(demo_network, mode=mode)
    assert engine.mode == mode
    assert_same(outcome, ours[1])
    assert engine.counters.prefills == TICKS + (0 if mode in ("shared", "oxygen") else len(outcome.texts))


@pytest.mark.parametrize("draft", [1, 6])
def test_drafts_change_nothing_but_the_steps(demo_network, draft: int) -> None:
    """The same scene again and again: drafts are right and wrong in turn, the ids stay."""
    script = {
        tick: (
            replace(observe(1 + tick // 3), stamp=tick),
            [task("memory", max_tokens=9), task("narration", max_tokens=8)],
        )
        for tick in range(1, 10)
    }
    (_, expected), (_, outcome) = run(demo_network, script), run(demo_network, script, draft=draft)
    assert_same(outcome, expected)
    steps = [sum(text.steps for text in o.texts.values()) for o in (expected, outcome)]
    assert steps[1] < steps[0], "no draft was ever right: the test shows nothing"


@pytest.mark.parametrize(("over_pool", "draft"), [(False, 0), (False, 3), (True, 0)])
def test_repeating_on_the_device_changes_nothing(demo_network, ours, over_pool: bool, draft: int) -> None:
    _, outcome = run(demo_network, over_pool=over_pool, repeat_on_device=True, draft=draft)
    assert_same(outcome, ours[1])


def test_attention_over_the_pool_changes_nothing(demo_network, ours) -> None:
    _, outcome = run(demo_network, over_pool=True)
    assert_same(outcome, ours[1])


def test_chunks_are_bitwise_the_same_whatever_the_text_load(demo_network, ours) -> None:
    silent = {tick: (observation, []) for tick, (observation, _) in SCRIPT.items()}
    loud = {
        tick: (observation, [replace(task("memory"), max_tokens=20), task("narration", max_tokens=20)])
        for tick, (observation, _) in SCRIPT.items()
    }
    for script in (silent, loud):
        _, outcome = run(demo_network, script, Budget(steps=2, rows=32))
        for tick, chunk in ours[1].chunks.items():
            np.testing.assert_array_equal(outcome.chunks[tick], chunk, err_msg=f"chunk of tick {tick}")
