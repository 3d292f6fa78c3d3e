# SPDX-License-Identifier: Apache-2.0
"""What each mode does with a schedule, counted by hand; what does not fit is refused."""

from __future__ import annotations

import pytest

from oxygen_ros.bench.workload import draw_schedule, fill_ticks, make_plan
from oxygen_ros.engine import Budget, Load, plan_capacity

STEADY = draw_schedule("one", 12, 6, 1)


def last(mode: str, k: int, suffix: int = 2, requests: int = 1):
    """The tick after which nothing changes any more."""
    return make_plan(mode, draw_schedule("one", 12, 6, requests), k, suffix).ticks[-1]


def test_isolated_prefills_for_each_text_and_runs_it_alone() -> None:
    tick = last("isolated", 3, requests=2)
    assert tick.prefills == 1 + 2
    assert tick.completions == 2
    assert tick.steps == ((2, 1), *[(1, 1)] * 5) * 2


def test_shared_saves_the_prefills_only() -> None:
    assert last("shared", 3).prefills == 1
    assert last("shared", 3, requests=2).completions == 1
    assert last("shared", 3).steps == last("isolated", 3).steps


def test_steady_oxygen_has_a_row_for_each_text_in_flight() -> None:
    """6 tokens, 2 steps a tick: 3 texts in flight; the newest brings its prompt of 2 rows first."""
    tick = last("oxygen", 2)
    assert tick.prefills == 1
    assert tick.steps == ((4, 3), (3, 3))


def test_batched_prefills_for_each_text_and_has_its_prefix() -> None:
    tick = last("batched", 2, requests=2)
    assert tick.prefills == 3
    assert tick.steps == ((8, 6), (6, 6))
    assert last("oxygen", 2, requests=2).steps == ((8, 3), (6, 3)), "two texts of a tick share its prefix"


def test_a_text_that_k_does_not_divide_leaves_its_last_tick_early() -> None:
    """6 tokens, 4 steps a tick: of two texts the older needs only two steps more."""
    assert last("oxygen", 4).steps == ((3, 2), (2, 2), (1, 1), (1, 1))


def test_k_equal_to_n_is_shared_execution() -> None:
    assert last("oxygen", 6) == last("shared", 6)


def test_no_steps_at_all() -> None:
    """k = 0: the texts of the first tick keep their slots for ever, later ones find none."""
    plan = make_plan("batched", STEADY, 0, 2)
    assert [tick.prefills for tick in plan.ticks[:3]] == [2, 1, 1]
    assert all(tick.steps == () for tick in plan.ticks)


@pytest.mark.parametrize("mode", ["isolated", "shared", "batched", "oxygen"])
@pytest.mark.parametrize(("n", "k", "requests"), [(30, 1, 1), (30, 5, 2), (5, 5, 1), (7, 3, 1)])
def test_steady_slots_are_those_of_a_robot(mode: str, n: int, k: int, requests: int) -> None:
    """The same number of slots as the node plans for the same texts."""
    plan = make_plan(mode, draw_schedule("one", n + 2, n, requests), k, 1)
    loads = [Load(n, 1)] * requests
    planned = plan_capacity(loads, Budget(steps=k), mode=mode)
    assert plan.capacity == planned


def test_arrivals_have_the_same_mean() -> None:
    for arrivals in ("one", "bursts", "poisson", "random"):
        schedule = draw_schedule(arrivals, 2000, 10, 2, burst_every=5, seed=1)
        asked = sum(map(len, schedule)) / 2000
        tokens = sum(map(sum, schedule)) / 2000
        assert asked == pytest.approx(2, rel=0.05), arrivals
        assert tokens == pytest.approx(20, rel=0.06), arrivals
    bursts = draw_schedule("bursts", 10, 10, 2, burst_every=5)
    assert [len(asked) for asked in bursts] == [10, 0, 0, 0, 0] * 2
    assert {n for asked in draw_schedule("random", 500, 4, 1) for n in asked} == set(range(1, 8))


def test_ticks_to_fill() -> None:
    assert fill_ticks(30, 1) == 30
    assert fill_ticks(30, 4) == 8
    assert fill_ticks(10, 5, "random") == 4
    assert fill_ticks(10, 5, "bursts", 10) == 12


def test_more_texts_than_rows_says_what_helps() -> None:
    with pytest.raises(ValueError, match=r"64 texts in flight need 65 rows.* 64 at most: raise k above 1"):
        make_plan("oxygen", draw_schedule("one", 70, 64, 1), 1, 2)
    make_plan("isolated", draw_schedule("one", 70, 64, 1), 1, 2)  # one text at a time always fits
