# SPDX-License-Identifier: Apache-2.0
"""Every way a text ends: the reason, the text, the counter, exactly once."""

from __future__ import annotations

import pytest
from engine_toy import PIECES, FakeClock, Recital, build, recite, see

from oxygen_ros.engine import MODES, Budget, Engine, FinishedText, FinishReason, TextTask
from oxygen_ros.engine.engine import cut_at_stop
from oxygen_ros.observation import Observation

BASE = {"kind": "memory", "prompt": "abc", "max_tokens": 16}


def _find(reason: FinishReason, at_least: int = 4) -> tuple[Observation, Recital]:
    """An observation whose text ends in this way after some tokens."""
    for content in range(200):
        alone = recite(see(5, content), TextTask(**BASE))  # type: ignore[arg-type]
        if alone.reason is reason and len(alone.tokens) >= at_least:
            return see(5, content), alone
    raise AssertionError(f"no toy text ends by {reason}")


def _run(observation: Observation, mode: str = "oxygen", **limits: object) -> tuple[Engine, FinishedText]:
    engine, _ = build(mode=mode)
    with engine.observe(observation) as encoded:
        engine.ask(encoded, TextTask(**{**BASE, **limits}))  # type: ignore[arg-type]
    done: list[FinishedText] = []
    while not done:
        done = engine.advance(Budget(steps=3))
        engine.check_integrity()
    assert engine.advance(Budget(steps=3)) == []
    assert (engine.live, engine.prefixes.used, engine.suffixes.used) == (0, 0, 0)
    (text,) = done
    return engine, text


@pytest.mark.parametrize("mode", sorted(MODES))
def test_eos_ends_a_text_and_is_no_part_of_it(mode: str) -> None:
    observation, alone = _find(FinishReason.EOS)
    engine, text = _run(observation, mode)
    assert (text.finish_reason, text.tokens, text.text) == (FinishReason.EOS, alone.tokens, alone.text)
    assert 0 not in text.tokens
    assert engine.counters.finished == 1
    assert text.steps == len(alone.tokens) + 1  # the end token is a step, the prompt none of its own


@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_token_limit_ends_a_text(mode: str) -> None:
    observation, alone = _find(FinishReason.LENGTH)
    engine, text = _run(observation, mode)
    assert (text.finish_reason, text.tokens, text.text) == (FinishReason.LENGTH, alone.tokens, alone.text)
    assert (len(text.tokens), text.steps, engine.counters.finished) == (16, 16, 1)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_stop_text_is_cut_off_also_when_it_spans_tokens(mode: str) -> None:
    """The stop is the last letter of one token and the first of the next."""
    observation, alone = _find(FinishReason.LENGTH)
    pieces = [PIECES[token] for token in alone.tokens]
    stop = pieces[5][-1] + pieces[6][0]
    whole = "".join(pieces)
    engine, text = _run(observation, mode, stop=("zz", stop))
    assert text.finish_reason is FinishReason.STOP
    assert text.text == whole[: whole.find(stop)]
    assert stop not in text.text
    assert len(text.tokens) <= 7
    assert text.tokens == alone.tokens[: len(text.tokens)]
    assert engine.counters.finished == 1


def test_the_earliest_of_several_stops_counts() -> None:
    observation, alone = _find(FinishReason.LENGTH)
    whole = "".join(PIECES[token] for token in alone.tokens)
    stops = (whole[8:10], whole[3:5])
    _, text = _run(observation, stop=stops)
    assert text.text == whole[: min(whole.find(stop) for stop in stops)]


def test_age_ends_a_text_after_that_many_ticks() -> None:
    """Asked at tick 1 with an age of 3: it advances in ticks 1, 2 and 3, and expires in tick 4."""
    observation, alone = _find(FinishReason.LENGTH)
    engine, _ = build()
    with engine.observe(observation) as encoded:
        engine.ask(encoded, TextTask(**BASE, max_age=3))  # type: ignore[arg-type]
    for tick in (1, 2, 3):
        if tick > 1:
            engine.observe(see(tick)).close()
        assert engine.advance(Budget(steps=2)) == []
    engine.observe(see(4)).close()
    (text,) = engine.advance(Budget(steps=2))
    assert (text.finish_reason, text.tokens) == (FinishReason.AGE, alone.tokens[:6])
    assert (text.tick_asked, text.tick_finished, text.stamp) == (1, 4, observation.stamp)
    assert (engine.counters.expired, engine.counters.finished) == (1, 0)


def test_with_no_slack_at_all_texts_expire_and_are_reported() -> None:
    engine, _ = build()
    ended: list[FinishedText] = []
    for tick in range(1, 21):
        with engine.observe(see(tick)) as encoded:
            engine.ask(encoded, TextTask(**BASE, max_age=2))  # type: ignore[arg-type]
        ended += engine.advance(Budget(steps=4), due=engine.clock())
        engine.check_integrity()
    assert [text.id for text in ended] == list(range(1, 19))
    assert {text.finish_reason for text in ended} == {FinishReason.AGE}
    assert engine.counters.expired == 18


@pytest.mark.parametrize("waiting", [True, False])
@pytest.mark.parametrize("reason", [FinishReason.CANCELLED, FinishReason.DEACTIVATED, FinishReason.ERROR])
def test_cancel_ends_one_or_all(waiting: bool, reason: FinishReason) -> None:
    """Those still waiting for admission as well."""
    observation, alone = _find(FinishReason.LENGTH)
    engine, _ = build()
    with engine.observe(observation) as encoded:
        ids = [engine.ask(encoded, TextTask(**BASE)) for _ in range(3)]  # type: ignore[arg-type]
    tokens = () if waiting else alone.tokens[:2]
    if not waiting:
        engine.advance(Budget(steps=2))
    (text,) = engine.cancel(reason, ids[1])
    assert (text.id, text.finish_reason, text.tokens) == (ids[1], reason, tokens)
    assert engine.cancel(reason, ids[1]) == []
    engine.check_integrity()
    assert {text.id for text in engine.cancel(reason)} == {ids[0], ids[2]}
    assert engine.cancel(reason) == []
    engine.check_integrity()
    assert (engine.live, engine.prefixes.used, engine.counters.cancelled) == (0, 0, 3)


def test_the_others_go_on_after_one_is_cancelled() -> None:
    observation, alone = _find(FinishReason.LENGTH)
    engine, _ = build()
    with engine.observe(observation) as encoded:
        first, second = (engine.ask(encoded, TextTask(**BASE)) for _ in range(2))  # type: ignore[arg-type]
    engine.advance(Budget(steps=3))
    engine.cancel(FinishReason.CANCELLED, first)
    (text,) = engine.advance(Budget(steps=30))
    assert (text.id, text.tokens) == (second, alone.tokens)


def test_rejected_and_dropped_are_reported() -> None:
    for when_full, reason, loser in (
        ("reject_new", FinishReason.REJECTED, 2),
        ("drop_oldest", FinishReason.DROPPED, 1),
    ):
        engine, _ = build(suffixes=1, when_full=when_full)
        ended: list[FinishedText] = []
        for tick in (1, 2):
            with engine.observe(see(tick)) as encoded:
                engine.ask(encoded, TextTask(**BASE))  # type: ignore[arg-type]
            ended += engine.advance(Budget(steps=1))
        assert [(text.id, text.finish_reason) for text in ended] == [(loser, reason)]
        assert not reason.is_complete


def test_seconds_run_from_the_question_to_the_end() -> None:
    clock = FakeClock()
    engine, _ = build(clock=clock)
    with engine.observe(see(1)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="a", max_tokens=1))
    clock.sleep(2.5)
    (text,) = engine.advance(Budget(steps=1))
    assert text.seconds == pytest.approx(2.5)


def test_a_text_is_cut_at_the_first_of_several_occurrences_of_a_stop() -> None:
    """One token may hold a stop text more than once."""
    assert cut_at_stop("go. stop. end.", (".",)) == "go"
    assert cut_at_stop("go! stop. end!", (".", "!")) == "go"
    assert cut_at_stop("...", ("..",)) == ""
    assert cut_at_stop("go on", (".",)) == "go on"


def test_a_task_tells_its_prompt_with_the_words_filled_in() -> None:
    task = TextTask(kind="answer", prompt="Q {question} {other} A", words={"question": "{other}?"})
    assert task.text == "Q {other}? {other} A"
