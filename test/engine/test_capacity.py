# SPDX-License-Identifier: Apache-2.0
"""The planned slots are enough for the configured load at its worst, and hardly more than that.

Worst: every text runs to its token limit (a model without its end token), every cadence
falls on tick 1, and questions come in the pattern that holds the most prefixes.
"""

from __future__ import annotations

from collections.abc import Iterator

import engine_toy
import numpy as np
import pytest
from engine_toy import EOS, build, see
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.engine import MODES, Budget, FinishReason, Load, TextTask, plan_capacity, ticks_of_text

TICKS = 200


def _simulate(
    loads: list[Load], budget: Budget, mode: str, ticks: int = TICKS, draft: int = 0
) -> tuple[int, int, int, int]:
    """Run the worst case on the planned slots; returns planned and most used prefixes and suffixes.

    Questions keep `at_once` under way: a new one comes whenever there are fewer, one a tick.
    """
    capacity = plan_capacity(loads, budget, mode=mode, draft=draft)
    engine, model = build(
        mode=mode,
        prefixes=capacity.prefixes,
        suffixes=capacity.suffixes,
        suffix_tokens=capacity.suffix_tokens,
        max_rows=capacity.max_rows,
        draft=draft,
    )
    used = np.zeros(2, dtype=int)

    def look() -> None:
        used[:] = np.maximum(used, (engine.prefixes.used, engine.suffixes.used))

    model.before["extend"] = look
    asked: dict[int, int] = {}  # request -> its load
    for tick in range(1, ticks + 1):
        with engine.observe(see(tick)) as encoded:
            look()
            for number, load in enumerate(loads):
                under_way = sum(place == number for place in asked.values())
                due = (tick - 1) % load.every_n_ticks == 0 if load.every_n_ticks else under_way < load.at_once
                if due:
                    task = TextTask(
                        kind=f"kind {number}", prompt="a" * load.prompt_tokens, max_tokens=load.max_tokens
                    )
                    asked[engine.ask(encoded, task)] = number
        for text in engine.advance(budget):
            assert text.finish_reason is FinishReason.LENGTH, f"tick {tick}: {text.finish_reason}"
            del asked[text.id]
        engine.check_integrity()
        look()
    return capacity.prefixes, int(used[0]), capacity.suffixes, int(used[1])


@pytest.fixture(autouse=True, scope="module")
def endless() -> Iterator[None]:
    """Texts never end by themselves: the end token is the last the toy would say."""
    with pytest.MonkeyPatch.context() as patch:
        table = engine_toy._LOGITS.copy()
        table[:, EOS] = -1e9
        patch.setattr(engine_toy, "_LOGITS", table)
        yield


ROBOT = [Load(max_tokens=30, prompt_tokens=8), Load(max_tokens=20, prompt_tokens=11, every_n_ticks=5)]
QUESTIONS = Load(max_tokens=40, prompt_tokens=12, every_n_ticks=0, at_once=4)


@pytest.mark.parametrize("mode", ["oxygen", "batched"])
@pytest.mark.parametrize("draft", [0, 4])
def test_a_usual_load_fits_for_long(mode: str, draft: int) -> None:
    _simulate([*ROBOT, QUESTIONS], Budget(steps=4), mode, draft=draft)


@pytest.mark.parametrize("mode", ["shared", "isolated"])
def test_one_text_at_a_time_needs_one_slot(mode: str) -> None:
    prefixes, _, suffixes, used = _simulate([*ROBOT, QUESTIONS], Budget(steps=4), mode, ticks=10)
    assert (prefixes, suffixes, used) == (2, 1, 1)


def test_questions_of_earlier_ticks_hold_frames_beside_the_recurring_ones() -> None:
    """Three prefixes of the recurring text and four of older questions: seven at once."""
    loads = [Load(3, 1), Load(24, 1, every_n_ticks=0, at_once=4)]
    prefixes, used, _, _ = _simulate(loads, Budget(steps=1), "oxygen", ticks=60)
    assert (prefixes, used) == (8, 7)


def test_long_prompts_through_few_rows_take_steps_of_their_own() -> None:
    _simulate([Load(8, 20)], Budget(steps=2, rows=16), "oxygen")
    _simulate([Load(8, 20), Load(4, 9, every_n_ticks=2)], Budget(steps=4, rows=12), "batched")


loads = st.lists(
    st.builds(
        Load,
        max_tokens=st.integers(1, 12),
        prompt_tokens=st.integers(1, 10),
        every_n_ticks=st.integers(0, 4),
        at_once=st.integers(1, 3),
    ),
    min_size=1,
    max_size=3,
)


@settings(max_examples=25)
@given(loads=loads, steps=st.integers(1, 4), share=st.booleans())
def test_any_load_fits(loads: list[Load], steps: int, share: bool) -> None:
    """No refusal in 60 ticks, as long as every live text finds a row."""
    mode = "oxygen" if share else "batched"
    _simulate(loads, Budget(steps=steps, rows=64), mode, ticks=60)


@settings(max_examples=25)
@given(
    load=st.builds(
        Load, max_tokens=st.integers(1, 12), prompt_tokens=st.integers(1, 5), every_n_ticks=st.integers(1, 4)
    ),
    steps=st.integers(1, 4),
    share=st.booleans(),
)
def test_one_kind_is_planned_without_slack_but_the_next_observations_frame(
    load: Load, steps: int, share: bool
) -> None:
    mode = "oxygen" if share else "batched"
    prefixes, used, suffixes, most = _simulate([load], Budget(steps=steps), mode, ticks=40)
    assert suffixes == most
    assert prefixes <= used + 1


@settings(max_examples=25)
@given(loads=loads, steps=st.integers(1, 4))
def test_several_kinds_are_planned_within_a_stated_slack(loads: list[Load], steps: int) -> None:
    """Suffixes at most one for each kind too many (cadences that never meet at their worst)."""
    loads = [load for load in loads if load.every_n_ticks] or [Load(5, 2)]
    _, _, suffixes, most = _simulate(loads, Budget(steps=steps), "oxygen", ticks=60)
    assert suffixes <= most + len(loads) - 1


@pytest.mark.parametrize(("tokens", "steps", "ticks"), [(30, 4, 8), (32, 4, 8), (1, 4, 1), (5, 0, 5)])
def test_ticks_of_text_is_a_ceiling(tokens: int, steps: int, ticks: int) -> None:
    assert ticks_of_text(tokens, steps) == ticks


def test_the_plan_of_a_known_load() -> None:
    """30 tokens at 4 a tick live 8 ticks, 20 tokens every 5 ticks live 5: 8 + 1 texts, 8 prefixes."""
    plan = plan_capacity(ROBOT, Budget(steps=4), draft=3)
    assert (plan.prefixes, plan.suffixes, plan.suffix_tokens, plan.max_rows) == (9, 9, 41, 64)
    alone = plan_capacity(ROBOT, Budget(steps=4), mode="batched")
    assert (alone.prefixes, alone.suffixes) == (10, 9)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_no_text_at_all_still_has_the_two_frames_of_actions(mode: str) -> None:
    plan = plan_capacity([], Budget(), mode=mode)
    assert (plan.prefixes, plan.suffixes) == (2, 1)
