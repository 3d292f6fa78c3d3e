# SPDX-License-Identifier: Apache-2.0
"""When ticks are due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.node.trigger import ChunkEndTrigger, ImagesTrigger, PeriodTrigger


def test_a_tick_in_time_skips_nothing() -> None:
    trigger = PeriodTrigger(0.1)
    trigger.start(5.0)
    assert trigger.late(5.0) == 0.0
    assert trigger.begin(5.0, 0.0) == pytest.approx(5.1)
    assert trigger.begin(5.1, 0.0) == pytest.approx(5.2)
    assert trigger.skipped == 0


def test_only_wholly_missed_periods_are_skipped() -> None:
    trigger = PeriodTrigger(0.1)
    trigger.start(0.0)
    trigger.begin(0.0, 0.0)
    # Due at 0.1, started at 0.19: late, not missed.
    assert trigger.late(0.19) == pytest.approx(0.09)
    assert trigger.begin(0.19, 0.0) == pytest.approx(0.2)
    assert trigger.skipped == 0
    # Due at 0.2, started at 0.45: 0.2..0.3 and 0.3..0.4 passed without a tick.
    assert trigger.begin(0.45, 0.0) == pytest.approx(0.5)
    assert trigger.skipped == 2


def test_periods_without_input_are_not_counted_as_skipped() -> None:
    trigger = PeriodTrigger(0.1)
    trigger.start(0.0)
    for now in (0.05, 0.15, 0.95):
        trigger.pass_over(now)
    assert trigger.due <= 0.95 < trigger.due + 0.1 + 1e-9
    assert trigger.begin(0.97, 0.0) == pytest.approx(1.0)
    assert trigger.skipped == 0


@pytest.mark.parametrize("early", [0.005, 0.05, 0.095])
def test_texts_have_their_time_whenever_slow_images_come(early: float) -> None:
    """Images at 5 Hz, a period of 0.1 s: 5 ms before the grid's time they left 5 ms for the texts, always."""
    trigger = PeriodTrigger(0.1)
    trigger.start(0.0)
    trigger.begin(0.0, 0.0)
    for image in range(1, 6):
        now = 0.2 * image - early
        trigger.pass_over(now)
        trigger.resume(now)
        assert trigger.begin(now, 0.0) - now == pytest.approx(0.1)
    assert trigger.skipped == 0


@given(
    period=st.floats(0.001, 10.0),
    late=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30),
)
def test_ticks_stay_on_the_grid(period: float, late: list[float]) -> None:
    """Whatever the delays: the next due time lies ahead by a period at most; every period is counted."""
    trigger = PeriodTrigger(period)
    trigger.start(0.0)
    for delay in late:
        now = trigger.due + delay * period
        due = trigger.begin(now, 0.0)
        assert -1e-6 * period < due - now <= period * (1 + 1e-6)
        assert due / period == pytest.approx(round(due / period), abs=1e-6)
    assert round(trigger.due / period) == len(late) + trigger.skipped


def test_images_are_expected_at_their_own_rate() -> None:
    trigger = ImagesTrigger(0.5)
    trigger.start(0.0)
    due = 0.0
    for index in range(100):
        now = index * 0.1
        assert trigger.due <= now
        assert trigger.late(now) == 0.0
        due = trigger.begin(now, 0.0)
    assert due == pytest.approx(9.9 + 0.1, abs=0.01)


def test_the_end_of_the_chunk_is_the_next_tick() -> None:
    trigger = ChunkEndTrigger(0.2)
    trigger.start(1.0)
    assert trigger.begin(1.0, 2.5) == 2.5
    assert trigger.due == pytest.approx(1.2)  # until the chunk is out, the retry stands
    trigger.has_published()
    assert trigger.due == 2.5
