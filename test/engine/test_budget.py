# SPDX-License-Identifier: Apache-2.0
"""How much text a tick may advance: step counts, deadlines on a fake clock, measured step costs."""

from __future__ import annotations

from types import SimpleNamespace

import engine_toy
import pytest
import torch
from engine_toy import EOS, FakeClock, ToyModel, build, see
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.engine import Budget, Engine, TextTask
from oxygen_ros.engine.budget import Cost, Meter, TextCosts, bucket_of
from oxygen_ros.models.interface import ROW_BUCKETS


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts run to their token limit."""
    table = engine_toy._LOGITS.copy()
    table[:, EOS] = -1e9
    monkeypatch.setattr(engine_toy, "_LOGITS", table)


def _busy(step: float = 0.01, *, repeat: bool = False, texts: int = 1) -> tuple[Engine, ToyModel, FakeClock]:
    """An engine with long texts under way, whose every decode step takes `step` seconds."""
    clock = FakeClock()
    engine, model = build(clock=clock, repeat_on_device=repeat, suffix_tokens=300)
    model.before["extend"] = lambda: clock.sleep(step)
    with engine.observe(see(1)) as encoded:
        for _ in range(texts):
            engine.ask(encoded, TextTask(kind="memory", prompt="a", max_tokens=250))
    return engine, model, clock


# -- fixed ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [False, True])
@given(counts=st.lists(st.integers(0, 9), min_size=1, max_size=8))
def test_fixed_takes_exactly_the_granted_steps_while_there_is_work(repeat: bool, counts: list[int]) -> None:
    engine, model, _ = _busy(repeat=repeat)
    for count in counts:
        before = model.calls["extend"]
        engine.observe(see(2)).close()
        engine.advance(Budget(steps=count))
        assert model.calls["extend"] - before == count
        assert (engine.phases.used_steps, engine.phases.granted_steps) == (count, count)
        assert engine.phases.text == pytest.approx(0.01 * count)
    assert engine.counters.decode_steps == sum(counts)


@pytest.mark.parametrize("repeat", [False, True])
def test_no_step_starts_once_the_next_tick_is_due(repeat: bool) -> None:
    """Due in 35 ms, 10 ms a step: the fourth step is running then; the tick waits for its end only."""
    engine, model, clock = _busy(repeat=repeat)
    due = clock.now + 0.035
    engine.advance(Budget(steps=50), due)
    assert model.calls["extend"] == 4
    assert clock.now - due <= 0.01
    engine.advance(Budget(steps=50), due)
    assert model.calls["extend"] == 4


def test_on_a_gpu_steps_are_one_ahead_of_the_models_own_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of whichever device is the current one."""
    engine, model, _ = _busy(repeat=True)
    engine.advance(Budget(steps=1))  # the prompt
    marked, waited = 0, 0

    class Mark:
        def __init__(self) -> None:
            nonlocal marked
            marked += 1
            self.number = marked

        def synchronize(self) -> None:
            nonlocal waited
            waited += 1
            assert self.number == waited == marked - 1

    def current_stream(device: torch.device) -> SimpleNamespace:
        assert device is model.device
        return SimpleNamespace(record_event=Mark)

    monkeypatch.setattr(torch.cuda, "current_stream", current_stream)
    engine._runner._running = []
    engine.advance(Budget(steps=5))
    assert model.calls["extend"] == 6
    assert (marked, waited) == (4, 3)


# -- deadline ------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize(("slack", "steps"), [(0.056, 5), (0.049, 4), (0.014, 0), (0.016, 1)])
def test_deadline_takes_the_steps_that_end_before_the_margin(repeat: bool, slack: float, steps: int) -> None:
    engine, model, clock = _busy(repeat=repeat)
    engine.advance(Budget(steps=2))  # learn that a step takes 10 ms
    before, due = model.calls["extend"], clock.now + slack
    engine.advance(Budget(steps=50, mode="deadline", margin=0.005), due)
    assert model.calls["extend"] - before == steps
    assert clock.now <= due - 0.005 + 1e-9


@pytest.mark.parametrize("repeat", [False, True])
@given(
    slack=st.floats(0, 0.3), step=st.floats(0.001, 0.05), margin=st.floats(0, 0.02), most=st.integers(0, 20)
)
def test_deadline_never_ends_late_when_steps_cost_what_they_did(
    repeat: bool, slack: float, step: float, margin: float, most: int
) -> None:
    engine, model, clock = _busy(step, repeat=repeat)
    engine.advance(Budget(steps=3))
    before, due = model.calls["extend"], clock.now + slack
    engine.advance(Budget(steps=most, mode="deadline", margin=margin), due)
    used = model.calls["extend"] - before
    assert used <= most
    assert used == 0 or clock.now <= due - margin + 1e-9
    if used < most:  # and it did not stop early: one more would have been late
        assert clock.now + step > due - margin - 1e-9


@pytest.mark.parametrize("repeat", [False, True])
def test_deadline_stops_when_steps_turn_slow_in_the_middle(repeat: bool) -> None:
    """Predicted 10 ms, taking 30: after the slack of one more predicted step is gone, none starts."""
    engine, model, clock = _busy(repeat=repeat)
    engine.advance(Budget(steps=4))
    model.before["extend"] = lambda: clock.sleep(0.03)
    before, due = model.calls["extend"], clock.now + 0.1
    engine.advance(Budget(steps=50, mode="deadline", margin=0.005), due)
    # 30, 60, then 90 ms are over: a step of 10 ms would end at 100, after the 95 the margin leaves.
    assert model.calls["extend"] - before == 3
    assert clock.now <= due


def test_deadline_without_a_due_time_is_an_error() -> None:
    engine, _, _ = _busy()
    with pytest.raises(ValueError, match="when the next tick is due"):
        engine.advance(Budget(mode="deadline"))
    engine.check_integrity()


def test_the_first_step_of_all_is_granted_unmeasured() -> None:
    meter = Meter(Budget(steps=3, mode="deadline", margin=0.005), 100.02, TextCosts(), FakeClock())
    assert meter.grants(1) == 3
    late = Meter(Budget(steps=3, mode="deadline", margin=0.005), 100.004, TextCosts(), FakeClock())
    assert late.grants(1) == 0


@pytest.mark.parametrize(("mode", "latest"), [("fixed", 0.09), ("deadline", 0.075)])
def test_a_step_that_the_device_still_has_to_do_counts(mode: str, latest: float) -> None:
    """Steps of 10 ms, one ahead, due in 100 ms: one more begins before that, or ends before the margin."""
    costs, clock = TextCosts(), FakeClock()
    costs.record(1, 0.01)
    meter = Meter(Budget(steps=9, mode=mode, margin=0.005), clock.now + 0.1, costs, clock)
    assert meter.grants(1) == 9
    clock.sleep(latest - 1e-6)
    assert meter.may_go_on(1)
    clock.sleep(2e-6)
    assert not meter.may_go_on(1)
    assert meter.may_go_on(0), "with nothing ahead there is time for one"


# -- costs ---------------------------------------------------------------------------------------


def test_one_hiccup_does_not_silence_the_text() -> None:
    costs = TextCosts()
    for _ in range(8):
        costs.record(4, 0.01)
    costs.record(4, 3.0)
    assert costs.predict(4) == 0.01


def test_a_slow_phase_raises_the_prediction() -> None:
    costs = TextCosts()
    for seconds in (0.01, 0.01, 0.05, 0.06):
        costs.record(4, seconds)
    assert costs.predict(4) == 0.05


def test_refusals_ease_the_estimate_until_a_step_runs_again() -> None:
    costs = TextCosts()
    for _ in range(3):
        costs.record(4, 0.1)
    for _ in range(400):
        costs.refuse(4)
    assert costs.predict(4) == pytest.approx(0.1 * Cost.EASE**400)
    assert costs.predict(4) < 0.05


def test_text_comes_back_after_a_slow_phase() -> None:
    """100 ms steps in a 60 ms slack stop; when steps are fast again, all of the text returns."""
    costs, clock = TextCosts(), FakeClock()
    budget = Budget(steps=4, mode="deadline", margin=0.0)
    for _ in range(20):
        costs.record(1, 0.1)
    silent = 0
    for _ in range(2000):
        meter = Meter(budget, clock.now + 0.06, costs, clock)
        granted = meter.grants(1)
        silent += granted == 0
        if granted == 4:
            break
        for _step in range(granted):
            costs.record(1, 0.01)
    else:
        pytest.fail(f"not at full speed after 2000 ticks, {silent} of them silent")
    assert 200 < silent < 400  # one easing from 100 ms to 60: ln(0.6) / ln(0.998) = 256


def test_usual_refusals_hardly_move_the_estimate() -> None:
    """In deadline mode nearly every tick ends with a refusal; that must not lower the estimate too far."""
    costs = TextCosts()
    for _ in range(300):
        costs.record(1, 0.01)
        costs.record(1, 0.01)
        costs.refuse(1)
    assert 0.0095 < costs.predict(1) <= 0.01


@given(
    records=st.lists(st.tuples(st.integers(1, 64), st.floats(1e-4, 1)), min_size=1, max_size=40),
    rows=st.integers(1, 64),
)
def test_a_prediction_is_never_below_what_a_smaller_step_took(
    records: list[tuple[int, float]], rows: int
) -> None:
    costs = TextCosts()
    for measured, seconds in records:
        costs.record(measured, seconds)
    seen = [seconds for _, seconds in records]
    assert 0 < costs.predict(rows) <= max(seen) * 64
    own = [seconds for measured, seconds in records if bucket_of(measured) == bucket_of(rows)][-16:]
    if len(own) == 1:
        assert costs.predict(rows) == own[0]
    elif own:
        assert costs.predict(rows) == sorted(own)[-2]


def test_unmeasured_buckets_borrow_without_optimism() -> None:
    costs = TextCosts()
    assert costs.predict(5) == 0
    costs.record(8, 0.02)
    assert costs.predict(1) == 0.02  # the next larger one's
    assert costs.predict(32) == pytest.approx(0.08)  # in proportion to its rows


@given(st.integers(1, 64))
def test_buckets_are_the_smallest_that_hold(rows: int) -> None:
    bucket = bucket_of(rows)
    assert bucket in ROW_BUCKETS
    assert rows <= bucket
    assert all(other < rows for other in ROW_BUCKETS if other < bucket)


@pytest.mark.parametrize("rows", [0, 65])
def test_rows_beyond_the_buckets_are_an_error(rows: int) -> None:
    with pytest.raises(ValueError, match=f"1..64, got {rows}"):
        bucket_of(rows)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"steps": -1}, "steps"), ({"rows": 0}, "rows"), ({"rows": 65}, "rows"),
     ({"mode": "soft"}, '"soft"'), ({"margin": -1.0}, "margin")],
)  # fmt: skip
def test_wrong_budgets_are_named(options: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Budget(**options)  # type: ignore[arg-type]


# -- completing prefixes and forking suffix slots ------------------------------------------------


def test_no_prefix_is_completed_and_no_suffix_forked_once_the_tick_is_due() -> None:
    """Each takes 10 ms, as a step does; what found no time is done in the next tick, before its steps."""
    engine, model, clock = _busy(texts=3)
    for method in ("complete", "fork"):
        model.before[method] = lambda: clock.sleep(0.01)
    engine.advance(Budget(steps=9), clock.now + 0.025)  # complete, fork, fork
    assert (model.calls["complete"], model.calls["fork"], model.calls["extend"]) == (1, 2, 0)
    engine.check_integrity()
    engine.advance(Budget(steps=9), clock.now + 0.015)  # fork and one step
    assert (model.calls["complete"], model.calls["fork"], model.calls["extend"]) == (1, 3, 1)
    assert model.steps == [3]


def test_a_deadline_leaves_time_for_a_fork_as_for_a_step() -> None:
    engine, model, clock = _busy()
    model.before["fork"] = lambda: clock.sleep(0.01)
    engine.advance(Budget(steps=1), clock.now + 1.0)  # learns that it takes 10 ms
    with engine.observe(see(2)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="a", max_tokens=250))
    budget = Budget(steps=5, mode="deadline", margin=0.005)
    engine.advance(budget, clock.now + 0.012)
    assert model.calls["fork"] == 1
    engine.advance(budget, clock.now + 0.03)
    assert model.calls["fork"] == 2


def test_a_prefix_without_texts_is_never_completed() -> None:
    engine, model = build()
    engine.observe(see(1)).close()
    engine.advance(Budget(steps=4))
    assert model.calls["complete"] == 0


def test_a_deadline_leaves_time_for_completing_a_prefix() -> None:
    engine, model, clock = _busy()
    model.before["complete"] = lambda: clock.sleep(0.01)
    engine.advance(Budget(steps=1), clock.now + 1.0)  # learns that it takes 10 ms
    with engine.observe(see(2)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="a", max_tokens=250))
    budget = Budget(steps=5, mode="deadline", margin=0.005)
    engine.advance(budget, clock.now + 0.012)
    assert model.calls["complete"] == 1
    engine.advance(budget, clock.now + 0.03)
    assert model.calls["complete"] == 2


def test_a_tick_without_time_to_fork_counts_as_one_refusal_however_many_wait() -> None:
    """Each refusal eases the estimate: with many waiting it would soon be an optimist."""
    engine, model, clock = _busy(texts=6)
    model.before["fork"] = lambda: clock.sleep(0.01)
    engine.costs.fork.record(0.01)
    engine.advance(Budget(steps=1, mode="deadline", margin=0.0), clock.now + 0.005)
    assert model.calls["fork"] == 0
    assert engine.costs.fork.predict() == pytest.approx(0.01 * Cost.EASE)


def test_a_slow_completion_is_waited_out_and_not_refused_for_ever() -> None:
    engine, model, clock = _busy()
    engine.costs.complete.record(0.03)
    budget = Budget(steps=1, mode="deadline", margin=0.0)
    ticks = 0
    while not model.calls["complete"] and ticks < 1000:
        engine.advance(budget, clock.now + 0.02)
        ticks += 1
    assert 150 < ticks < 300  # ln(2 / 3) / ln(0.998) = 203


def test_without_a_step_nothing_is_completed_or_forked() -> None:
    engine, model, _ = _busy()
    engine.advance(Budget(steps=0))
    assert (model.calls["complete"], model.calls["fork"], engine.live) == (0, 0, 1)
