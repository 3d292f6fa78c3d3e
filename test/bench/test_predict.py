# SPDX-License-Identifier: Apache-2.0
"""The prediction against values worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from oxygen_ros.bench.predict import Costs, choices, interpolate, predict_ratio, predict_tick, recommend
from oxygen_ros.bench.workload import TickPlan, draw_schedule, make_plan

# Milliseconds: prefill 50, denoise 20, a step 5 for one row and 1 more for each further one.
COSTS = Costs(50, 20, {(rows, prefixes): 4 + rows for rows in range(1, 65) for prefixes in range(1, 65)})


def test_tick() -> None:
    assert predict_tick(TickPlan(2, ((2, 1), (1, 1), (1, 1))), COSTS) == 2 * 50 + 20 + 6 + 5 + 5
    costs = replace(COSTS, completion=3)
    assert predict_tick(TickPlan(1, ((1, 1),), completions=1), costs) == 50 + 3 + 20 + 5


def test_ratio_of_thirty_tokens() -> None:
    """N 30, suffix of 1. Isolated: 2 · 50 + 20 + 30 · 5 = 270. k 1: 70 + 34 = 104. k 5: 70 + 5 · 10 = 120."""
    for k, tick in ((1, 104), (5, 120)):
        schedule = draw_schedule("one", 40, 30, 1)
        isolated = make_plan("isolated", schedule, k, 1).ticks[-5:]
        oxygen = make_plan("oxygen", schedule, k, 1).ticks[-5:]
        assert predict_ratio(isolated, COSTS, oxygen, COSTS) == pytest.approx(270 / tick)


def test_steps_of_unmeasured_size_lie_between() -> None:
    costs = Costs(1, 1, {(1, 1): 2.0, (4, 4): 5.0, (8, 8): 13.0})
    assert costs.step((4, 4)) == 5
    assert costs.step((2, 2)) == pytest.approx(3)
    assert costs.step((6, 2)) == pytest.approx(9)
    assert costs.step((16, 16)) == pytest.approx(26), "beyond the largest in proportion"
    assert interpolate(1, (2, 4), (7.0, 9.0)) == 7


def test_recommended_k_is_the_largest_that_fits() -> None:
    """N 10, suffix 1: k = 1 has 10 rows: 70 + 14 = 84; k = 2: 70 + 2 · 9 = 88; k = 5: 70 + 5 · 6 = 100."""
    possible = choices(10, 1, 1, COSTS)
    ticks = {choice.k: choice.tick for choice in possible}
    assert (ticks[1], ticks[2], ticks[5], ticks[10]) == (84, 88, 100, 120)
    assert {choice.k: choice.text_ticks for choice in possible}[3] == 4
    best = recommend(possible, 100)
    assert best is not None
    assert best.k == 5
    assert recommend(possible, 83) is None


def test_k_too_small_for_the_rows_is_no_choice() -> None:
    assert min(choice.k for choice in choices(100, 1, 1, COSTS)) == 2
    assert choices(10, 65, 1, COSTS) == []
