# SPDX-License-Identifier: Apache-2.0
"""Trajectories are spliced in time, with exact numbers; what cannot be followed is refused without effect."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.demo.sim.trajectory import TrajectoryExecutor, TrajectoryRefused

MS = 1_000_000
NAMES = ("a", "b")


@pytest.fixture
def executor() -> TrajectoryExecutor:
    return TrajectoryExecutor(NAMES, [0.0, 0.0])


def at(executor: TrajectoryExecutor, ms: int) -> list[float]:
    return executor.target(ms * MS).tolist()


def test_holds_the_start_until_the_first_trajectory(executor: TrajectoryExecutor) -> None:
    assert at(executor, -5) == [0.0, 0.0]
    assert at(executor, 10_000) == [0.0, 0.0]
    assert executor.finished(0)


def test_interpolates_linearly_and_holds_the_last_point(executor: TrajectoryExecutor) -> None:
    executor.accept(NAMES, 0, [100 * MS, 200 * MS], [[1.0, -1.0], [3.0, 0.0]], now_ns=1000 * MS)
    assert at(executor, 1000) == [0.0, 0.0]
    assert at(executor, 1050) == [0.5, -0.5]
    assert at(executor, 1100) == [1.0, -1.0]
    assert at(executor, 1150) == [2.0, -0.5]
    assert not executor.finished(1199 * MS)
    assert at(executor, 1200) == [3.0, 0.0]
    assert at(executor, 9999) == [3.0, 0.0]
    assert executor.finished(1200 * MS)


def test_columns_go_by_name(executor: TrajectoryExecutor) -> None:
    executor.accept(("b", "a"), 0, [100 * MS], [[1.0, 2.0]], now_ns=0)
    assert at(executor, 100) == [2.0, 1.0]


def test_points_that_have_passed_are_dropped_and_the_arm_does_not_step_back(
    executor: TrajectoryExecutor,
) -> None:
    executor.hold([10.0, 10.0])
    # observed at 1.000 s, arrives at 1.250 s: the points at 1.100 s and 1.200 s have passed
    executor.accept(
        NAMES,
        1000 * MS,
        [100 * MS, 200 * MS, 300 * MS, 400 * MS],
        [[1.0, 1.0], [2.0, 2.0], [3.0, 3.0], [4.0, 4.0]],
        now_ns=1250 * MS,
    )
    assert at(executor, 1250) == [10.0, 10.0]
    assert at(executor, 1275) == [6.5, 6.5]
    assert at(executor, 1300) == [3.0, 3.0]
    assert at(executor, 1350) == [3.5, 3.5]


def test_a_future_start_leaves_the_old_trajectory_alone_until_then(executor: TrajectoryExecutor) -> None:
    executor.accept(
        NAMES, 0, [100 * MS, 200 * MS, 1000 * MS], [[1.0, 0.0], [2.0, 0.0], [10.0, 0.0]], now_ns=0
    )
    executor.accept(NAMES, 300 * MS, [100 * MS], [[0.0, 6.0]], now_ns=50 * MS)
    assert at(executor, 50) == [0.5, 0.0]
    assert at(executor, 150) == [1.5, 0.0]
    assert at(executor, 250) == [2.5, 0.0]
    assert at(executor, 300) == [3.0, 0.0]  # the splice
    assert at(executor, 350) == [1.5, 3.0]
    assert at(executor, 400) == [0.0, 6.0]
    assert at(executor, 1000) == [0.0, 6.0]  # the rest of the old one is gone


def test_a_point_due_at_the_start_is_approached_from_now(executor: TrajectoryExecutor) -> None:
    executor.accept(NAMES, 0, [1000 * MS], [[10.0, 0.0]], now_ns=0)
    executor.accept(NAMES, 300 * MS, [0, 100 * MS], [[7.0, 4.0], [8.0, 4.0]], now_ns=100 * MS)
    assert at(executor, 100) == [1.0, 0.0]
    assert at(executor, 200) == [4.0, 2.0]
    assert at(executor, 300) == [7.0, 4.0]
    assert at(executor, 400) == [8.0, 4.0]


@pytest.mark.parametrize(
    ("names", "stamp", "times", "positions", "reason"),
    [
        (NAMES, 0, [], [], "no points"),
        (
            NAMES,
            500 * MS,
            [100 * MS, 200 * MS],
            [[1, 1], [2, 2]],
            r"all 2 points are past; the last one by 0\.300 s",
        ),
        (NAMES, 900 * MS, [100 * MS], [[1, 1]], "past"),
        (NAMES, 0, [200 * MS, 200 * MS], [[1, 1], [2, 2]], r"point 1 is at 0\.200 s, point 0 at 0\.200 s"),
        (NAMES, 0, [200 * MS, 100 * MS], [[1, 1], [2, 2]], "times must increase"),
        (NAMES, 0, [-1 * MS, 100 * MS], [[1, 1], [2, 2]], "before the start"),
        (("a", "c"), 0, [100 * MS], [[1, 1]], "unknown joint c; the joints are a, b"),
        (("a",), 0, [100 * MS], [[1]], "joint b is missing"),
        (("a", "b", "a"), 0, [100 * MS], [[1, 1, 1]], "joint a is given more than once"),
        (NAMES, 0, [100 * MS], [[1]], "shape"),
        (NAMES, 0, [100 * MS, 200 * MS], [[1, 1], [1]], "2 positions"),
        (NAMES, 0, [100 * MS], [[1, math.nan]], "position 1 of point 0 is nan"),
        (NAMES, 0, [100 * MS], [[math.inf, 1]], "position 0 of point 0 is inf"),
    ],
)
def test_refusals_name_the_reason_and_change_nothing(
    executor: TrajectoryExecutor,
    names: tuple[str, ...],
    stamp: int,
    times: list[int],
    positions: list[list[float]],
    reason: str,
) -> None:
    executor.accept(NAMES, 0, [2000 * MS], [[4.0, 8.0]], now_ns=0)
    with pytest.raises(TrajectoryRefused, match=reason):
        executor.accept(names, stamp, times, positions, now_ns=1000 * MS)
    assert at(executor, 1000) == [2.0, 4.0]
    assert at(executor, 2000) == [4.0, 8.0]


@given(
    chunks=st.lists(
        st.tuples(
            st.integers(0, 120),  # ms until it arrives
            st.integers(-200, 200),  # stamp relative to the arrival
            st.lists(st.integers(1, 80), min_size=1, max_size=6),  # ms between points
            st.integers(0, 2**32 - 1),
        ),
        min_size=1,
        max_size=6,
    )
)
def test_whatever_arrives_the_command_never_jumps(chunks: list[tuple[int, int, list[int], int]]) -> None:
    executor = TrajectoryExecutor(NAMES, [0.0, 0.0])
    now = 1000
    for wait, ahead, gaps, seed in chunks:
        now += wait
        before = executor.target(now * MS)
        points = np.random.default_rng(seed).uniform(-1, 1, (len(gaps), 2))
        times = np.cumsum(gaps) * MS
        stamp = now + ahead
        if stamp + int(np.sum(gaps)) <= now:
            with pytest.raises(TrajectoryRefused):
                executor.accept(NAMES, stamp * MS, times, points, now * MS)
        else:
            executor.accept(NAMES, stamp * MS, times, points, now * MS)
            np.testing.assert_array_equal(executor.target(stamp * MS + int(times[-1])), points[-1])
        np.testing.assert_allclose(executor.target(now * MS), before, atol=1e-12)
        # points lie at least 1 ms apart within the unit square's diagonal: 1 us moves at most 0.002
        for t in range(now * MS, (now + 300) * MS, 7 * MS):
            assert np.abs(executor.target(t + 1000) - executor.target(t)).max() <= 0.0021
