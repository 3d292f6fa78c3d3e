# SPDX-License-Identifier: Apache-2.0
"""Trajectories joined to what the controller follows: never faster than the limits, never back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.join import Joiner
from oxygen_ros.robot.limits import JointLimit, Limits

SECOND = 1_000_000_000
STEP = 0.1
SPEED = 2.0
NAMES = ("a", "b")


def make_joiner() -> Joiner:
    return Joiner(Limits({name: JointLimit(-1.5, 1.5, SPEED) for name in NAMES}, "refuse"))


def make_chunk(stamp_ns: int, values: NDArray[np.float64]) -> Chunk:
    return Chunk(stamp_ns, STEP, NAMES, values, "position")


def ramp(start: float, slope: float, steps: int = 8) -> NDArray[np.float64]:
    """Positions of both joints that rise by `slope` [rad/s] from `start`."""
    rise = start + slope * STEP * np.arange(1, steps + 1)
    return np.stack([rise, rise], axis=1)


def test_what_inference_took_is_not_made_up_for_at_many_times_the_speed() -> None:
    """At full speed from rest, ready after 0.17 s: the first step is past, of the second 0.03 s are left."""
    joiner = make_joiner()
    offsets, points = joiner.join(make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND + 170_000_000)
    assert offsets[0] == 200_000_000
    assert points[0] == pytest.approx([SPEED * 0.03] * 2)
    assert points[1] == pytest.approx([SPEED * 0.13] * 2)
    assert joiner.slowed == 1


def test_a_way_the_controller_is_on_is_followed_without_a_change() -> None:
    """A steady motion at 1.9 of 2 rad/s, a new chunk each 0.1 s, whatever its first point leaves of time."""
    joiner = make_joiner()
    for tick in range(1, 5):
        stamp = SECOND + tick * 100_000_000
        wanted = ramp(-1.4 + 1.9 * STEP * tick, 1.9)
        measured = wanted[0] - 0.25  # the arm lags behind its reference
        late = 1_000_000 if tick == 1 else 99_000_000
        if tick == 1:
            measured = wanted[0] - 1.9 * STEP
        offsets, points = joiner.join(make_chunk(stamp, wanted), measured, stamp + late)
        assert points == pytest.approx(wanted[: len(points)])
        assert offsets[0] == 100_000_000
    assert joiner.slowed == 0


def test_after_another_order_the_observed_joints_count() -> None:
    joiner = make_joiner()
    joiner.join(make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND)
    joiner.forget()
    stamp = SECOND + 500_000_000
    _, points = joiner.join(make_chunk(stamp, ramp(0.3, 0.0)), np.full(2, 0.3), stamp + 1)
    assert points == pytest.approx(np.full((8, 2), 0.3))


def test_a_trajectory_that_is_over_says_nothing_of_the_present() -> None:
    joiner = make_joiner()
    joiner.join(make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND)
    stamp = 10 * SECOND
    _, points = joiner.join(make_chunk(stamp, ramp(-1.0, 0.0)), np.full(2, -1.0), stamp + 1)
    assert points == pytest.approx(np.full((8, 2), -1.0))


def test_a_trajectory_that_ended_while_the_chunk_was_made_has_the_arm_at_its_end() -> None:
    """The arm was seen on its way at 0.1 of 1.4 rad; it has arrived since, and the way goes on from there."""
    joiner = make_joiner()
    joiner.join(make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND)  # over at 1.7 s
    stamp = SECOND + 500_000_000
    _, points = joiner.join(make_chunk(stamp, ramp(1.4, 0.0)), np.full(2, 0.1), stamp + 400_000_000)
    assert points == pytest.approx(np.full((4, 2), 1.4))
    assert joiner.slowed == 0


def test_a_little_outside_the_limits_is_no_reason_to_refuse() -> None:
    """Noise of an encoder at its end stop, with a millisecond left of the first step."""
    _, points = make_joiner().join(make_chunk(SECOND, ramp(1.5, 0.0)), np.full(2, 1.51), SECOND + 99_000_000)
    assert points == pytest.approx(np.full((8, 2), 1.5))


def test_velocities_and_late_chunks_are_refused() -> None:
    velocity = Chunk(SECOND, STEP, NAMES, np.zeros((4, 2)), "velocity")
    with pytest.raises(ChunkError, match="positions"):
        make_joiner().join(velocity, np.zeros(2), SECOND)
    with pytest.raises(ChunkError, match="nothing of the chunk is left"):
        make_joiner().join(make_chunk(SECOND, ramp(0.0, 0.0, 4)), np.zeros(2), SECOND + 400_000_000)


@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.6), st.floats(-1.0, 1.0), st.floats(-1.0, 1.0), st.integers(1, 700)),
        min_size=1,
        max_size=8,
    )
)
def test_the_controllers_reference_never_moves_faster_than_permitted(
    ticks: list[tuple[float, float, float, int]],
) -> None:
    """Whatever the chunks, their lateness and the measured joints: as the controller goes from its place
    at publication to the first point and on, no part of the way is faster than the limit."""
    joiner, now = make_joiner(), SECOND
    reference: NDArray[np.float64] | None = None
    ended_at = 0
    for late, start, slope, gap_ms in ticks:
        stamp = now - int(late * SECOND)
        if ended_at < stamp:
            reference = None  # it was over when the joints were seen: they stand where they were seen
        values = np.clip(ramp(start, slope), -1.5, 1.5)
        offsets, points = joiner.join(make_chunk(stamp, values), np.full(2, start), now)
        times = np.concatenate([[now], offsets + stamp])
        way = np.vstack([np.full(2, start) if reference is None else reference, points])
        speeds = np.abs(np.diff(way, axis=0)) / (np.diff(times)[:, None] / SECOND)
        assert speeds.max() <= SPEED + 1e-6
        assert np.abs(points).max() <= 1.5
        now += gap_ms * 1_000_000
        ended_at = int(times[-1])
        reference = np.array([np.interp(now, times, way[:, joint]) for joint in range(2)])
