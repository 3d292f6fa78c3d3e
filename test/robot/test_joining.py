# SPDX-License-Identifier: Apache-2.0
"""A new chunk and what is left of the one before: weights, times, blend, and without one before."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file

from oxygen_ros.actions import ActionComponent, ActionSpace, ComponentKind, joint_space
from oxygen_ros.observation import Leftover
from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.joining import MODES, SCHEDULES, ChunkJoiner, JoinRule
from oxygen_ros.robot.joining.joiner import find_rest
from oxygen_ros.robot.joining.rule import weigh
from oxygen_ros.robot.limits import JointLimit, Limits

SECOND = 1_000_000_000
GOLDEN = Path(__file__).parents[1] / "golden" / "pi05_rtc"
POSITION, VELOCITY = ComponentKind.JOINT_POSITION, ComponentKind.JOINT_VELOCITY
LIMITS = Limits({name: JointLimit(-9.0, 9.0, 9.0) for name in "ab"}, "clamp")


def make(
    values: NDArray[np.float64], stamp_ns: int = SECOND, step: float = 0.1, kind: ComponentKind = POSITION
) -> Chunk:
    return Chunk(stamp_ns, step, joint_space("ab", kind), values)


def line(
    start: float, slope: float, horizon: int, step: float = 0.1, since: float = 0.0
) -> NDArray[np.float64]:
    """Both joints on a straight line in time, first at `since` + step."""
    at = start + slope * (since + step * np.arange(1, horizon + 1))
    return np.stack([at, -at], axis=1)


def find_leftover(
    joiner: ChunkJoiner, stamp_ns: int, joints: tuple[float, ...] = (0.0, 0.0), horizon: int = 8
) -> Leftover | None:
    return joiner.find_leftover(stamp_ns, np.array(joints), horizon, 0.1)


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
    rest = find_rest(before, SECOND + 130_000_000, 8, 0.1)
    # Due at 0.23 .. 0.73 s after the old observation; the next, 0.83, is beyond its end at 0.8.
    np.testing.assert_allclose(rest, line(0.0, 1.0, 6, since=0.13))


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
    rest = find_rest(before, SECOND + gap_ns, horizon, 0.1)
    due = [gap_ns + (i + 1) * 100_000_000 for i in range(horizon)]
    assert len(rest) == sum(at <= old * 100_000_000 for at in due)
    expected = [0.2 + slope * at / 1e9 for at in due[: len(rest)]]
    np.testing.assert_allclose(rest[:, 0], expected, atol=1e-9)


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
    joiner = ChunkJoiner(rule, LIMITS)
    before, chunk = make(np.array(old)), make(np.array(new), SECOND + gap_ns)
    joiner.remember(before)
    joined = joiner.blend(chunk)
    assert (joined.stamp_ns, joined.horizon) == (chunk.stamp_ns, chunk.horizon)
    assert (np.diff(joined.offsets_ns) > 0).all()
    rest = find_rest(before, chunk.stamp_ns, chunk.horizon, 0.1)
    count = len(rest)
    if rule.mode != "blend":
        assert joined is chunk
        return
    low, high = np.minimum(rest, chunk.values[:count]), np.maximum(rest, chunk.values[:count])
    assert (joined.values[:count] >= low - 1e-12).all()
    assert (joined.values[:count] <= high + 1e-12).all()
    np.testing.assert_array_equal(joined.values[count:], chunk.values[count:])
    held = min(rule.delay, count if rule.overlap is None else min(rule.delay + rule.overlap, count))
    np.testing.assert_allclose(joined.values[:held], rest[:held], atol=1e-12)


@given(rule=rules, slope=st.floats(-3, 3), gap=st.integers(1, 20))
def test_equal_chunks_blend_to_themselves(rule: JoinRule, slope: float, gap: int) -> None:
    joiner = ChunkJoiner(rule, LIMITS)
    before = make(line(0.0, slope, 12))
    joiner.remember(before)
    # The same way seen `gap` whole steps later: the same values, to the last bit.
    rest = before.values[gap:] if gap < 12 else before.values[-1:]
    chunk = make(np.vstack([rest, np.tile(rest[-1:], (12 - len(rest), 1))]), SECOND + gap * 100_000_000)
    np.testing.assert_array_equal(joiner.blend(chunk).values, chunk.values)


@given(rule=rules, old=rows, new=rows, gap_ns=st.integers(1, SECOND), late=st.floats(0, 1.5))
def test_something_is_kept_and_nothing_of_it_is_past(
    rule: JoinRule, old: list[tuple[float, float]], new: list[tuple[float, float]], gap_ns: int, late: float
) -> None:
    """In any mode: until the chunk has run out its last action is left, and all that is left is to come."""
    joiner = ChunkJoiner(rule, LIMITS)
    joiner.remember(make(np.array(old)))
    joined = joiner.blend(make(np.array(new), SECOND + gap_ns))
    now_ns = joined.stamp_ns + int(late * joined.covers_s * 1e9)
    if now_ns >= joined.valid_until_ns:
        assert joined.first_valid(now_ns) == joined.horizon
        return
    offsets, points = joined.trajectory(now_ns)
    assert len(points) == len(offsets) >= 1
    assert (joined.stamp_ns + offsets > now_ns).all()
    assert (np.diff(offsets) > 0).all()


def test_values_that_are_not_finite_are_left_for_the_limits_to_refuse() -> None:
    joiner = ChunkJoiner(JoinRule("blend", delay=3), LIMITS)
    joiner.remember(make(line(0.0, 1.0, 8)))
    values = line(0.0, 1.0, 8)
    values[0, 0] = np.nan  # under full weight of the chunk before
    assert np.isnan(joiner.blend(make(values, SECOND + 100_000_000)).values[0, 0])


def test_velocities_are_joined_too_but_never_with_positions() -> None:
    joiner = ChunkJoiner(JoinRule("blend", delay=1, schedule="zeros"), LIMITS)
    joiner.remember(make(np.ones((4, 2)), kind=VELOCITY))
    later = SECOND + 100_000_000
    assert joiner.blend(make(np.zeros((4, 2)), later, kind=VELOCITY)).values[:, 0].tolist() == [1, 0, 0, 0]
    positions = make(np.zeros((4, 2)), later)
    assert joiner.blend(positions) is positions


# -- the guide -----------------------------------------------------------------------------------


def test_a_guide_is_what_will_have_been_executed_with_the_schedules_weights() -> None:
    joiner = ChunkJoiner(JoinRule("rtc", delay=2, overlap=3, schedule="linear", max_weight=4.0), LIMITS)
    joiner.remember(make(line(0.0, 1.0, 8)))
    leftover = find_leftover(joiner, SECOND + 200_000_000, horizon=10)
    assert leftover is not None
    np.testing.assert_allclose(leftover.actions[:6], line(0.0, 1.0, 6, since=0.2))
    assert np.isfinite(leftover.actions).all()
    np.testing.assert_allclose(leftover.weights, [1, 1, 0.75, 0.5, 0.25, 0, 0, 0, 0, 0])
    assert leftover.max_weight == 4.0


@pytest.mark.parametrize("mode", MODES)
def test_there_is_no_one_before_at_first_after_forgetting_out_of_time_and_from_the_future(mode: str) -> None:
    joiner = ChunkJoiner(JoinRule(mode, delay=2), LIMITS)
    later = make(line(9.0, 0.0, 8), SECOND + 100_000_000)

    def stands_alone(chunk: Chunk) -> bool:
        leftover = find_leftover(joiner, chunk.stamp_ns)
        return leftover is None and joiner.blend(chunk) is chunk

    assert stands_alone(later)
    joiner.remember(make(line(0.0, 1.0, 8)))
    assert stands_alone(later) == (mode == "replace")
    assert stands_alone(make(line(9.0, 0.0, 8), SECOND + 800_000_000))  # run out
    assert stands_alone(make(line(9.0, 0.0, 8), SECOND))  # not younger
    assert stands_alone(make(line(9.0, 0.0, 8), SECOND - 1))
    joiner.forget()
    assert stands_alone(later)


@pytest.mark.parametrize("mode", ["blend", "rtc"])
def test_an_arm_that_is_elsewhere_was_not_executing_the_one_before(mode: str) -> None:
    """At 1.25 s the chunk has joint a at 0.25 and b at -0.25; columns: their places among three joints."""
    for joint, joins in ((0.2, True), (0.31, True), (0.36, False), (-0.9, False)):
        joiner = ChunkJoiner(JoinRule(mode, delay=2, tolerance=0.1), LIMITS, columns=[2, 0])
        joiner.remember(make(line(0.0, 1.0, 8)))
        chunk = make(line(9.0, 0.0, 8), SECOND + 250_000_000)
        leftover = find_leftover(joiner, chunk.stamp_ns, (-0.25, 7.0, joint))
        assert (joiner.blend(chunk) is not chunk or leftover is not None) == joins
        assert joiner.strayed == (not joins)


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


# -- action spaces of several kinds --------------------------------------------------------------

ALL_KINDS = {
    component.kind: component
    for component in (
        ActionComponent("x", POSITION, "rad"),
        ActionComponent("x", VELOCITY, "rad/s"),
        ActionComponent("x", ComponentKind.JOINT_DELTA, "rad"),
        ActionComponent("x", ComponentKind.CARTESIAN_POSITION, "m", "base"),
        ActionComponent("x", ComponentKind.CARTESIAN_DELTA, "m", "base"),
        ActionComponent("x", ComponentKind.ROTATION, "rad", "base", "euler_xyz"),
        ActionComponent("x", ComponentKind.ROTATION_DELTA, "rad", "base", "axis_angle"),
        ActionComponent("x", ComponentKind.GRIPPER, "1"),
    )
}
JOINABLE = {POSITION, VELOCITY, ComponentKind.CARTESIAN_POSITION, ComponentKind.GRIPPER}
MIXED = ActionSpace(
    (
        ALL_KINDS[ComponentKind.CARTESIAN_POSITION],
        *joint_space("a").components,
        ALL_KINDS[ComponentKind.GRIPPER],
        ALL_KINDS[VELOCITY],
        *joint_space("b").components,
    )
)


@pytest.mark.parametrize("kind", ComponentKind)
@pytest.mark.parametrize("mode", MODES)
def test_rotations_and_deltas_are_never_interpolated(mode: str, kind: ComponentKind) -> None:
    """The mean of two quaternions is no rotation, and deltas count from different observations. Such a space
    is refused by name; joining it all the same is an error, not a wrong chunk."""
    space = ActionSpace((*joint_space("ab").components, ALL_KINDS[kind]))
    joiner = ChunkJoiner(JoinRule(mode, delay=2, tolerance=0.1), LIMITS)
    old, new = (Chunk(stamp, 0.1, space, np.zeros((8, space.size))) for stamp in (SECOND, SECOND + 1))
    joiner.remember(old)
    if mode == "replace" or kind in JOINABLE:
        assert joiner.rule.explain_unjoinable(space) == ""
        joiner.find_leftover(new.stamp_ns, np.zeros(3 if kind.is_joint else 2), 8, 0.1)
        joiner.blend(new)
        return
    words = f"by '{mode}': component 'x' is a {kind}, "
    assert words in joiner.rule.explain_unjoinable(space)
    with pytest.raises(ChunkError, match=words):
        joiner.find_leftover(new.stamp_ns, np.zeros(2), 8, 0.1)
    if mode == "blend":
        with pytest.raises(ChunkError, match=words):
            joiner.blend(new)


@given(seed=st.integers(0, 2**32 - 1), gap_ns=st.integers(1, SECOND), delay=st.integers(0, 10))
def test_the_columns_of_a_mixed_chunk_join_as_each_would_alone(seed: int, gap_ns: int, delay: int) -> None:
    """Positions, velocities, Cartesian positions and grippers: linear in time and in the weights."""
    rng = np.random.default_rng(seed)
    values = rng.normal(0.0, 1.0, (2, 10, MIXED.size))
    stamps = SECOND, SECOND + gap_ns
    guided, blended = (ChunkJoiner(JoinRule(mode, delay), LIMITS) for mode in ("rtc", "blend"))
    for joiner in (guided, blended):
        joiner.remember(Chunk(stamps[0], 0.1, MIXED, values[0]))
    leftover = guided.find_leftover(stamps[1], np.zeros(3), 10, 0.1)
    joined = blended.blend(Chunk(stamps[1], 0.1, MIXED, values[1]))
    for column in range(MIXED.size):
        old, new = (
            Chunk(stamp, 0.1, joint_space("a"), part[:, column : column + 1])
            for stamp, part in zip(stamps, values, strict=True)
        )
        alone = ChunkJoiner(blended.rule, LIMITS)
        alone.remember(old)
        np.testing.assert_array_equal(joined.values[:, column], alone.blend(new).values[:, 0])
        rest = find_rest(old, stamps[1], 10, 0.1)[:, 0]
        assert (leftover is None) == (len(rest) == 0)
        if leftover is not None:
            np.testing.assert_array_equal(leftover.actions[: len(rest), column], rest)


@pytest.mark.parametrize("mode", ["blend", "rtc"])
def test_only_joint_positions_tell_whether_the_arm_is_elsewhere(mode: str) -> None:
    """MIXED has joints a, x (a velocity) and b; they are observed as b, spare, x, a."""
    values = np.zeros((8, MIXED.size))
    values[:, MIXED.columns.index("a")], values[:, MIXED.columns.index("b")] = 0.2, -0.4
    values[:, MIXED.columns.index("x.x")] = 7.0
    for observed, strays in (
        ((-0.4, 9.0, 5.0, 0.2), 0),
        ((-0.4, 0.0, 0.0, 0.5), 1),
        ((0.2, 0.0, 0.0, 0.2), 1),
    ):
        joiner = ChunkJoiner(JoinRule(mode, tolerance=0.1), LIMITS, columns=[3, 2, 0])
        joiner.remember(Chunk(SECOND, 0.1, MIXED, values))
        find_leftover(joiner, SECOND + 250_000_000, observed)
        assert joiner.strayed == strays


def test_chunks_of_different_action_spaces_are_not_mixed() -> None:
    """The same names and kinds in other units or frames are other actions."""
    joiner = ChunkJoiner(JoinRule("blend", delay=2), LIMITS)
    joiner.remember(Chunk(SECOND, 0.1, joint_space("ab", unit="m"), np.ones((8, 2))))
    other = Chunk(SECOND + 1, 0.1, joint_space("ab", unit="rad"), np.zeros((8, 2)))
    assert joiner.blend(other) is other
