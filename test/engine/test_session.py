# SPDX-License-Identifier: Apache-2.0
"""One robot's run: the order inside a tick, and the same outputs in every mode."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from engine_toy import (
    BASE,
    FakeClock,
    answer,
    build,
    chunk_of,
    memory,
    narration,
    prefix_of,
    recite,
    run_tick,
    see,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oxygen_ros.engine import (
    MODES,
    Budget,
    FinishedText,
    FinishReason,
    Session,
    StartedTick,
    TextKind,
    TickReport,
)
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.observation import Leftover, Observation

BUDGET = Budget(steps=4)
MEMORY = memory(max_tokens=10)
LAG = 4  # ceil(10 / 4) + 1
REMEMBERED = TextKind(MEMORY, every_n_ticks=1, feed_after=LAG)
ASKED = TextKind(answer())


@dataclass
class Run:
    """The chunks, texts and feedback of one run."""

    observations: list[Observation] = field(default_factory=list)
    chunks: list[NDArray[np.float64]] = field(default_factory=list)
    texts: dict[int, FinishedText] = field(default_factory=dict)
    reports: list[TickReport] = field(default_factory=list)

    def publish(self, started: StartedTick) -> None:
        assert started.tick == len(self.chunks) + 1
        self.observations.append(started.observation)
        self.chunks.append(started.actions)

    @property
    def memories(self) -> list[str]:
        """The memory in the prompt of each tick."""
        return [observation.feedback.get("memory", "") for observation in self.observations]


def _run(mode: str, ticks: int, budget: Budget = BUDGET, lag: int = LAG, **options: object) -> Run:
    engine, _ = build(mode=mode, prefixes=30, suffixes=30, seed=5, **options)  # type: ignore[arg-type]
    kinds = [
        replace(REMEMBERED, feed_after=lag),
        TextKind(narration(max_tokens=12, temperature=0.8, seed=1), every_n_ticks=3),
        ASKED,
    ]
    session = Session(engine, kinds, budget, instruction="stack")
    run = Run()
    for tick in range(1, ticks + 1):
        if tick == 9:
            session.ask("what is left?")
        if tick == 14:
            session.instruct("unstack")
        report = run_tick(session, see(1000 + tick, tick // 2), run.publish)
        engine.check_integrity()
        run.reports.append(report)
        run.texts.update({text.id: text for text in report.finished})
    run.texts.update({text.id: text for text in session.drain()})
    engine.check_integrity()
    assert session.engine.live == 0
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
    assert len(set(ours.memories)) > 5
    for run in runs.values():
        assert _words(run) == _words(ours)
        assert np.array_equal(run.chunks, ours.chunks)
        assert [report.feedback for report in run.reports] == [report.feedback for report in ours.reports]
        assert run.reports[-1].feedback_dropped == 0


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_memory_asked_at_t_stands_in_the_prompt_of_t_plus_lag(mode: str) -> None:
    run = _run(mode, 13)
    for tick, remembered in enumerate(run.memories, start=1):
        asked = tick - LAG
        expected = recite(run.observations[asked - 1], MEMORY).text if asked >= 1 else ""
        assert remembered == run.reports[tick - 1].feedback.get("memory", "") == expected


def test_unfinished_memories_are_dropped_and_counted() -> None:
    """One step a tick and a lag of 3: a memory of more than 3 tokens comes too late."""
    run = _run("oxygen", 13, Budget(steps=1), lag=3)
    late = 0
    expected = ""
    for tick, remembered in enumerate(run.memories, start=1):
        if tick > 3:
            alone = recite(run.observations[tick - 4], MEMORY)
            if len(alone.tokens) + (alone.reason is FinishReason.EOS) <= 3:
                expected = alone.text
            else:
                late += 1
        assert remembered == expected
    assert run.reports[-1].feedback_dropped == late > 5


def test_a_new_instruction_holds_from_the_next_tick_and_forgets_memories() -> None:
    run = _run("oxygen", 18)
    assert [o.instruction for o in run.observations] == ["stack"] * 13 + ["unstack"] * 5
    assert run.memories[12] != ""
    assert run.memories[13:17] == [""] * 4
    assert run.memories[17] == recite(run.observations[13], MEMORY).text
    same = Session(build()[0], [replace(REMEMBERED, feed_after=1)], BUDGET, instruction="stack")
    same.feedbacks["memory"].expect(1)
    same.instruct("stack")  # the same words again: the task begins anew
    run_tick(same, see(1))
    assert same.feedbacks["memory"].at(1) == ""
    assert same.feedbacks["memory"].dropped == 0, "forgotten, not late"


@pytest.mark.parametrize("mode", sorted(MODES))
def test_the_actions_are_there_before_any_text_and_are_the_right_ones(mode: str) -> None:
    engine, model = build(mode=mode, prefixes=20, suffixes=20)
    session = Session(engine, [REMEMBERED], BUDGET)
    before = 0
    for tick in range(1, 9):
        prefills = model.calls["encode"]
        observed = see(tick, tick)
        started = session.begin(tick, observed.images, observed.joints)
        assert (started.tick, model.calls["extend"]) == (tick, before)
        # The text's own prefills, and what only text needs of the prefix, come later too.
        assert model.calls["encode"] == prefills + 1
        assert model.calls["complete"] == model.calls["fork"] == tick - 1
        assert np.array_equal(started.actions, chunk_of(started.observation))
        session.finish()
        before = model.calls["extend"]
        assert before > 0


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_question_is_answered_about_the_next_observation(mode: str) -> None:
    engine, _ = build(mode=mode)
    limits = {"max_tokens": 6, "adapter": "terse"}
    session = Session(engine, [TextKind(answer("", "Q {question} A", **limits))], BUDGET)
    run_tick(session, see(1))
    session.ask("how many?")
    assert session.engine.live == 0
    asked = see(2, 7, instruction="")
    (text,) = list(run_tick(session, asked).finished) + session.drain()
    expected = recite(asked, answer("how many?", "Q {question} A", **limits))
    assert (text.kind, text.prompt, text.stamp, text.tick_asked) == ("answer", "Q how many? A", 2, 2)
    assert (text.tokens, text.text) == (expected.tokens, expected.text)


def test_braces_in_a_question_are_only_braces() -> None:
    engine, _ = build()
    session = Session(engine, [TextKind(answer(max_tokens=3))], BUDGET)
    session.ask("{a} {0} {question}")
    report = run_tick(session, see(1))
    assert report.unasked == ()
    assert engine.counters.finished + report.live == 1


def test_a_question_too_long_is_told_with_the_reason() -> None:
    engine, _ = build(suffix_tokens=64)
    kinds = [TextKind(memory(max_tokens=4), every_n_ticks=1), TextKind(answer(max_tokens=4))]
    session = Session(engine, kinds, BUDGET)
    session.ask("why " * 40)
    session.ask("ok?")
    report = run_tick(session, see(1))
    engine.check_integrity()
    (unasked,) = report.unasked
    assert unasked.question == "why " * 40
    assert "room for 60" in unasked.reason
    asked = {r.task.kind for r in engine._scheduler.live} | {text.kind for text in report.finished}
    assert asked == {"memory", "answer"}
    assert run_tick(session, see(2)).unasked == ()


@pytest.mark.parametrize("when", [1, 2, 3])
def test_a_publish_that_raises_is_survived(when: int) -> None:
    """The caller's own error between the two calls: the tick is dropped, the next one is normal."""
    engine, _ = build()
    session = Session(engine, [REMEMBERED], BUDGET)
    observed = see(1)

    def publish(started: StartedTick) -> None:
        if started.tick == when:
            raise OSError("network is down")

    for tick in range(1, 7):
        if tick == when:
            with pytest.raises(OSError, match="network"):
                run_tick(session, observed, publish, stamp=tick)
            session.stop(FinishReason.ERROR)
        else:
            run_tick(session, observed, publish, stamp=tick)
        engine.check_integrity()
    session.drain()
    assert engine.prefixes.used == 0


def test_begin_and_finish_alternate() -> None:
    engine, _ = build()
    session = Session(engine, [], BUDGET)
    observed = see(1)
    with pytest.raises(RuntimeError, match="no tick was begun"):
        session.finish()
    session.begin(1, observed.images, observed.joints)
    with pytest.raises(RuntimeError, match="tick 1 was begun and not finished"):
        session.begin(2, observed.images, observed.joints)
    session.finish()
    assert engine.prefixes.used == 0


def test_the_other_experts_act_when_the_commanding_one_has_left() -> None:
    """Each has noise and action space of its own; none but those asked for runs."""
    engine, model = build(seed=4)
    session = Session(engine, [], BUDGET)
    observed = see(3, 2, instruction="")
    started = session.begin(3, observed.images, observed.joints)
    assert np.array_equal(started.actions, chunk_of(observed, seed=4))
    assert model.calls["denoise"] == 1
    others = session.act(1)
    session.finish()
    assert model.calls["denoise"] == 2
    noise = draw_noise(4, 3, (BASE.horizon, BASE.width), expert=1)
    expected = noise * np.float32(0.5) + np.float32(float(prefix_of(observed)[-1] % 1000) / 1000)
    assert np.allclose(others, expected + observed.joints[1], atol=1e-6)
    only = Session(build()[0], [], BUDGET, expert=1)
    assert only.begin(3, observed.images, observed.joints).actions.shape == (BASE.horizon, 1)
    only.finish()
    with pytest.raises(RuntimeError, match="no tick was begun"):
        only.act(0)


def test_another_expert_is_guided_in_its_own_units() -> None:
    """The toy follows a guide of weight 1: out comes the leftover itself, of the expert that commands."""
    session = Session(build()[0], [], BUDGET, expert=1)
    observed = see(3, 2)
    left = Leftover(np.array([[0.1], [0.2]]), np.ones(2), 1.0)
    started = session.begin(3, observed.images, observed.joints, left)
    assert np.allclose(started.actions, left.actions, atol=1e-6)
    session.finish()


def test_stop_ends_texts_questions_and_memories() -> None:
    engine, _ = build()
    session = Session(engine, [replace(REMEMBERED, feed_after=2), ASKED], Budget(steps=0))
    observed = see(1)
    for tick in (1, 2):
        run_tick(session, observed, stamp=tick)
    session.ask("late?")
    ended = session.stop(FinishReason.DEACTIVATED)
    assert [(text.id, text.finish_reason) for text in ended] == [
        (n, FinishReason.DEACTIVATED) for n in (1, 2)
    ]
    report = run_tick(session, observed, stamp=3)
    assert (report.live, report.feedback, report.feedback_dropped) == (1, {}, 0)


def test_recurring_texts_keep_their_cadence() -> None:
    engine, _ = build(prefixes=20, suffixes=20)
    kinds = [replace(REMEMBERED, feed_after=9), TextKind(narration(), every_n_ticks=3)]
    session = Session(engine, kinds, BUDGET)
    asked: list[tuple[str, int]] = []
    for tick in range(1, 8):
        before = engine._next_id
        run_tick(session, see(1), stamp=tick)
        asked.append(("mn"[: engine._next_id - before], tick))
    assert asked == [("mn", 1), ("m", 2), ("m", 3), ("mn", 4), ("m", 5), ("m", 6), ("mn", 7)]
    with pytest.raises(ValueError, match="every_n_ticks must be at least 1"):
        TextKind(MEMORY, every_n_ticks=0)


def test_two_kinds_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two text kinds have one name: memory, memory"):
        Session(build()[0], [REMEMBERED, REMEMBERED], BUDGET)


def test_the_report_times_the_phases_and_a_due_tick_waits_one_step_at_most() -> None:
    clock = FakeClock()
    engine, model = build(clock=clock)
    for method, seconds in (("process", 0.002), ("encode", 0.02), ("denoise", 0.01), ("extend", 0.004)):
        model.before[method] = lambda seconds=seconds: clock.sleep(seconds)  # type: ignore[misc]
    task = memory(max_tokens=40)
    session = Session(engine, [TextKind(task, every_n_ticks=1)], Budget(steps=50))
    observed = next(
        o for o in (see(1, c, instruction="") for c in range(250)) if len(recite(o, task).tokens) > 9
    )
    due = clock.now + 0.05
    report = run_tick(session, observed, lambda _: clock.sleep(0.003), due)
    phases = report.phases
    assert (phases.process, phases.prefill, phases.denoise) == pytest.approx((0.002, 0.02, 0.01))
    # 35 ms are gone: steps start 0, 4, 8 and 12 ms later, the one after would start at 51.
    assert (phases.used_steps, phases.text) == (4, pytest.approx(0.016))
    assert 0 <= clock.now - due <= 0.004


@settings(max_examples=25)
@given(budgets=st.lists(st.integers(0, 6), min_size=12, max_size=12), rows=st.integers(1, 12))
def test_chunks_do_not_depend_on_how_text_went_while_memories_agree(budgets: list[int], rows: int) -> None:
    """Any budget: the chunk is a pure function of the observation, whose memory only the rule decides."""
    engine, _ = build(prefixes=20, suffixes=20)
    session = Session(engine, [REMEMBERED], BUDGET)
    run = Run()
    for tick, steps in enumerate(budgets, start=1):
        session.budget = Budget(steps=steps, rows=rows)
        run_tick(session, see(tick, tick), run.publish)
        engine.check_integrity()
    for observation, chunk in zip(run.observations, run.chunks, strict=True):
        assert np.array_equal(chunk, chunk_of(observation))
    memories = {recite(observation, MEMORY).text for observation in run.observations}
    assert set(run.memories) <= memories | {""}
    assert len({prefix_of(observation).tobytes() for observation in run.observations}) == len(
        run.observations
    )
