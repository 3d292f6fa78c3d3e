# SPDX-License-Identifier: Apache-2.0
"""A new chunk and what is left of the one before: weights, times, blend, and when there is no one before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from oxygen_ros.observation import Observation
from oxygen_ros.robot.chunk import Chunk
from oxygen_ros.robot.overlap import MODES, SCHEDULES, JoinRule, Overlap, find_remains, weigh

SECOND = 1_000_000_000
GOLDEN = Path(__file__).parents[1] / "golden" / "pi05_rtc"
NAMES = ("a", "b")


def make(
    values: NDArray[np.float64], stamp_ns: int = SECOND, step: float = 0.1, kind: str = "position"
) -> Chunk:
    return Chunk(stamp_ns, step, NAMES, values, kind)


def line(
    start: float, slope: float, horizon: int, step: float = 0.1, since: float = 0.0
) -> NDArray[np.float64]:
    """Both joints on a straight line in time, first at `since` + step."""
    at = start + slope * (since + step * np.arange(1, horizon + 1))
    return np.stack([at, -at], axis=1)


def see(stamp_ns: int, joints: tuple[float, ...] = (0.0, 0.0)) -> Observation:
    return Observation(stamp_ns, {}, np.array(joints), "")


# -- weights -------------------------------------------------------------------------------------


def golden_cases() -> list[str]:
    facts = json.loads((GOLDEN / "cases.json").read_text())
    return [
        case for case in facts if f"{case}.expected.prefix_weights" in load_file(GOLDEN / "cases.safetensors")
    ]


@pytest.mark.parametrize("case", golden_cases())
def test_weights_are_the_references(case: str) -> None:
    """lerobot 0.6.1's, for every schedule, delay and horizon in the reference data."""
    facts = json.loads((GOLDEN / "cases.json").read_text())[case]
    expected = load_file(GOLDEN / "cases.safetensors")[f"{case}.expected.prefix_weights"]
    until = facts["effective_execution_horizon"]
    got = weigh(facts["prefix_attention_schedule"].lower(), facts["inference_delay"], until, len(expected))
    np.testing.assert_allclose(got, expected, atol=1e-6)


@given(
    schedule=st.sampled_from(SCHEDULES),
    delay=st.integers(0, 60),
    until=st.integers(0, 50),
    more=st.integers(0, 20),
)
def test_weights_fall_from_one_to_zero(schedule: str, delay: int, until: int, more: int) -> None:
    weights = weigh(schedule, delay, until, until + more)
    assert weights.shape == (until + more,)
    assert ((weights >= 0) & (weights <= 1)).all()
    assert (np.diff(weights) <= 1e-12).all()
    assert (weights[: min(delay, until)] == 1).all()
    assert (weights[until:] == 0).all()
    if schedule in ("exp", "linear"):
        assert (weights[min(delay, until) : until] > 0).all()


# -- what is left --------------------------------------------------------------------------------


def test_what_is_left_is_found_by_time_not_by_index() -> None:
    """0.13 s later, one step and a third: the new chunk's times lie between the old one's."""
    before = make(line(0.0, 1.0, 8))
    remains = find_remains(before, SECOND + 130_000_000, 8, 0.1)
    # Due at 0.23 .. 0.73 s after the old observation; the next, 0.83, is beyond its end at 0.8.
    np.testing.assert_allclose(remains, line(0.0, 1.0, 6, since=0.13))


@given(
    gap_ns=st.integers(1, 3 * SECOND),
    horizon=st.integers(1, 30),
    old=st.integers(1, 30),
    slope=st.floats(-3, 3),
)
def test_what_is_left_lies_on_the_old_way_and_never_beyond_its_end(
    gap_ns: int, horizon: int, old: int, slope: float
) -> None:
    before = make(line(0.2, slope, old))
    remains = find_remains(before, SECOND + gap_ns, horizon, 0.1)
    due = [gap_ns + (i + 1) * 100_000_000 for i in range(horizon)]
    assert len(remains) == sum(at <= old * 100_000_000 for at in due)
    expected = [0.2 + slope * at / 1e9 for at in due[: len(remains)]]
    np.testing.assert_allclose(remains[:, 0], expected, atol=1e-9)


# -- the blend -----------------------------------------------------------------------------------

value = st.floats(-3, 3, allow_subnormal=False)
rows = st.lists(st.tuples(value, value), min_size=1, max_size=12)
rules = st.builds(
    JoinRule,
    mode=st.sampled_from(MODES),
    delay=st.integers(0, 15),
    overlap=st.none() | st.integers(0, 15),
    schedule=st.sampled_from(SCHEDULES),
)


@given(rule=rules, old=rows, new=rows, gap_ns=st.integers(1, 2 * SECOND))
def test_a_blend_lies_between_both_and_keeps_the_time(
    rule: JoinRule, old: list[tuple[float, float]], new: list[tuple[float, float]], gap_ns: int
) -> None:
    """Weights of both sum to one, so each value is between the two; stamp and times are the new one's."""
    overlap = Overlap(rule)
    before, chunk = make(np.array(old)), make(np.array(new), SECOND + gap_ns)
    overlap.remember(before)
    joined = overlap.blend(chunk)
    assert (joined.stamp_ns, joined.horizon) == (chunk.stamp_ns, chunk.horizon)
    assert (np.diff(joined.offsets_ns) > 0).all()
    remains = find_remains(before, chunk.stamp_ns, chunk.horizon, 0.1)
    count = len(remains)
    if rule.mode != "blend":
        assert joined is chunk
        return
    low, high = np.minimum(remains, chunk.values[:count]), np.maximum(remains, chunk.values[:count])
    assert (joined.values[:count] >= low - 1e-12).all()
    assert (joined.values[:count] <= high + 1e-12).all()
    np.testing.assert_array_equal(joined.values[count:], chunk.values[count:])
    held = min(rule.delay, count if rule.overlap is None else min(rule.delay + rule.overlap, count))
    np.testing.assert_allclose(joined.values[:held], remains[:held], atol=1e-12)


@given(rule=rules, slope=st.floats(-3, 3), gap=st.integers(1, 20))
def test_equal_chunks_blend_to_themselves(rule: JoinRule, slope: float, gap: int) -> None:
    overlap = Overlap(rule)
    before = make(line(0.0, slope, 12))
    overlap.remember(before)
    # The same way seen `gap` whole steps later: the same values, to the last bit.
    rest = before.values[gap:] if gap < 12 else before.values[-1:]
    chunk = make(np.vstack([rest, np.tile(rest[-1:], (12 - len(rest), 1))]), SECOND + gap * 100_000_000)
    np.testing.assert_array_equal(overlap.blend(chunk).values, chunk.values)


@given(rule=rules, old=rows, new=rows, gap_ns=st.integers(1, SECOND), late=st.floats(0, 1.5))
def test_something_is_kept_and_nothing_of_it_is_past(
    rule: JoinRule, old: list[tuple[float, float]], new: list[tuple[float, float]], gap_ns: int, late: float
) -> None:
    """In any mode: until the chunk has run out its last action is left, and all that is left is to come."""
    overlap = Overlap(rule)
    overlap.remember(make(np.array(old)))
    joined = overlap.blend(make(np.array(new), SECOND + gap_ns))
    now_ns = joined.stamp_ns + int(late * joined.covers_s * 1e9)
    if now_ns >= joined.valid_until_ns:
        assert joined.first_valid(now_ns) == joined.horizon
        return
    offsets, points = joined.trajectory(now_ns)
    assert len(points) == len(offsets) >= 1
    assert (joined.stamp_ns + offsets > now_ns).all()
    assert (np.diff(offsets) > 0).all()


def test_values_that_are_not_finite_are_left_for_the_limits_to_refuse() -> None:
    overlap = Overlap(JoinRule("blend", delay=3))
    overlap.remember(make(line(0.0, 1.0, 8)))
    values = line(0.0, 1.0, 8)
    values[0, 0] = np.nan  # under full weight of the chunk before
    assert np.isnan(overlap.blend(make(values, SECOND + 100_000_000)).values[0, 0])


def test_velocities_are_joined_too_but_never_with_positions() -> None:
    overlap = Overlap(JoinRule("blend", delay=1, schedule="zeros"))
    overlap.remember(make(np.ones((4, 2)), kind="velocity"))
    later = SECOND + 100_000_000
    assert overlap.blend(make(np.zeros((4, 2)), later, kind="velocity")).values[:, 0].tolist() == [1, 0, 0, 0]
    positions = make(np.zeros((4, 2)), later)
    assert overlap.blend(positions) is positions


# -- the guide -----------------------------------------------------------------------------------


def test_a_guide_is_what_will_have_been_executed_with_the_schedules_weights() -> None:
    overlap = Overlap(JoinRule("rtc", delay=2, overlap=3, schedule="linear", max_weight=4.0))
    overlap.remember(make(line(0.0, 1.0, 8)))
    previous = overlap.find_previous(see(SECOND + 200_000_000), 10, 0.1)
    assert previous is not None
    np.testing.assert_allclose(previous.actions[:6], line(0.0, 1.0, 6, since=0.2))
    assert np.isfinite(previous.actions).all()
    np.testing.assert_allclose(previous.weights, [1, 1, 0.75, 0.5, 0.25, 0, 0, 0, 0, 0])
    assert previous.max_weight == 4.0


@pytest.mark.parametrize("mode", MODES)
def test_there_is_no_one_before_at_first_after_forgetting_out_of_time_and_from_the_future(mode: str) -> None:
    overlap = Overlap(JoinRule(mode, delay=2))
    later = make(line(9.0, 0.0, 8), SECOND + 100_000_000)

    def stands_alone(chunk: Chunk) -> bool:
        previous = overlap.find_previous(see(chunk.stamp_ns), chunk.horizon, chunk.step)
        return previous is None and overlap.blend(chunk) is chunk

    assert stands_alone(later)
    overlap.remember(make(line(0.0, 1.0, 8)))
    assert stands_alone(later) == (mode == "replace")
    assert stands_alone(make(line(9.0, 0.0, 8), SECOND + 800_000_000))  # run out
    assert stands_alone(make(line(9.0, 0.0, 8), SECOND))  # not younger
    assert stands_alone(make(line(9.0, 0.0, 8), SECOND - 1))
    overlap.forget()
    assert stands_alone(later)


@pytest.mark.parametrize("mode", ["blend", "rtc"])
def test_an_arm_that_is_elsewhere_was_not_executing_the_one_before(mode: str) -> None:
    """At 1.25 s the chunk has joint a at 0.25 and b at -0.25; columns: their places among three joints."""
    for joint, joins in ((0.2, True), (0.31, True), (0.36, False), (-0.9, False)):
        overlap = Overlap(JoinRule(mode, delay=2, tolerance=0.1), columns=[2, 0])
        overlap.remember(make(line(0.0, 1.0, 8)))
        chunk = make(line(9.0, 0.0, 8), SECOND + 250_000_000)
        previous = overlap.find_previous(see(chunk.stamp_ns, (-0.25, 7.0, joint)), 8, 0.1)
        assert (overlap.blend(chunk) is not chunk or previous is not None) == joins
        assert overlap.strayed == (not joins)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "mix"}, "mode is 'mix'"),
        ({"schedule": "cos"}, "schedule is 'cos'"),
        ({"delay": -1}, "delay is -1"),
        ({"overlap": -2}, "overlap is -2"),
        ({"max_weight": float("nan")}, "max_weight is nan"),
        ({"tolerance": 0.0}, "tolerance is 0.0"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused_by_name(change: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JoinRule(**change)
