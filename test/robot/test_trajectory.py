# SPDX-License-Identifier: Apache-2.0
"""Trajectories joined to what the controller follows: never faster than the limits, never back."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oxygen_ros.actions import ComponentKind, joint_space
from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.joining import ChunkJoiner, JoinRule
from oxygen_ros.robot.limits import JointLimit, Limits

SECOND = 1_000_000_000
STEP = 0.1
SPEED = 2.0
NAMES = ("a", "b")
LIMITS = Limits({name: JointLimit(-1.5, 1.5, SPEED) for name in NAMES}, "refuse")


def make_joiner() -> ChunkJoiner:
    return ChunkJoiner(JoinRule(), LIMITS)


def send(
    joiner: ChunkJoiner, chunk: Chunk, observed: NDArray[np.float64], now_ns: int
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Join a chunk and send it: the points a controller gets."""
    trajectory = joiner.join(chunk, observed, now_ns)
    joiner.remember(chunk, trajectory)
    return trajectory.offsets, trajectory.positions


def make_chunk(stamp_ns: int, values: NDArray[np.float64]) -> Chunk:
    return Chunk(stamp_ns, STEP, joint_space(NAMES), values)


def ramp(start: float, slope: float, steps: int = 8) -> NDArray[np.float64]:
    """Positions of both joints that rise by `slope` [rad/s] from `start`."""
    rise = start + slope * STEP * np.arange(1, steps + 1)
    return np.stack([rise, rise], axis=1)


def test_what_inference_took_is_not_made_up_for_at_many_times_the_speed() -> None:
    """At full speed from rest, ready after 0.17 s: the first step is past, of the second 0.03 s are left."""
    joiner = make_joiner()
    offsets, points = send(joiner, make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND + 170_000_000)
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
        offsets, points = send(joiner, make_chunk(stamp, wanted), measured, stamp + late)
        assert points == pytest.approx(wanted[: len(points)])
        assert offsets[0] == 100_000_000
    assert joiner.slowed == 0


@pytest.mark.parametrize("still_followed", [False, True])
def test_after_another_order_the_observed_joints_count(still_followed: bool) -> None:
    """A hold is another order. After a new instruction or an error the controller goes on with the trajectory
    it has: at 0.5 s of its 2 rad/s it is at 1 rad, whatever was observed."""
    joiner = make_joiner()
    send(joiner, make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND)
    joiner.forget(still_followed)
    assert (joiner.trajectory is not None) == still_followed
    stamp = SECOND + 500_000_000
    _, points = send(joiner, make_chunk(stamp, ramp(0.3, 0.0)), np.full(2, 0.3), stamp + 1)
    if still_followed:
        assert points[:4, 0] == pytest.approx([0.8, 0.6, 0.4, 0.3])
    else:
        assert points == pytest.approx(np.full((8, 2), 0.3))


def test_there_is_one_memory_of_the_last_chunk() -> None:
    """`forget` ends what is blended, and after a hold the reference too. A chunk of which nothing was sent
    leaves no reference; one that was too late for the controller may keep the one before."""
    joiner = ChunkJoiner(JoinRule("blend", delay=4), LIMITS)
    first = make_chunk(SECOND, ramp(0.0, SPEED, 7))
    second = make_chunk(SECOND + 100_000_000, ramp(0.3, 0.0))
    send(joiner, first, np.zeros(2), SECOND)
    sent = joiner.trajectory
    assert joiner.blend(second) is not second
    joiner.forget(still_followed=True)
    assert joiner.blend(second) is second
    assert joiner.trajectory is sent
    joiner.remember(first, joiner.trajectory)
    assert joiner.blend(second) is not second
    assert joiner.trajectory is sent
    joiner.remember(first)
    assert joiner.trajectory is None
    assert joiner.blend(second) is not second
    joiner.forget()
    assert joiner.blend(second) is second


def test_a_stray_arm_ends_the_blend_but_not_the_trajectory() -> None:
    joiner = ChunkJoiner(JoinRule("blend", delay=4, tolerance=0.1), LIMITS)
    send(joiner, make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND)
    later = make_chunk(SECOND + 200_000_000, ramp(0.3, 0.0))
    assert joiner.find_leftover(later.stamp_ns, np.full(2, -1.0), 8, STEP) is None
    assert joiner.strayed == 1
    assert joiner.blend(later) is later
    assert joiner.trajectory is not None


def test_a_trajectory_that_is_over_says_nothing_of_the_present() -> None:
    joiner = make_joiner()
    send(joiner, make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND)
    stamp = 10 * SECOND
    _, points = send(joiner, make_chunk(stamp, ramp(-1.0, 0.0)), np.full(2, -1.0), stamp + 1)
    assert points == pytest.approx(np.full((8, 2), -1.0))


def test_a_trajectory_that_ended_while_the_chunk_was_made_has_the_arm_at_its_end() -> None:
    """The arm was seen on its way at 0.1 of 1.4 rad; it has arrived since, and the way goes on from there."""
    joiner = make_joiner()
    send(joiner, make_chunk(SECOND, ramp(0.0, SPEED, 7)), np.zeros(2), SECOND)  # over at 1.7 s
    stamp = SECOND + 500_000_000
    _, points = send(joiner, make_chunk(stamp, ramp(1.4, 0.0)), np.full(2, 0.1), stamp + 400_000_000)
    assert points == pytest.approx(np.full((4, 2), 1.4))
    assert joiner.slowed == 0


def test_a_little_outside_the_limits_is_no_reason_to_refuse() -> None:
    """Noise of an encoder at its end stop, with a millisecond left of the first step."""
    _, points = send(make_joiner(), make_chunk(SECOND, ramp(1.5, 0.0)), np.full(2, 1.51), SECOND + 99_000_000)
    assert points == pytest.approx(np.full((8, 2), 1.5))


def test_velocities_and_late_chunks_are_refused() -> None:
    velocity = Chunk(SECOND, STEP, joint_space(NAMES, ComponentKind.JOINT_VELOCITY), np.zeros((4, 2)))
    with pytest.raises(ChunkError, match="positions"):
        make_joiner().join(velocity, np.zeros(2), SECOND)
    with pytest.raises(ChunkError, match="nothing of the chunk is left"):
        send(make_joiner(), make_chunk(SECOND, ramp(0.0, 0.0, 4)), np.zeros(2), SECOND + 400_000_000)


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
        offsets, points = send(joiner, make_chunk(stamp, values), np.full(2, start), now)
        times = np.concatenate([[now], offsets + stamp])
        way = np.vstack([np.full(2, start) if reference is None else reference, points])
        speeds = np.abs(np.diff(way, axis=0)) / (np.diff(times)[:, None] / SECOND)
        assert speeds.max() <= SPEED + 1e-6
        assert np.abs(points).max() <= 1.5
        now += gap_ms * 1_000_000
        ended_at = int(times[-1])
        reference = np.array([np.interp(now, times, way[:, joint]) for joint in range(2)])
