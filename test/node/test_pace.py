# SPDX-License-Identifier: Apache-2.0
"""When ticks are due."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.node.pace import ChunkEndPace, ImagesPace, PeriodPace


def test_a_tick_in_time_skips_nothing() -> None:
    pace = PeriodPace(0.1)
    pace.start(5.0)
    assert pace.late(5.0) == 0.0
    assert pace.begin(5.0, 0.0) == pytest.approx(5.1)
    assert pace.begin(5.1, 0.0) == pytest.approx(5.2)
    assert pace.skipped == 0


def test_only_wholly_missed_periods_are_skipped() -> None:
    pace = PeriodPace(0.1)
    pace.start(0.0)
    pace.begin(0.0, 0.0)
    # Due at 0.1, started at 0.19: late, not missed.
    assert pace.late(0.19) == pytest.approx(0.09)
    assert pace.begin(0.19, 0.0) == pytest.approx(0.2)
    assert pace.skipped == 0
    # Due at 0.2, started at 0.45: 0.2..0.3 and 0.3..0.4 passed without a tick.
    assert pace.begin(0.45, 0.0) == pytest.approx(0.5)
    assert pace.skipped == 2


def test_periods_without_input_are_not_counted_as_skipped() -> None:
    pace = PeriodPace(0.1)
    pace.start(0.0)
    for now in (0.05, 0.15, 0.95):
        pace.pass_over(now)
    assert pace.due <= 0.95 < pace.due + 0.1 + 1e-9
    assert pace.begin(0.97, 0.0) == pytest.approx(1.0)
    assert pace.skipped == 0


@pytest.mark.parametrize("early", [0.005, 0.05, 0.095])
def test_texts_have_their_time_whenever_slow_images_come(early: float) -> None:
    """Images at 5 Hz, a period of 0.1 s: 5 ms before the grid's time they left 5 ms for the texts, always."""
    pace = PeriodPace(0.1)
    pace.start(0.0)
    pace.begin(0.0, 0.0)
    for image in range(1, 6):
        now = 0.2 * image - early
        pace.pass_over(now)
        pace.resume(now)
        assert pace.begin(now, 0.0) - now == pytest.approx(0.1)
    assert pace.skipped == 0


@given(
    period=st.floats(0.001, 10.0),
    late=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=30),
)
def test_ticks_stay_on_the_grid(period: float, late: list[float]) -> None:
    """Whatever the delays: the next due time lies ahead by a period at most; every period is counted."""
    pace = PeriodPace(period)
    pace.start(0.0)
    for delay in late:
        now = pace.due + delay * period
        due = pace.begin(now, 0.0)
        assert -1e-6 * period < due - now <= period * (1 + 1e-6)
        assert due / period == pytest.approx(round(due / period), abs=1e-6)
    assert round(pace.due / period) == len(late) + pace.skipped


def test_images_are_expected_at_their_own_rate() -> None:
    pace = ImagesPace(0.5)
    pace.start(0.0)
    due = 0.0
    for index in range(100):
        now = index * 0.1
        assert pace.due <= now
        assert pace.late(now) == 0.0
        due = pace.begin(now, 0.0)
    assert due == pytest.approx(9.9 + 0.1, abs=0.01)


def test_the_end_of_the_chunk_is_the_next_tick() -> None:
    pace = ChunkEndPace(0.2)
    pace.start(1.0)
    assert pace.begin(1.0, 2.5) == 2.5
    assert pace.due == pytest.approx(1.2)  # until the chunk is out, the retry stands
    pace.has_published()
    assert pace.due == 2.5
