# SPDX-License-Identifier: Apache-2.0
"""When text is full: a policy and a counter, never an error, never a lost prefix slot."""

from __future__ import annotations

import pytest
from engine_toy import build, see
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.engine import Budget, Engine, FinishedText, FinishReason, TextTask

NONE = Budget(steps=0)


def _task(kind: str = "memory", max_tokens: int = 30) -> TextTask:
    return TextTask(kind=kind, prompt="abc", max_tokens=max_tokens, priority=10 * (kind == "answer"))


def _tick(engine: Engine, stamp: int, *kinds: str) -> tuple[list[int], list[FinishedText]]:
    """One tick that asks for `kinds` and advances by no step."""
    with engine.observe(see(stamp)) as encoded:
        ids = [engine.ask(encoded, _task(kind)) for kind in kinds]
    done = engine.advance(NONE)
    engine.check_integrity()
    return ids, done


def _reasons(done: list[FinishedText]) -> dict[int, FinishReason]:
    return {text.id: text.finish_reason for text in done}


def test_reject_new_keeps_the_old() -> None:
    engine, _ = build(suffixes=2)
    (first, second), done = _tick(engine, 1, "memory", "narration")
    assert done == []
    (third,), done = _tick(engine, 2, "memory")
    assert _reasons(done) == {third: FinishReason.REJECTED}
    assert [request.id for request in engine._scheduler.live] == [first, second]
    assert (engine.counters.rejected, engine.counters.dropped, engine.prefixes.used) == (1, 0, 1)
    assert (done[0].tokens, done[0].text, done[0].steps) == ((), "", 0)


def test_drop_oldest_makes_room_for_the_new() -> None:
    engine, _ = build(suffixes=2, when_full="drop_oldest")
    (first, second), _ = _tick(engine, 1, "memory", "narration")
    (third,), done = _tick(engine, 2, "memory")
    assert _reasons(done) == {first: FinishReason.DROPPED}
    assert [request.id for request in engine._scheduler.live] == [second, third]
    assert (engine.counters.rejected, engine.counters.dropped) == (0, 1)


def test_a_dropped_text_keeps_what_it_had() -> None:
    engine, _ = build(suffixes=1, when_full="drop_oldest")
    with engine.observe(see(1, 1)) as encoded:
        engine.ask(encoded, _task())
    engine.advance(Budget(steps=2))
    _, (text,) = _tick(engine, 2, "memory")
    assert (text.finish_reason, len(text.tokens), text.steps) == (FinishReason.DROPPED, 2, 2)


@pytest.mark.parametrize("when_full", ["reject_new", "drop_oldest"])
def test_an_answer_is_admitted_before_its_tick_mates(when_full: str) -> None:
    engine, _ = build(suffixes=2, when_full=when_full)
    (memory, narration, answer), done = _tick(engine, 1, "memory", "narration", "answer")
    assert [request.id for request in engine._scheduler.live] == [answer, memory]
    assert _reasons(done) == {narration: FinishReason.REJECTED}


def test_drop_oldest_never_drops_a_tick_mate() -> None:
    """Else the first in the line, the answers, would be the first to go."""
    engine, _ = build(suffixes=1, when_full="drop_oldest")
    (old,), _ = _tick(engine, 1, "memory")
    (memory, answer), done = _tick(engine, 2, "memory", "answer")
    assert _reasons(done) == {old: FinishReason.DROPPED, memory: FinishReason.REJECTED}
    assert [request.id for request in engine._scheduler.live] == [answer]


def test_frames_can_be_what_is_short() -> None:
    """Three prefix slots: texts may hold two, the third is the next observation's."""
    engine, _ = build(prefixes=3, suffixes=8)
    for stamp in (1, 2):
        assert _tick(engine, stamp, "memory", "narration")[1] == []
    ids, done = _tick(engine, 3, "memory", "answer")
    assert _reasons(done) == dict.fromkeys(ids, FinishReason.REJECTED)
    assert (engine.prefixes.used, engine.suffixes.used) == (2, 4)


def test_drop_oldest_frees_a_frame_by_dropping_all_its_readers() -> None:
    engine, _ = build(prefixes=3, suffixes=8, when_full="drop_oldest")
    (first, second), _ = _tick(engine, 1, "memory", "narration")
    _tick(engine, 2, "memory")
    _, done = _tick(engine, 3, "memory")
    assert _reasons(done) == {first: FinishReason.DROPPED, second: FinishReason.DROPPED}
    assert engine.prefixes.used == 2


@settings(max_examples=120)
@given(
    mode=st.sampled_from(("oxygen", "batched", "shared", "isolated")),
    prefixes=st.integers(2, 4),
    suffixes=st.integers(1, 8),
    when_full=st.sampled_from(("reject_new", "drop_oldest")),
    load=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 2), st.booleans()), min_size=1, max_size=15),
)
def test_observe_never_fails_while_earlier_frames_are_closed(
    mode: str, prefixes: int, suffixes: int, when_full: str, load: list[tuple[int, int, bool]]
) -> None:
    engine, _ = build(mode=mode, prefixes=prefixes, suffixes=suffixes, when_full=when_full)
    for stamp, (asks, steps, inside) in enumerate(load):
        with engine.observe(see(stamp)) as encoded:
            for number in range(asks):
                engine.ask(encoded, _task("answer" if number == 2 else "memory", max_tokens=5))
            if inside:
                engine.advance(Budget(steps=steps))
                engine.check_integrity()
        engine.advance(Budget(steps=steps))
        engine.check_integrity()
        assert engine.prefixes.free >= 1
        if when_full == "drop_oldest" and asks and steps == 0 and engine.batches and not inside:
            assert any(request.encoded.observation.stamp == stamp for request in engine._scheduler.live)


def test_no_memory_grows_however_much_is_asked() -> None:
    engine, model = build(prefixes=3, suffixes=3, when_full="drop_oldest")
    bytes_before, pools = model.pool_bytes(), (model.prefixes, model.suffixes)
    for stamp in range(50):
        _tick(engine, stamp, *["memory"] * 5)
    assert model.pool_bytes() == bytes_before
    assert model.prefixes is pools[0]
    assert model.suffixes is pools[1]
    assert engine.live == 3
    assert engine.counters.dropped + engine.counters.rejected == 50 * 5 - 3


@pytest.mark.parametrize("mode", ["shared", "isolated"])
def test_texts_that_run_one_by_one_run_in_the_order_of_their_priority(mode: str) -> None:
    engine, _ = build(mode=mode)
    with engine.observe(see(1)) as encoded:
        memory, answer = engine.ask(encoded, _task()), engine.ask(encoded, _task("answer"))
    assert [text.id for text in engine.advance(Budget(steps=4))] == [answer, memory]


def test_only_those_who_hold_a_prefix_are_named_where_none_is_left() -> None:
    """In batched mode a text that waits has none yet."""
    engine, _ = build("batched", prefixes=2)
    held = [engine.observe(see(stamp)) for stamp in (1, 2)]
    engine.ask(held[0], _task())
    with pytest.raises(
        RuntimeError, match=r"held \(open `with` block of tick 1, open `with` block of tick 2\)"
    ):
        engine.observe(see(3))


@pytest.mark.parametrize("when_full", ["reject_new", "drop_oldest"])
def test_a_text_that_is_too_old_makes_room_for_the_new(when_full: str) -> None:
    engine, _ = build(suffixes=1, when_full=when_full)
    with engine.observe(see(1)) as encoded:
        old = engine.ask(encoded, TextTask(kind="memory", prompt="abc", max_tokens=30, max_age=1))
    engine.advance(NONE)
    (new,), done = _tick(engine, 2, "memory")
    assert _reasons(done) == {old: FinishReason.AGE}
    assert [request.id for request in engine._scheduler.live] == [new]
