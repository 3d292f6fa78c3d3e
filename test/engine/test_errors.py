# SPDX-License-Identifier: Apache-2.0
"""A model that raises leaves the accounting consistent and loses no request; ticks go on."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_toy import EXPERT, ToyModel, answer, build, chunk_of, memory, narration, recite, run_tick, see

from oxygen_ros.engine import (
    MODES,
    Budget,
    Engine,
    FinishedText,
    FinishReason,
    Session,
    TextKind,
    TextTask,
)


class Broken(RuntimeError):
    """What the failing model raises."""


def _break_after(model: ToyModel, method: str, calls: int) -> None:
    """Let `method` raise on its `calls`-th call from now, and on every one after."""
    last = model.calls[method] + calls

    def fail() -> None:
        if model.calls[method] >= last:
            raise Broken(method)

    model.before[method] = fail


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize(
    "method", ["process", "encode", "denoise", "complete", "fork", "extend", "detokenize"]
)
@pytest.mark.parametrize("calls", [1, 2, 5])
def test_the_session_goes_on_after_an_error(mode: str, method: str, calls: int) -> None:
    engine, model = build(mode=mode, prefixes=12, suffixes=12)
    kinds = [
        TextKind(memory(max_tokens=6, stop=("zz",)), every_n_ticks=1, feed_after=4),
        TextKind(narration(max_tokens=9, stop=("zz",)), every_n_ticks=2),
    ]
    session = Session(engine, kinds, Budget(steps=2))
    ended: list[FinishedText] = []
    observed = see(0)
    failed = 0
    for tick in range(1, 13):
        if tick == 4:
            _break_after(model, method, calls)
        try:
            report = run_tick(session, observed, stamp=tick)
        except Broken:
            failed += 1
            model.before.clear()
            ended += session.stop(FinishReason.ERROR)
            assert (engine.live, engine.prefixes.used, engine.suffixes.used) == (0, 0, 0)
        else:
            ended += report.finished
        engine.check_integrity()
    ended += session.drain()
    assert failed <= 1
    if mode != "batched" or method != "fork":
        assert failed == 1
    assert [text.id for text in sorted(ended, key=lambda text: text.id)] == list(
        range(1, engine._next_id + 1)
    )
    counters = engine.counters
    assert counters.finished + counters.cancelled == len(ended)
    assert any(text.tick_asked > 6 and text.finish_reason.is_complete for text in ended)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_finished_text_survives_an_error_of_the_same_tick(mode: str) -> None:
    """A text that came to its end before the model broke is reported with its own reason."""
    short, long = TextTask(kind="memory", prompt="ab", max_tokens=1), narration(max_tokens=20)
    observation = next(see(1, c) for c in range(99) if len(recite(see(1, c), long).tokens) > 4)
    engine, model = build(mode=mode)
    with engine.observe(observation) as encoded:
        first, second = engine.ask(encoded, short), engine.ask(encoded, long)
    _break_after(model, "extend", 3)
    with pytest.raises(Broken):
        engine.advance(Budget(steps=4))
    reasons = {text.id: text.finish_reason for text in engine.cancel(FinishReason.ERROR)}
    assert reasons[second] is FinishReason.ERROR
    assert reasons[first] is recite(observation, short).reason
    engine.check_integrity()


def test_a_text_that_ended_keeps_its_reason_though_it_could_not_be_told() -> None:
    """Ticks later it is too old besides."""
    engine, model = build()
    task = TextTask(kind="memory", prompt="ab", max_tokens=1, max_age=1)
    observation = next(see(1, c) for c in range(99) if recite(see(1, c), task).tokens)
    with engine.observe(observation) as encoded:
        engine.ask(encoded, task)
    _break_after(model, "detokenize", 1)
    with pytest.raises(Broken):
        engine.advance(Budget(steps=4))
    model.before.clear()
    engine.observe(see(2)).close()
    engine.observe(see(3)).close()
    (text,) = engine.advance(Budget(steps=4))
    assert text.finish_reason is FinishReason.LENGTH
    engine.check_integrity()


@pytest.mark.parametrize("mode", ["shared", "isolated"])
def test_texts_that_run_one_by_one_go_on_where_an_error_left_them(mode: str) -> None:
    engine, model = build(mode=mode)
    task = narration(max_tokens=20)
    observation = next(see(1, c) for c in range(99) if len(recite(see(1, c), task).tokens) > 4)
    with engine.observe(observation) as encoded:
        engine.ask(encoded, task)
        engine.ask(encoded, task)
    _break_after(model, "extend", 3)
    with pytest.raises(Broken):
        engine.advance(Budget(steps=4))
    model.before.clear()
    texts = engine.advance(Budget(steps=4))
    assert [(text.id, text.tokens) for text in texts] == [
        (n, recite(observation, task).tokens) for n in (1, 2)
    ]
    engine.check_integrity()


def test_a_chunk_that_fails_leaves_no_observation_open() -> None:
    engine, model = build()
    session = Session(engine, [], Budget())
    _break_after(model, "denoise", 1)
    for _ in range(3):
        with pytest.raises(Broken):
            run_tick(session, see(1))
        assert engine.prefixes.used == 0


def test_an_observation_that_does_not_fit_takes_no_slot() -> None:
    engine, _ = build()
    bad = see(1)
    with pytest.raises(ValueError, match='camera "top" is missing'):
        engine.observe(type(bad)(1, {}, bad.joints, ""))
    engine.check_integrity()
    assert engine.prefixes.used == 0
    with engine.observe(see(2)) as encoded:
        assert (engine.act(encoded) == chunk_of(see(2))).all()


def test_a_closed_frame_is_not_read_again() -> None:
    """Its slot may hold another observation by now."""
    engine, _ = build()
    with engine.observe(see(1)) as old:
        pass
    with engine.observe(see(2, 5)) as new:
        assert new.slot == old.slot
        for use in (lambda: engine.act(old), lambda: engine.ask(old, memory())):
            with pytest.raises(RuntimeError, match="observation of tick 1 is closed"):
                use()
        engine.check_integrity()


def _ask(task: TextTask, suffix_tokens: int = 20) -> Engine:
    engine, _ = build(suffix_tokens=suffix_tokens)
    with engine.observe(see(1)) as encoded:
        engine.ask(encoded, task)
    return engine


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (TextTask(kind="memory", prompt="", max_tokens=4), "has no token"),
        (TextTask(kind="memory", prompt="a" * 17, max_tokens=4), "has 17 tokens, its slot has room for 16"),
        (TextTask(kind="memory", prompt="a", adapter="x"), r'"x" is not loaded \(loaded: plain, terse\)'),
    ],
)
def test_a_task_that_cannot_run_is_an_error_that_names_it(task: TextTask, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _ask(task, suffix_tokens=20 if task.max_tokens == 4 else 99)


def test_a_refused_task_holds_nothing() -> None:
    engine, _ = build(suffix_tokens=20)
    with engine.observe(see(1)) as encoded, pytest.raises(ValueError, match="room"):
        engine.ask(encoded, answer("a" * 30))
    engine.check_integrity()
    assert (engine.live, engine.prefixes.used) == (0, 0)


def test_the_longest_prompt_that_fits_runs_to_its_limit() -> None:
    engine = _ask(TextTask(kind="memory", prompt="a" * 16, max_tokens=4))
    (text,) = engine.advance(Budget(steps=9))
    assert text.tokens == recite(see(1), TextTask(kind="memory", prompt="a" * 16, max_tokens=4)).tokens


def test_all_frames_open_is_an_error_that_says_the_cure() -> None:
    engine, _ = build(prefixes=2)
    opened = [engine.observe(see(stamp)) for stamp in (1, 2)]
    who = r"open `with` block of tick 1, open `with` block of tick 2"
    with pytest.raises(RuntimeError, match=rf"all 2 prefix slots are held \({who}\): leave"):
        engine.observe(see(3))
    engine.check_integrity()
    for encoded in opened:
        encoded.close()
        encoded.close()  # a second close does nothing
    assert engine.prefixes.used == 0
    engine.check_integrity()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"when_full": "grow"}, 'got "grow"'),
        ({"prefixes": 1}, "2 prefix slots"),
        ({"draft": -1}, "draft length"),
    ],
)
def test_wrong_options_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        build(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_age": -1}, "max_age"),
        ({"temperature": -0.1}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"stop": ("",)}, "empty stop"),
    ],
)
def test_wrong_limits_of_a_task_are_named(limits: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=f"memory: .*{words}"):
        memory(**limits)  # type: ignore[arg-type]


def test_the_spec_is_the_one_the_chunk_has() -> None:
    engine, _ = build()
    with engine.observe(see(1)) as encoded:
        assert engine.act(encoded).shape == (EXPERT.horizon, EXPERT.action_space.size)


@pytest.mark.parametrize("mode", ["oxygen", "batched"])
def test_an_ended_text_keeps_its_reason_when_the_next_tick_finds_it_old(mode: str) -> None:
    """`advance` raised after a text had come to its end; when it is called again the text is over age too."""
    short = TextTask(kind="memory", prompt="ab", max_tokens=1, max_age=1)
    long = narration(max_tokens=20, max_age=9)
    observation = next(see(1, c) for c in range(99) if len(recite(see(1, c), long).tokens) > 4)
    engine, model = build(mode=mode)
    with engine.observe(observation) as encoded:
        first = engine.ask(encoded, short)
        engine.ask(encoded, long)
    _break_after(model, "extend", 3)
    with pytest.raises(Broken):
        engine.advance(Budget(steps=4))
    engine.check_integrity()
    model.before.clear()
    engine.observe(see(2)).close()
    (text,) = engine.advance(Budget(steps=1))
    assert (text.id, text.finish_reason) == (first, recite(observation, short).reason)
    assert engine.counters.expired == 0
    engine.check_integrity()


def test_the_holders_of_a_full_pool_are_named() -> None:
    engine, _ = build(prefixes=2)
    with engine.observe(see(1)) as encoded:
        engine.ask(encoded, memory())
    engine.advance(Budget(steps=0))
    with engine.observe(see(2)), pytest.raises(RuntimeError, match=r"of tick 2, memory 1 of tick 1"):
        engine.observe(see(3))


def test_a_model_that_cannot_rewind_takes_no_drafts() -> None:
    model = ToyModel()
    model.spec = replace(model.spec, can_rewind=False)
    with pytest.raises(ValueError, match="drafts of 4 tokens: a toy model cannot take back a wrong one"):
        build(model=model, draft=4)
    build(model=model)
