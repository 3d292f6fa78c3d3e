# SPDX-License-Identifier: Apache-2.0
"""Text paused, mixed and resumed is the text run alone by full recompute, whatever else happens.

The big random test of the engine. The reference (`recite`) has no slots, no cache and no engine; integrity is
checked after every call.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import pytest
from engine_toy import build, chunk_of, recite, see
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.engine import MODES, Budget, Engine, FinishedText, FinishReason, TextTask
from oxygen_ros.observation import Observation

SUFFIX_TOKENS = 26  # prompts of up to 8 tokens, texts of up to 18

tasks = st.builds(
    TextTask,
    kind=st.sampled_from(("memory", "narration", "answer")),
    prompt=st.text("abcde", min_size=1, max_size=8),
    max_tokens=st.integers(1, 18),
    max_age=st.sampled_from((0, 0, 0, 1, 2, 5)),
    stop=st.sampled_from(((), (), ("b",), ("ab",), ("cd", "?a"))),
    temperature=st.sampled_from((0.0, 0.0, 0.7, 1.5)),
    top_p=st.sampled_from((1.0, 0.8, 0.3)),
    seed=st.integers(0, 2),
    adapter=st.sampled_from(("", "plain", "terse")),
)
budgets = st.builds(Budget, steps=st.integers(0, 7), rows=st.integers(1, 12))


@dataclass
class Tick:
    """What one random tick does."""

    content: int
    asks: list[TextTask]
    budget: Budget
    cancel: int | None  # which of the requests so far to cancel
    hold: bool  # whether the prefix stays open while text advances


ticks = st.builds(
    Tick,
    content=st.integers(0, 2),
    asks=st.lists(tasks, max_size=4),
    budget=budgets,
    cancel=st.one_of(st.none(), st.none(), st.integers(0, 5)),
    hold=st.booleans(),
)


@dataclass
class Account:
    """What was asked and what came back."""

    asked: dict[int, tuple[Observation, TextTask, int]] = field(default_factory=dict)
    ended: dict[int, FinishedText] = field(default_factory=dict)

    def take(self, finished: Iterable[FinishedText]) -> None:
        for text in finished:
            assert text.id not in self.ended, "a request ended twice"
            self.ended[text.id] = text
            self._compare(text)

    def _compare(self, text: FinishedText) -> None:
        observation, task, tick = self.asked[text.id]
        alone = recite(observation, task)
        assert (text.stamp, text.kind, text.prompt) == (observation.stamp, task.kind, task.prompt)
        assert text.tick_asked == tick
        if text.finish_reason.is_complete:
            assert (text.tokens, text.finish_reason, text.text) == (alone.tokens, alone.reason, alone.text)
        else:
            assert text.tokens == alone.tokens[: len(text.tokens)]
        if text.finish_reason is FinishReason.AGE:
            assert text.tick_finished - tick == task.max_age


def _spend(engine: Engine, budget: Budget, account: Account) -> None:
    before = engine.counters.decode_steps
    account.take(engine.advance(budget))
    engine.check_integrity()
    if engine.batches:
        assert engine.counters.decode_steps - before <= budget.steps


@settings(max_examples=120)
@given(
    plan=st.lists(ticks, min_size=1, max_size=10),
    mode=st.sampled_from(sorted(MODES)),
    prefixes=st.integers(2, 6),
    suffixes=st.integers(1, 6),
    max_rows=st.integers(1, 10),
    when_full=st.sampled_from(("reject_new", "drop_oldest")),
    draft=st.sampled_from((0, 1, 3, 8)),
    repeat=st.booleans(),
)
def test_any_run_gives_the_text_alone(
    plan: list[Tick],
    mode: str,
    prefixes: int,
    suffixes: int,
    max_rows: int,
    when_full: str,
    draft: int,
    repeat: bool,
) -> None:
    engine, model = build(
        mode=mode,
        prefixes=prefixes,
        suffixes=suffixes,
        suffix_tokens=SUFFIX_TOKENS,
        max_rows=max_rows,
        when_full=when_full,
        draft=draft,
        repeat_on_device=repeat,
    )
    pools = (id(model.prefixes), id(model.suffixes))
    account = Account()
    for number, tick in enumerate(plan, start=1):
        observation = see(1000 * number, tick.content)
        with engine.observe(observation) as encoded:
            engine.check_integrity()
            for task in tick.asks:
                account.asked[engine.ask(encoded, task)] = (observation, task, number)
                engine.check_integrity()
            if tick.cancel is not None:
                account.take(engine.cancel(FinishReason.CANCELLED, tick.cancel))
                engine.check_integrity()
            if tick.hold:
                _spend(engine, tick.budget, account)
            assert np.array_equal(engine.act(encoded), chunk_of(observation))
        engine.check_integrity()
        if not tick.hold:
            _spend(engine, tick.budget, account)
        assert engine.live == len(account.asked) - len(account.ended)
        assert (id(model.prefixes), id(model.suffixes)) == pools, "a pool was made anew"
    while engine.live:
        _spend(engine, Budget(steps=3, rows=5), account)
    assert account.ended.keys() == account.asked.keys()
    assert (engine.prefixes.used, engine.suffixes.used) == (0, 0)
    _compare_counters(engine, account)


def _compare_counters(engine: Engine, account: Account) -> None:
    reasons = [text.finish_reason for text in account.ended.values()]
    counters = engine.counters
    assert counters.finished == sum(reason.is_complete for reason in reasons)
    assert counters.expired == reasons.count(FinishReason.AGE)
    assert counters.rejected == reasons.count(FinishReason.REJECTED)
    assert counters.dropped == reasons.count(FinishReason.DROPPED)
    assert counters.cancelled == reasons.count(FinishReason.CANCELLED)


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("draft", [0, 4])
def test_every_mode_ends_every_text_when_there_is_room(mode: str, repeat: bool, draft: int) -> None:
    """With room nothing is refused: each text is complete, and all modes give the same ones."""
    engine, _ = build(
        mode=mode,
        prefixes=40,
        suffixes=40,
        suffix_tokens=40,
        repeat_on_device=repeat,
        draft=draft,
        max_rows=64,
    )
    kinds = ("memory", "narration", "answer")
    account = Account()
    for number in range(1, 31):
        observation = see(number, number % 3)
        with engine.observe(observation) as encoded:
            for place, kind in enumerate(kinds[: 1 + number % 3]):
                task = TextTask(
                    kind=kind,
                    prompt=kind,
                    max_tokens=20,
                    temperature=0.8 * (place == 1),
                    top_p=0.9,
                    seed=number,
                )
                account.asked[engine.ask(encoded, task)] = (observation, task, number)
        _spend(engine, Budget(steps=4), account)
    while engine.live:
        _spend(engine, Budget(steps=4), account)
    assert account.ended.keys() == account.asked.keys()
    assert all(text.finish_reason.is_complete for text in account.ended.values())
    assert {text.finish_reason for text in account.ended.values()} == {FinishReason.EOS, FinishReason.LENGTH}


@settings(max_examples=60)
@given(
    task=tasks,
    cuts=st.lists(budgets.filter(lambda budget: budget.steps > 0), min_size=1, max_size=6),
    repeat=st.booleans(),
)
def test_a_text_is_the_same_however_it_is_cut(task: TextTask, cuts: list[Budget], repeat: bool) -> None:
    """One text alone, paused after any number of steps."""
    task = TextTask(**{**{name: getattr(task, name) for name in task.__slots__}, "max_age": 0})
    engine, _ = build(suffix_tokens=SUFFIX_TOKENS, repeat_on_device=repeat)
    observation = see(7, 1)
    with engine.observe(observation) as encoded:
        engine.ask(encoded, task)
    done: list[FinishedText] = []
    while not done:
        for budget in cuts:
            done += engine.advance(budget)
            engine.check_integrity()
    (text,) = done
    alone = recite(observation, task)
    assert (text.tokens, text.finish_reason, text.text) == (alone.tokens, alone.reason, alone.text)
