# SPDX-License-Identifier: Apache-2.0
"""One robot's run: the order inside a tick, and the same outputs in every mode."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from engine_toy import FakeClock, build, chunk_of, prefix_of, recite, see
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oxygen_ros.engine import (
    MODES,
    Answer,
    Budget,
    FinishedText,
    FinishReason,
    Memory,
    Narration,
    Recurring,
    Session,
    TickReport,
)
from oxygen_ros.observation import Observation

BUDGET = Budget(steps=4)
MEMORY = Memory(max_tokens=10)
LAG = 4  # ceil(10 / 4) + 1


@dataclass
class Run:
    """What one run published, said and fed back."""

    observations: list[Observation] = field(default_factory=list)
    chunks: list[NDArray[np.float64]] = field(default_factory=list)
    texts: dict[int, FinishedText] = field(default_factory=dict)
    reports: list[TickReport] = field(default_factory=list)

    def publish(self, tick: int, observation: Observation, actions: NDArray[np.float64]) -> None:
        assert tick == len(self.chunks) + 1
        self.observations.append(observation)
        self.chunks.append(actions)


def _run(mode: str, ticks: int, budget: Budget = BUDGET, lag: int = LAG, **options: object) -> Run:
    engine, _ = build(mode=mode, frames=30, suffixes=30, seed=5, **options)  # type: ignore[arg-type]
    recurring = [
        Recurring(MEMORY),
        Recurring(Narration(max_tokens=12, temperature=0.8, seed=1), every_n_ticks=3),
    ]
    session = Session(engine, recurring, budget, instruction="stack", memory_lag=lag)
    run = Run()
    for tick in range(1, ticks + 1):
        if tick == 9:
            session.ask("what is left?")
        if tick == 14:
            session.instruct("unstack")
        given_ = see(1000 + tick, tick // 2)
        report = session.tick(given_.stamp, given_.images, given_.joints, run.publish)
        engine.check_integrity()
        run.reports.append(report)
        run.texts.update({text.id: text for text in report.finished})
    run.texts.update({text.id: text for text in session.drain()})
    engine.check_integrity()
    assert session.is_idle
    return run


def _words(run: Run) -> dict[int, tuple[object, ...]]:
    return {
        number: (
            text.kind,
            text.prompt,
            text.text,
            text.tokens,
            text.finish_reason,
            text.stamp,
            text.tick_asked,
        )
        for number, text in run.texts.items()
    }


@pytest.mark.parametrize("draft", [0, 4])
def test_all_modes_give_the_same_chunks_texts_and_memories(draft: int) -> None:
    runs = {mode: _run(mode, 25, draft=draft) for mode in MODES}
    ours = runs["oxygen"]
    assert len(ours.texts) == 25 + 9 + 1
    assert len({observation.memory for observation in ours.observations}) > 5
    for run in runs.values():
        assert _words(run) == _words(ours)
        assert np.array_equal(run.chunks, ours.chunks)
        assert [report.memory for report in run.reports] == [report.memory for report in ours.reports]
        assert run.reports[-1].memories_dropped == 0


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_memory_asked_at_t_stands_in_the_prompt_of_t_plus_lag(mode: str) -> None:
    run = _run(mode, 13)
    for tick, observation in enumerate(run.observations, start=1):
        asked = tick - LAG
        expected = recite(run.observations[asked - 1], MEMORY).text if asked >= 1 else ""
        assert observation.memory == run.reports[tick - 1].memory == expected


def test_unfinished_memories_are_dropped_and_counted() -> None:
    """One step a tick and a lag of 3: a memory of more than 3 tokens comes too late."""
    run = _run("oxygen", 13, Budget(steps=1), lag=3)
    late = 0
    expected = ""
    for tick, observation in enumerate(run.observations, start=1):
        if tick > 3:
            alone = recite(run.observations[tick - 4], MEMORY)
            if len(alone.tokens) + (alone.reason is FinishReason.EOS) <= 3:
                expected = alone.text
            else:
                late += 1
        assert observation.memory == expected
    assert run.reports[-1].memories_dropped == late > 5


def test_a_new_instruction_holds_from_the_next_tick_and_forgets_memories() -> None:
    run = _run("oxygen", 18)
    assert [o.instruction for o in run.observations] == ["stack"] * 13 + ["unstack"] * 5
    assert run.observations[12].memory != ""
    assert [o.memory for o in run.observations[13:17]] == [""] * 4
    assert run.observations[17].memory == recite(run.observations[13], MEMORY).text
    same = Session(build()[0], [], BUDGET, instruction="stack", memory_lag=1)
    same.feedback.expect(1)
    same.instruct("stack")  # the same words again: the task begins anew
    given_ = see(1)
    same.tick(given_.stamp, given_.images, given_.joints, lambda *_: None)
    assert same.feedback.at(2) == ""
    assert same.feedback.dropped == 0, "forgotten, not late"


@pytest.mark.parametrize("mode", sorted(MODES))
def test_publish_comes_before_any_text_and_sees_the_right_chunk(mode: str) -> None:
    engine, model = build(mode=mode, frames=20, suffixes=20)
    session = Session(engine, [Recurring(MEMORY)], BUDGET, memory_lag=LAG)
    steps_at_publish: list[tuple[int, int]] = []
    encodes: list[int] = []

    def publish(tick: int, observation: Observation, actions: NDArray[np.float64]) -> None:
        steps_at_publish.append((tick, model.calls["extend"]))
        encodes.append(model.calls["encode"])
        assert np.array_equal(actions, chunk_of(observation))

    before = 0
    for tick in range(1, 9):
        prefills = model.calls["encode"]
        given_ = see(tick, tick)
        session.tick(tick, given_.images, given_.joints, publish)
        assert steps_at_publish[-1] == (tick, before)
        assert encodes[-1] == prefills + 1  # the text's own prefills, if any, come later too
        before = model.calls["extend"]
        assert before > steps_at_publish[-1][1]


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_question_is_answered_about_the_next_observation(mode: str) -> None:
    engine, _ = build(mode=mode)
    answer = Answer("", max_tokens=6, adapter="terse")
    session = Session(engine, [], BUDGET, answer=answer, answer_template="Q {question} A", memory_lag=1)
    observed = see(1)
    session.tick(1, observed.images, observed.joints, lambda *_: None)
    session.ask("how many?")
    assert session.is_idle
    asked = see(2, 7, instruction="")
    done = list(session.tick(2, asked.images, asked.joints, lambda *_: None).finished) + session.drain()
    (text,) = done
    expected = recite(asked, Answer("how many?", "Q {question} A", max_tokens=6, adapter="terse"))
    assert (text.kind, text.prompt, text.stamp, text.tick_asked) == ("answer", "Q how many? A", 2, 2)
    assert (text.tokens, text.text) == (expected.tokens, expected.text)


def test_braces_in_a_question_are_only_braces() -> None:
    engine, _ = build()
    session = Session(engine, [], BUDGET, answer=Answer("", max_tokens=3), memory_lag=1)
    session.ask("{a} {0} {question}")
    observed = see(1)
    report = session.tick(1, observed.images, observed.joints, lambda *_: None)
    assert report.problems == ()
    assert engine.counters.finished + report.live == 1


def test_a_question_too_long_is_a_problem_in_words() -> None:
    engine, _ = build(suffix_tokens=64)
    session = Session(engine, [Recurring(Memory(max_tokens=4))], BUDGET, memory_lag=2)
    session.ask("why " * 40)
    session.ask("ok?")
    session._answer = Answer("", max_tokens=4)
    observed = see(1)
    report = session.tick(1, observed.images, observed.joints, lambda *_: None)
    engine.check_integrity()
    (problem,) = report.problems
    assert problem.startswith('question "why why ')
    assert "room for 60" in problem
    assert len(problem) < 250
    asked = {request.task.kind for request in engine.scheduler.live} | {text.kind for text in report.finished}
    assert asked == {"memory", "answer"}
    assert session.tick(2, observed.images, observed.joints, lambda *_: None).problems == ()


@pytest.mark.parametrize("when", [1, 2, 3])
def test_a_publish_that_raises_is_survived(when: int) -> None:
    engine, _ = build()
    session = Session(engine, [Recurring(MEMORY)], BUDGET, memory_lag=LAG)
    observed = see(1)

    def publish(tick: int, *_: object) -> None:
        if tick == when:
            raise OSError("network is down")

    for tick in range(1, 7):
        if tick == when:
            with pytest.raises(OSError, match="network"):
                session.tick(tick, observed.images, observed.joints, publish)
            session.stop(FinishReason.ERROR)
        else:
            session.tick(tick, observed.images, observed.joints, publish)
        engine.check_integrity()
    session.drain()
    assert engine.frames.used == 0


def test_stop_ends_texts_questions_and_memories() -> None:
    engine, _ = build()
    session = Session(engine, [Recurring(MEMORY)], Budget(steps=0), memory_lag=2)
    observed = see(1)
    for tick in (1, 2):
        session.tick(tick, observed.images, observed.joints, lambda *_: None)
    session.ask("late?")
    ended = session.stop(FinishReason.DEACTIVATED)
    assert [(text.id, text.finish_reason) for text in ended] == [
        (n, FinishReason.DEACTIVATED) for n in (1, 2)
    ]
    report = session.tick(3, observed.images, observed.joints, lambda *_: None)
    assert (report.live, report.memory, report.memories_dropped) == (1, "", 0)


def test_recurring_texts_keep_their_cadence() -> None:
    engine, _ = build(frames=20, suffixes=20)
    session = Session(
        engine, [Recurring(MEMORY), Recurring(Narration(), every_n_ticks=3)], BUDGET, memory_lag=9
    )
    observed = see(1)
    asked: list[tuple[str, int]] = []
    for tick in range(1, 8):
        before = engine._next_id
        session.tick(tick, observed.images, observed.joints, lambda *_: None)
        asked.append(("mn"[: engine._next_id - before], tick))
    assert asked == [("mn", 1), ("m", 2), ("m", 3), ("mn", 4), ("m", 5), ("m", 6), ("mn", 7)]
    with pytest.raises(ValueError, match="every_n_ticks must be at least 1, got 0"):
        Recurring(MEMORY, every_n_ticks=0)


def test_the_report_times_the_phases_and_a_due_tick_waits_one_step_at_most() -> None:
    clock = FakeClock()
    engine, model = build(clock=clock)
    for method, seconds in (("process", 0.002), ("encode", 0.02), ("denoise", 0.01), ("extend", 0.004)):
        model.before[method] = lambda seconds=seconds: clock.sleep(seconds)  # type: ignore[misc]
    task = Memory(max_tokens=40)
    session = Session(engine, [Recurring(task)], Budget(steps=50), memory_lag=9)
    observed = next(
        o for o in (see(1, c, instruction="") for c in range(250)) if len(recite(o, task).tokens) > 9
    )
    due = clock.now + 0.05
    report = session.tick(1, observed.images, observed.joints, lambda *_: clock.sleep(0.003), due)
    phases = report.phases
    assert (phases.process, phases.prefill, phases.denoise, report.publish) == pytest.approx(
        (0.002, 0.02, 0.01, 0.003)
    )
    # 35 ms are gone: steps start 0, 4, 8 and 12 ms later, the one after would start at 51.
    assert (phases.used_steps, phases.text) == (4, pytest.approx(0.016))
    assert 0 <= clock.now - due <= 0.004


@settings(max_examples=25)
@given(budgets=st.lists(st.integers(0, 6), min_size=12, max_size=12), rows=st.integers(1, 12))
def test_chunks_do_not_depend_on_how_text_went_while_memories_agree(budgets: list[int], rows: int) -> None:
    """Any budget: the chunk is a pure function of the observation, whose memory only the rule decides."""
    engine, _ = build(frames=20, suffixes=20)
    session = Session(engine, [Recurring(MEMORY)], BUDGET, memory_lag=LAG)
    run = Run()
    for tick, steps in enumerate(budgets, start=1):
        session.budget = Budget(steps=steps, rows=rows)
        given_ = see(tick, tick)
        session.tick(tick, given_.images, given_.joints, run.publish)
        engine.check_integrity()
    for observation, chunk in zip(run.observations, run.chunks, strict=True):
        assert np.array_equal(chunk, chunk_of(observation))
    memories = {recite(observation, MEMORY).text for observation in run.observations}
    assert {observation.memory for observation in run.observations} <= memories | {""}
    assert len({prefix_of(observation).tobytes() for observation in run.observations}) == len(
        run.observations
    )
