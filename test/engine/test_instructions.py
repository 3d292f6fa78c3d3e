# SPDX-License-Identifier: Apache-2.0
"""What a new instruction does: texts asked at its tick, texts ended, subtasks fed back; or it is refused."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from engine_toy import ToyModel, answer, build, memory, narration, prefix_of, recite, run_tick, see, subtask

from oxygen_ros.engine import MODES, Budget, FinishedText, FinishReason, Session, TextKind, TickReport
from oxygen_ros.observation import Observation

SUBTASK = subtask(max_tokens=6)
LAG = 3  # ceil(6 / 4) + 1
TOO_LONG = 40


@dataclass
class Run:
    session: Session
    observations: list[Observation] = field(default_factory=list)
    texts: list[FinishedText] = field(default_factory=list)

    def tick(self) -> TickReport:
        stamp = len(self.observations) + 1
        report = run_tick(
            self.session,
            see(stamp, stamp // 2),
            lambda started: self.observations.append(started.observation),
        )
        self.texts += report.finished
        self.session.engine.check_integrity()
        return report


class Terse(ToyModel):
    """Its prompt has little room."""

    def check_instruction(self, instruction: str) -> None:
        if len(instruction) > TOO_LONG:
            raise ValueError(f'the instruction "{instruction[:9]}..." is too long: shorten it')


def _start(kinds: list[TextKind], mode: str = "oxygen", steps: int = 4) -> Run:
    engine, _ = build(mode=mode, prefixes=30, suffixes=30, model=Terse())
    return Run(Session(engine, kinds, Budget(steps=steps), instruction="tidy up"))


def _fed(observation: Observation) -> str:
    return observation.feedback.get("subtask", "")


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_subtask_asked_at_t_stands_in_the_prompt_of_t_plus_lag(mode: str) -> None:
    run = _start([TextKind(SUBTASK, every_n_ticks=2, feed_after=LAG)], mode)
    for _ in range(12):
        run.tick()
    for tick, seen in enumerate(run.observations, start=1):
        asked = [t for t in range(1, tick - LAG + 1) if (t - 1) % 2 == 0]
        expected = recite(run.observations[asked[-1] - 1], SUBTASK).text if asked else ""
        assert _fed(seen) == expected
    assert len({_fed(seen) for seen in run.observations}) > 2
    for text in run.texts:
        asked_about = run.observations[text.tick_asked - 1]
        # The fields of a text are all that the toy's prefix depends on, beside image and joints.
        assert (text.instruction, text.feedback) == ("tidy up", asked_about.feedback)


def test_subtasks_stay_out_of_the_prompt_unless_fed() -> None:
    run = _start([TextKind(SUBTASK, every_n_ticks=1)])
    for _ in range(6):
        assert run.tick().feedback == {}
    assert {text.kind for text in run.texts} == {"subtask"}
    assert all(seen.feedback == {} for seen in run.observations)
    fed, plain = see(1), see(1)
    assert (prefix_of(fed) == prefix_of(plain)).all()


def test_a_kind_may_be_asked_at_new_instructions_only_or_besides() -> None:
    run = _start(
        [
            TextKind(SUBTASK, on_instruction=True),
            TextKind(narration(max_tokens=2), every_n_ticks=5, on_instruction=True),
            TextKind(memory(max_tokens=2), every_n_ticks=5),
        ]
    )
    for tick in range(1, 13):
        if tick in (4, 6):
            run.session.instruct(f"task of {tick}")
        run.tick()
    run.texts += run.session.drain()
    kinds = ("subtask", "narration", "memory")
    asked = {kind: sorted(t.tick_asked for t in run.texts if t.kind == kind) for kind in kinds}
    assert asked == {"subtask": [1, 4, 6], "narration": [1, 4, 6, 11], "memory": [1, 6, 11]}
    with pytest.raises(ValueError, match="subtask: it would never be asked"):
        TextKind(SUBTASK)


def test_a_new_instruction_ends_the_kinds_it_is_told_to_and_no_other() -> None:
    run = _start(
        [
            TextKind(subtask(max_tokens=30), every_n_ticks=20, feed_after=8, cancel_on_instruction=True),
            TextKind(narration(max_tokens=30), every_n_ticks=20),
            TextKind(answer(max_tokens=30)),
        ],
        steps=1,
    )
    run.session.ask("what is left?")
    run.tick()
    run.session.instruct("stop")
    assert run.session.instruction == "stop"
    report = run.tick()
    (ended,) = [text for text in run.texts if text.finish_reason is FinishReason.CANCELLED]
    assert (ended.kind, ended.instruction, ended.tick_asked) == ("subtask", "tidy up", 1)
    assert ended in report.finished
    assert run.session.engine.counters.cancelled == 1
    run.texts += run.session.drain()
    assert all(t.finish_reason.is_complete for t in run.texts if t.kind in ("narration", "answer"))
    for _ in range(12):
        assert run.tick().feedback == {}, "the subtask of the old instruction is never fed"


def test_what_is_cancelled_is_told_even_if_the_tick_fails() -> None:
    run = _start([TextKind(subtask(max_tokens=30), every_n_ticks=20, cancel_on_instruction=True)], steps=1)
    run.tick()
    run.session.instruct("stop")
    model = run.session.engine.model
    model.denoise = lambda *_: 1 / 0  # type: ignore[assignment, method-assign]
    with pytest.raises(ZeroDivisionError):
        run.tick()
    (ended,) = run.session.stop(FinishReason.ERROR)
    assert ended.finish_reason is FinishReason.CANCELLED


def test_an_instruction_the_model_cannot_take_is_refused_by_name_and_the_old_one_stands() -> None:
    """It is checked without a run of `process`, and cancels and asks nothing."""
    kind = TextKind(memory(max_tokens=2), every_n_ticks=50, on_instruction=True, cancel_on_instruction=True)
    run = _start([kind], steps=1)
    run.tick()
    model = run.session.engine.model
    assert isinstance(model, ToyModel)
    processed = model.calls["process"]
    with pytest.raises(ValueError, match=r'the instruction "yyyyyyyyy..." is too long: shorten it'):
        run.session.instruct("y" * (TOO_LONG + 1))
    assert model.calls["process"] == processed
    run.tick()
    assert run.observations[-1].instruction == run.session.instruction == "tidy up"
    run.tick()
    run.session.instruct("wave")
    run.tick()
    assert run.observations[-1].instruction == "wave"
    run.texts += run.session.drain()
    assert sorted(text.tick_asked for text in run.texts) == [1, 4], "a refused one asks nothing"


def test_an_instruction_stands_when_the_tick_after_it_fails() -> None:
    run = _start([])
    run.session.instruct("wave")
    with pytest.raises(ValueError, match='camera "top" is missing'):
        run.session.begin(1, {}, see(1).joints)
    run.tick()
    assert run.observations[-1].instruction == "wave"


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_the_kind_says_whether_its_texts_end_whatever_its_name(is_cancelled: bool) -> None:
    kind = TextKind(narration(max_tokens=20), every_n_ticks=1, cancel_on_instruction=is_cancelled)
    run = _start([kind], steps=1)
    run.tick()
    run.session.instruct("stack")
    cancelled = [text.id for text in run.tick().finished if text.finish_reason is FinishReason.CANCELLED]
    assert cancelled == [1] * is_cancelled


def test_texts_that_an_instruction_ended_are_told_though_no_tick_follows() -> None:
    kind = TextKind(memory(max_tokens=20), every_n_ticks=1, cancel_on_instruction=True)
    run = _start([kind], steps=1)
    run.tick()
    run.session.instruct("stack")
    assert [text.finish_reason for text in run.session.drain()] == [FinishReason.CANCELLED]


def test_texts_that_an_instruction_ended_are_not_lost_when_the_others_cannot_be_told() -> None:
    kinds = [
        TextKind(memory(max_tokens=20), every_n_ticks=1, cancel_on_instruction=True),
        TextKind(narration(max_tokens=20), every_n_ticks=1),
    ]
    run = _start(kinds, steps=1)
    run.tick()
    run.session.instruct("stack")
    model = run.session.engine.model
    assert isinstance(model, ToyModel)

    def fail() -> None:
        raise RuntimeError("broken")

    model.before["detokenize"] = fail
    with pytest.raises(RuntimeError, match="broken"):
        run.session.stop(FinishReason.ERROR)
    model.before.clear()
    assert {text.kind for text in run.session.stop(FinishReason.ERROR)} == {"memory", "narration"}
