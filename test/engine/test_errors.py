# SPDX-License-Identifier: Apache-2.0
"""A model that raises leaves the accounting whole, loses no request, and the robot goes on."""

from __future__ import annotations

import pytest
from engine_toy import SPEC, ToyModel, build, chunk_of, recite, see

from oxygen_ros.engine import (
    MODES,
    Answer,
    Budget,
    Engine,
    FinishedText,
    FinishReason,
    Memory,
    Narration,
    Recurring,
    Session,
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
@pytest.mark.parametrize("method", ["process", "encode", "denoise", "fork", "extend", "detokenize"])
@pytest.mark.parametrize("calls", [1, 2, 5])
def test_the_session_goes_on_after_an_error(mode: str, method: str, calls: int) -> None:
    engine, model = build(mode=mode, frames=12, suffixes=12)
    recurring = [
        Recurring(Memory(max_tokens=6, stop=("zz",))),
        Recurring(Narration(max_tokens=9, stop=("zz",)), every_n_ticks=2),
    ]
    session = Session(engine, recurring, Budget(steps=2), memory_lag=4)
    ended: list[FinishedText] = []
    observed = see(0)
    failed = 0
    for tick in range(1, 13):
        if tick == 4:
            _break_after(model, method, calls)
        try:
            report = session.tick(tick, observed.images, observed.joints, lambda *_: None)
        except Broken:
            failed += 1
            model.before.clear()
            ended += session.stop(FinishReason.ERROR)
            assert (engine.live, engine.frames.used, engine.suffixes.used) == (0, 0, 0)
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
    short, long = TextTask(kind="memory", prompt="ab", max_tokens=1), Narration(max_tokens=20)
    observation = next(see(1, c) for c in range(99) if len(recite(see(1, c), long).tokens) > 4)
    engine, model = build(mode=mode)
    with engine.observe(observation) as frame:
        first, second = engine.ask(frame, short), engine.ask(frame, long)
    _break_after(model, "extend", 3)
    with pytest.raises(Broken):
        engine.advance(Budget(steps=4))
    reasons = {text.id: text.finish_reason for text in engine.cancel(FinishReason.ERROR)}
    assert reasons[second] is FinishReason.ERROR
    assert reasons[first] is recite(observation, short).reason
    engine.check_integrity()


def test_an_observation_that_does_not_fit_takes_no_slot() -> None:
    engine, _ = build()
    bad = see(1)
    with pytest.raises(ValueError, match='camera "top" is missing'):
        engine.observe(type(bad)(1, {}, bad.joints, ""))
    engine.check_integrity()
    assert engine.frames.used == 0
    with engine.observe(see(2)) as frame:
        assert (engine.act(frame) == chunk_of(see(2))).all()


def test_a_closed_frame_is_not_read_again() -> None:
    """Its slot may hold another observation by now."""
    engine, _ = build()
    with engine.observe(see(1)) as old:
        pass
    with engine.observe(see(2, 5)) as new:
        assert new.slot == old.slot
        for use in (lambda: engine.act(old), lambda: engine.ask(old, Memory())):
            with pytest.raises(RuntimeError, match="frame of tick 1 is closed"):
                use()
        engine.check_integrity()


def _ask(task: TextTask, suffix_tokens: int = 20) -> Engine:
    engine, _ = build(suffix_tokens=suffix_tokens)
    with engine.observe(see(1)) as frame:
        engine.ask(frame, task)
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
    with engine.observe(see(1)) as frame, pytest.raises(ValueError, match="room"):
        engine.ask(frame, Answer("a" * 30))
    engine.check_integrity()
    assert (engine.live, engine.frames.used) == (0, 0)


def test_the_longest_prompt_that_fits_runs_to_its_limit() -> None:
    engine = _ask(TextTask(kind="memory", prompt="a" * 16, max_tokens=4))
    (text,) = engine.advance(Budget(steps=9))
    assert text.tokens == recite(see(1), TextTask(kind="memory", prompt="a" * 16, max_tokens=4)).tokens


def test_all_frames_open_is_an_error_that_says_the_cure() -> None:
    engine, _ = build(frames=2)
    open_frames = [engine.observe(see(stamp)) for stamp in (1, 2)]
    with pytest.raises(RuntimeError, match=r"all 2 frame slots are held: close"):
        engine.observe(see(3))
    engine.check_integrity()
    for frame in open_frames:
        frame.close()
        frame.close()  # a second close does nothing
    assert engine.frames.used == 0
    engine.check_integrity()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"when_full": "grow"}, 'got "grow"'),
        ({"frames": 1}, "2 frame slots"),
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
        Memory(**limits)  # type: ignore[arg-type]


def test_the_spec_is_the_one_the_chunk_has() -> None:
    engine, _ = build()
    with engine.observe(see(1)) as frame:
        assert engine.act(frame).shape == (SPEC.horizon, len(SPEC.action_joints))
