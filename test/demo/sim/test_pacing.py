# SPDX-License-Identifier: Apache-2.0
"""Simulated time follows the wall clock; after something slow it catches up a little."""

from __future__ import annotations

import pytest

from oxygen_ros.demo.sim.pacing import Pacer, Periodic


def test_one_step_a_period() -> None:
    pacer = Pacer(period=0.01, factor=1.0, burst=0.25)
    assert pacer.owed(100.0) == 1
    assert pacer.owed(100.005) == 0
    assert pacer.wait(100.004) == pytest.approx(0.006)
    assert pacer.owed(100.0101) == 1
    assert pacer.owed(100.0451) == 3
    assert pacer.lost == 0.0


def test_real_time_factor_scales() -> None:
    pacer = Pacer(period=0.01, factor=2.0, burst=0.25)
    steps = sum(pacer.owed(i * 0.001) for i in range(1001))
    assert steps == pytest.approx(200, abs=1)


def test_a_slow_moment_is_caught_up_with_up_to_a_burst_and_the_rest_is_lost() -> None:
    pacer = Pacer(period=0.01, factor=1.0, burst=0.25)
    pacer.owed(0.0)
    assert pacer.owed(0.2) == 20
    assert pacer.owed(3.2) == 26
    assert pacer.lost == pytest.approx(2.74)
    assert pacer.owed(3.2) == 0
    assert pacer.owed(3.211) == 1


def test_a_machine_that_is_always_too_slow_never_owes_more_than_a_burst() -> None:
    pacer = Pacer(period=0.01, factor=1.0, burst=0.25)
    now = 0.0
    for _ in range(100):
        steps = pacer.owed(now)
        assert steps <= 26
        now += steps * 0.02  # every step takes twice its time
    assert pacer.lost > 0.0


def test_pictures_come_on_a_grid_and_missed_ones_are_counted() -> None:
    periodic = Periodic(15.0)
    times = [i * 0.01 for i in range(1, 101)]
    taken = [t for t in times if periodic.due(t)]
    assert len(taken) == 15 or len(taken) == 16
    assert periodic.missed == 0
    assert not periodic.due(1.0)
    assert periodic.due(2.0)
    assert periodic.missed == 14
    assert not periodic.due(2.01)


def test_rate_zero_is_never_and_rates_that_divide_coincide() -> None:
    assert not any(Periodic(0.0).due(i * 0.01) for i in range(200))
    fast, slow = Periodic(15.0), Periodic(5.0)
    both = [(fast.due(t), slow.due(t)) for t in (i * 0.01 for i in range(300))]
    assert all(f for f, s in both if s)
    assert sum(s for _, s in both) == 15
