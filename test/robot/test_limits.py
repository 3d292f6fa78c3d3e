# SPDX-License-Identifier: Apache-2.0
"""Limits: nothing that leaves exceeds them, and what was changed is counted."""

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from oxygen_ros.actions import ActionComponent, ActionSpace, ComponentKind, joint_space
from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.limits import JointLimit, Limits, LimitViolation

POSITION, VELOCITY, DELTA = (
    ComponentKind.JOINT_POSITION,
    ComponentKind.JOINT_VELOCITY,
    ComponentKind.JOINT_DELTA,
)
ARM = {"a": JointLimit(-1.0, 1.0, 2.0), "b": JointLimit(-0.5, 0.5, math.inf)}


def make(rows: list, kind: ComponentKind = POSITION, step: float = 0.1) -> Chunk:
    return Chunk(1, step, joint_space("ab", kind), np.array(rows, float))


def test_a_chunk_within_the_limits_is_the_same_object() -> None:
    chunk = make([[0.1, 0.0], [0.2, 0.5], [0.0, -0.5]])
    for mode in ("clamp", "refuse"):
        limited = Limits(ARM, mode).apply(chunk, np.zeros(2))
        assert limited.chunk is chunk
        assert limited.clamped == {}


def test_positions_are_clamped_and_speed_counts_from_where_the_arm_is() -> None:
    chunk = make([[0.5, 0.7], [0.5, -0.9], [0.5, 0.0], [1.5, 0.0], [1.5, 0.0], [1.5, 0.0]])
    limited = Limits(ARM, "clamp").apply(chunk, np.array([0.0, 0.0]))
    np.testing.assert_allclose(
        limited.chunk.values,
        [[0.2, 0.5], [0.4, -0.5], [0.5, 0.0], [0.7, 0.0], [0.9, 0.0], [1.0, 0.0]],
    )
    assert limited.clamped == {"a.velocity": 4, "a.position": 3, "b.position": 2}
    assert chunk.values[0, 0] == 0.5  # the model's chunk is left as it was


def test_velocities_are_clamped_and_never_lead_out_of_the_range() -> None:
    chunk = make([[5.0, 1.0], [5.0, 1.0], [1.0, 9.0]], VELOCITY)
    limited = Limits(ARM, "clamp").apply(chunk, np.array([0.5, 0.0]))
    np.testing.assert_allclose(limited.chunk.values, [[2.0, 1.0], [2.0, 1.0], [1.0, 3.0]], atol=1e-9)
    assert limited.clamped == {"a.velocity": 2, "a.position": 1, "b.position": 1}
    assert limited.chunk.space == chunk.space


def test_velocities_that_are_past_are_brought_within_the_speed_limit_too() -> None:
    chunk = make([[5.0, 0.0], [-5.0, 0.0], [1.0, 0.0]], VELOCITY)
    limited = Limits(ARM, "clamp").apply(chunk, np.zeros(2), chunk.stamp_ns + 210_000_000)
    np.testing.assert_allclose(limited.chunk.values[:, 0], [2.0, -2.0, 1.0])
    assert limited.clamped == {}, "they are not commanded any more"


@pytest.mark.parametrize(
    ("rows", "kind", "words"),
    [
        ([[0.1, 0.0], [0.1, 0.6]], POSITION, r"'b', step 1 .* position 0\.6, outside \[-0\.5, 0\.5\]"),
        ([[0.1, 0.0], [0.4, 0.0]], POSITION, r"'a', step 1 .* speed 3 \(.* 0\.4 after 0\.1 in 0\.1 s\)"),
        ([[0.3, 0.0]], POSITION, r"'a', step 0 .* speed 3 \(.* after 0 in 0\.1 s\), beyond 2"),
        ([[-2.5, 0.0]], VELOCITY, r"'a', step 0 .* speed -2\.5 .* beyond 2"),
    ],
)
def test_refuse_names_joint_step_value_and_limit(rows: list, kind: ComponentKind, words: str) -> None:
    with pytest.raises(LimitViolation, match=words):
        Limits(ARM, "refuse").apply(make(rows, kind), np.zeros(2))


@pytest.mark.parametrize("mode", ["clamp", "refuse"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused_in_both_modes(mode: str, bad: float) -> None:
    with pytest.raises(LimitViolation, match=rf"'b', step 1 .* value is {bad}, which is not finite"):
        Limits(ARM, mode).apply(make([[0.0, 0.0], [0.0, bad]]), np.zeros(2))
    with pytest.raises(LimitViolation, match="'a': current position"):
        Limits(ARM, mode).apply(make([[0.0, 0.0]]), np.array([bad, 0.0]))


def test_a_joint_outside_its_limits_comes_back_within_a_step_or_is_refused() -> None:
    limits = Limits(ARM, "clamp")
    limited = limits.apply(make([[1.1, 0.0]]), np.array([1.15, 0.0]))
    assert limited.chunk.values[0, 0] == 1.0
    with pytest.raises(LimitViolation, match=r"'a' stands at 1\.3, outside its limits \[-1, 1\]"):
        limits.apply(make([[1.1, 0.0]]), np.array([1.3, 0.0]))


def test_every_joint_needs_a_limit_and_the_right_shape() -> None:
    with pytest.raises(ChunkError, match=r"no limits for \['b'\]"):
        Limits({"a": ARM["a"]}, "clamp").apply(make([[0.0, 0.0]]), np.zeros(2))
    with pytest.raises(ChunkError, match=r"\[3\] for 2 joints"):
        Limits(ARM, "clamp").apply(make([[0.0, 0.0]]), np.zeros(3))
    with pytest.raises(ValueError, match="mode is 'warn'"):
        Limits(ARM, "warn")
    for lower, upper, speed in ((1, 0, 1), (math.nan, 0, 1), (0, 1, 0), (0, 1, math.nan)):
        with pytest.raises(ValueError, match="limit"):
            JointLimit(lower, upper, speed)


def test_a_late_chunk_does_not_ask_for_the_dropped_motion_at_once() -> None:
    """lerobot PR#4223, #4454: latency skips most of a chunk: a violent jump. The arm rested meanwhile;
    what is left must be reachable at the speed limit from where it is, in the time that is left."""
    ramp = make([[0.15 * k, 0.0] for k in range(1, 7)])  # 1.5 rad/s, within the limit of 2
    rest, now_ns = np.zeros(2), ramp.stamp_ns + 470_000_000
    assert ramp.first_valid(now_ns) == 4
    limited = Limits(ARM, "clamp").apply(ramp, rest, now_ns)
    np.testing.assert_allclose(limited.chunk.values[4:, 0], [2.0 * 0.03, 2.0 * 0.13], atol=1e-12)
    assert limited.clamped == {"a.velocity": 2}
    with pytest.raises(LimitViolation, match=r"'a', step 4 .* speed 25 \(.* 0\.75 after 0 in 0\.03 s\)"):
        Limits(ARM, "refuse").apply(ramp, rest, now_ns)
    # An arm that moved along meanwhile gets it unchanged.
    moved = np.array([0.15 * 4.7, 0.0])
    assert Limits(ARM, "refuse").apply(ramp, moved, now_ns).chunk is ramp
    assert Limits(ARM, "refuse").apply(ramp, rest, ramp.stamp_ns).chunk is ramp
    velocities = make([[1.5, 0.0]] * 6, VELOCITY)
    assert Limits(ARM, "refuse").apply(velocities, moved, now_ns).clamped == {}
    with pytest.raises(ChunkError, match=r"it is 0\.600 s old and covers 0\.600 s"):
        Limits(ARM, "clamp").apply(ramp, rest, ramp.stamp_ns + 600_000_000)


value = st.floats(-3, 3, allow_subnormal=False)


@given(
    rows=st.lists(st.tuples(value, value), min_size=1, max_size=12),
    current=st.tuples(value, value),
    bounds=st.tuples(st.floats(-2, 0), st.floats(0, 2)),
    speed=st.one_of(st.floats(0.01, 20), st.just(math.inf)),
    step=st.floats(0.005, 0.5),
    kind=st.sampled_from([POSITION, VELOCITY]),
    late=st.one_of(st.none(), st.floats(-0.5, 0.999)),
)
@settings(max_examples=400, deadline=None)
def test_the_result_never_exceeds_the_limits(
    rows: list,
    current: tuple,
    bounds: tuple,
    speed: float,
    step: float,
    kind: ComponentKind,
    late: float | None,
) -> None:
    (lower, upper), here = bounds, np.array(current)
    outside = np.maximum(lower - here, here - upper).max()
    limits = {name: JointLimit(lower, upper, speed) for name in "ab"}
    chunk = make(rows, kind, step)
    current_ns = None if late is None else chunk.stamp_ns + int(late * chunk.covers_s * 1e9)
    first, seconds = 0, np.full((len(rows), 1), step)
    if current_ns is not None:
        first = sum(chunk.stamp_ns + int(due) <= current_ns for due in chunk.offsets_ns)
        assume(first < len(rows))
        seconds[first] = (chunk.stamp_ns + int(chunk.offsets_ns[first]) - current_ns) / 1e9
    reach = speed * seconds[first, 0]
    assume(not abs(outside - reach) <= 1e-8)
    if outside > reach:
        with pytest.raises(LimitViolation, match="stands at"):
            Limits(limits, "clamp").apply(chunk, here, current_ns)
        return
    limited = Limits(limits, "clamp").apply(chunk, here, current_ns)
    values = limited.chunk.values
    tight = 1e-7
    if kind is POSITION:
        assert (values >= lower).all()
        assert (values <= upper).all()
        steps = np.diff(np.vstack([here, values[first:]]), axis=0)
        assert (np.abs(steps) <= speed * seconds[first:] + 1e-12).all()
    else:
        assert (np.abs(values) <= speed).all()
        reached = here + np.cumsum((values * seconds)[first:], axis=0)
        assert (reached >= lower - tight).all()
        assert (reached <= upper + tight).all()
    # What was clamped passes without a change.
    again = Limits(limits, "clamp").apply(limited.chunk, here, current_ns)
    np.testing.assert_allclose((again.chunk.values * seconds), values * seconds, rtol=0, atol=tight)
    # Counted exactly when something to execute changed, and refusing agrees on what is wrong.
    if limited.clamped:
        assert np.abs((values - chunk.values)[first:]).max() > 0
        with pytest.raises(LimitViolation):
            Limits(limits, "refuse").apply(chunk, here, current_ns)
    else:
        np.testing.assert_allclose(values[first:], chunk.values[first:], rtol=0, atol=tight)
        refused = Limits(limits, "refuse").apply(chunk, here, current_ns)
        np.testing.assert_array_equal(refused.chunk.values, values)


def test_a_step_limit_holds_whatever_the_time() -> None:
    """0.05 rad an action, though the speed would allow 0.2; also of the first one left of a late chunk."""
    limits = {"a": JointLimit(-1.0, 1.0, 2.0, 0.05), "b": ARM["b"]}
    chunk = make([[0.5, 0.0], [0.5, 0.0], [0.02, 0.0]])
    limited = Limits(limits, "clamp").apply(chunk, np.zeros(2))
    np.testing.assert_allclose(limited.chunk.values[:, 0], [0.05, 0.1, 0.05])
    assert limited.clamped == {"a.step": 3}
    # With 0.01 s left of the first step the speed is the closer limit, then the step again.
    late = Limits(limits, "clamp").apply(chunk, np.zeros(2), chunk.stamp_ns + 90_000_000)
    np.testing.assert_allclose(late.chunk.values[:, 0], [0.02, 0.07, 0.02])
    assert late.clamped == {"a.velocity": 1, "a.step": 1}
    with pytest.raises(
        LimitViolation, match=r"'a', step 0 .* change 0\.5 \(.* after 0\), beyond 0\.05 a step"
    ):
        Limits(limits, "refuse").apply(chunk, np.zeros(2))
    fast = Limits(limits, "clamp").apply(make([[1.0, 0.0]], VELOCITY), np.zeros(2))
    assert fast.chunk.values[0, 0] == pytest.approx(0.5)
    assert fast.clamped == {"a.step": 1}
    with pytest.raises(ValueError, match="step limit is 0"):
        JointLimit(-1, 1, 1, 0)


def walk(chunk: Chunk, here: np.ndarray, limits: dict) -> tuple[np.ndarray, dict]:
    """The rule in plain form, one joint and one step after the other."""
    values, counts = chunk.values.copy(), {}
    for column, name in enumerate(chunk.space.joints):
        limit, before = limits[name], float(here[column])
        reach = min(limit.velocity * chunk.step, limit.step)
        slow = "step" if limit.step < limit.velocity * chunk.step else "velocity"
        for step in range(chunk.horizon):
            asked = float(chunk.values[step, column])
            if chunk.space.kinds[0] is VELOCITY:
                asked = before + asked * chunk.step
            inside = min(max(asked, limit.lower), limit.upper)
            allowed = min(max(inside, before - reach), before + reach)
            allowed = min(max(allowed, limit.lower), limit.upper)
            for what, changed in (("position", asked - inside), (slow, inside - allowed)):
                if abs(changed) > 1e-9:
                    counts[f"{name}.{what}"] = counts.get(f"{name}.{what}", 0) + 1
            values[step, column] = (
                allowed if chunk.space.kinds[0] is POSITION else (allowed - before) / chunk.step
            )
            before = allowed
    return values, counts


@given(
    seed=st.integers(0, 2**32 - 1),
    horizon=st.integers(1, 20),
    scale=st.sampled_from([0.01, 0.1, 1.0]),
    kind=st.sampled_from([POSITION, VELOCITY]),
)
def test_whole_rows_at_once_give_what_one_after_the_other_does(
    seed: int, horizon: int, scale: float, kind: ComponentKind
) -> None:
    rng = np.random.default_rng(seed)
    limits = {
        "a": JointLimit(-1.0, 1.0, 2.0),
        "b": JointLimit(-0.5, 0.7, math.inf, 0.1),
        "c": JointLimit(-math.inf, math.inf, 0.5, 0.03),
    }
    values = np.cumsum(rng.normal(0.0, scale, (horizon, 3)), axis=0)
    chunk = Chunk(1, 0.1, joint_space("abc", kind), values)
    here = rng.uniform(-0.4, 0.4, 3)
    limited = Limits(limits, "clamp").apply(chunk, here)
    expected, counts = walk(chunk, here, limits)
    np.testing.assert_allclose(limited.chunk.values, expected, atol=1e-7)
    assert limited.clamped == counts


# -- action spaces of several kinds --------------------------------------------------------------

# Two position joints with a velocity joint between them, and everything that is no joint among them.
MIXED = ActionSpace(
    (
        ActionComponent("hand", ComponentKind.CARTESIAN_POSITION, "m", "base"),
        ActionComponent("a", POSITION, "rad"),
        ActionComponent("wheel", VELOCITY, "rad/s"),
        ActionComponent("hand", ComponentKind.ROTATION, "1", "base", "quaternion_xyzw"),
        ActionComponent("lift", DELTA, "m"),
        ActionComponent("b", POSITION, "rad"),
        ActionComponent("grip", ComponentKind.GRIPPER, "1"),
    )
)
MIXED_LIMITS = {
    "a": JointLimit(-1.0, 1.0, 2.0),
    "wheel": JointLimit(-math.inf, math.inf, 1.5, 0.1),
    "lift": JointLimit(0.0, 0.4, 0.5),
    "b": JointLimit(-0.5, 0.7, math.inf, 0.1),
}


@given(seed=st.integers(0, 2**32 - 1), horizon=st.integers(1, 20), scale=st.sampled_from([0.001, 0.05, 1.0]))
def test_each_joint_of_a_mixed_chunk_is_limited_as_it_would_be_alone(
    seed: int, horizon: int, scale: float
) -> None:
    """Positions and velocities to the last bit; deltas as the positions they lead to; all else as it was."""
    rng = np.random.default_rng(seed)
    values = np.cumsum(rng.normal(0.0, scale, (horizon, MIXED.size)), axis=0)
    chunk = Chunk(1, 0.1, MIXED, values)
    here = rng.uniform(0.0, 0.4, 4)
    limits = Limits(MIXED_LIMITS, "clamp")
    limited = limits.apply(chunk, here)
    counts: dict[str, int] = {}
    for place, name in enumerate(MIXED.joints):
        column, base = MIXED.columns.index(name), here[place]
        kind = MIXED.kinds[column]
        asked = values[:, column : column + 1] + (base if kind is DELTA else 0.0)
        alone_kind = VELOCITY if kind is VELOCITY else POSITION
        alone = limits.apply(Chunk(1, 0.1, joint_space([name], alone_kind), asked), here[place : place + 1])
        counts |= alone.clamped
        got, expected = limited.chunk.values[:, column], alone.chunk.values[:, 0]
        if kind is DELTA:
            np.testing.assert_allclose(got + base, expected, rtol=0, atol=1e-9)
        else:
            np.testing.assert_array_equal(got, expected)
    others = MIXED.places(*(kind for kind in ComponentKind if not kind.is_joint))
    assert len(others) == 8
    np.testing.assert_array_equal(limited.chunk.values[:, others], values[:, others])
    assert limited.clamped == counts
    if counts:
        with pytest.raises(LimitViolation):
            Limits(MIXED_LIMITS, "refuse").apply(chunk, here)
    again = limits.apply(limited.chunk, here)
    np.testing.assert_allclose(again.chunk.values, limited.chunk.values, rtol=0, atol=1e-7)


@pytest.mark.parametrize("column", range(MIXED.size), ids=MIXED.columns)
@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_what_is_not_finite_is_refused_in_every_column_by_its_name(column: int, bad: float) -> None:
    values = np.zeros((3, MIXED.size))
    values[2, column] = bad
    name = MIXED.columns[column]
    with pytest.raises(LimitViolation, match=rf"'{name}', step 2 of the chunk: value is {bad}, .* 1 of 36"):
        Limits(MIXED_LIMITS, "clamp").apply(Chunk(1, 0.1, MIXED, values), np.zeros(4))


def test_deltas_are_limited_through_the_observed_joints() -> None:
    """At 0.9 of 1.0 rad, 2 rad/s: +0.2 would leave the range, -0.5 in one step is too fast."""
    limits = Limits(ARM, "clamp")
    chunk = make([[0.05, 0.0], [0.2, 0.1], [-0.4, 0.1]], DELTA)
    limited = limits.apply(chunk, np.array([0.9, 0.3]))
    np.testing.assert_allclose(limited.chunk.values, [[0.05, 0.0], [0.1, 0.1], [-0.1, 0.1]])
    assert limited.clamped == {"a.position": 1, "a.velocity": 1}
    # What needs no change keeps its bits: 0.9 + 0.05 - 0.9 would not be 0.05.
    assert limited.chunk.values[0, 0] == 0.05
    assert limits.apply(chunk, np.zeros(2)).clamped == {"a.velocity": 1}
    with pytest.raises(LimitViolation, match=r"'a', step 1 .* position 1\.1, outside \[-1, 1\]"):
        Limits(ARM, "refuse").apply(chunk, np.array([0.9, 0.3]))
    small = make([[0.01, 0.0]], DELTA)
    assert limits.apply(small, np.zeros(2)).chunk is small
    # They count from the joints at the stamp; later ones would be another place.
    with pytest.raises(ChunkError, match="'a' is a delta: limit it at the stamp"):
        limits.apply(chunk, np.array([0.9, 0.3]), chunk.stamp_ns + 1)


def test_a_chunk_without_joints_has_only_to_be_finite() -> None:
    space = ActionSpace((ActionComponent("hand", ComponentKind.CARTESIAN_DELTA, "m", "base"),))
    chunk = Chunk(1, 0.1, space, np.full((4, 3), 99.0))
    limited = Limits({}, "refuse").apply(chunk, np.zeros(0))
    assert limited.chunk is chunk
    assert limited.clamped == {}
    with pytest.raises(ChunkError, match=r"\[2\] for 0 joints"):
        Limits({}, "refuse").apply(chunk, np.zeros(2))


def test_position_and_velocity_of_one_joint_are_counted_together() -> None:
    components = (*joint_space("a").components, *joint_space("a", VELOCITY).components)
    chunk = Chunk(1, 0.1, ActionSpace(components), np.array([[0.9, 5.0], [0.9, 0.0]]))
    limited = Limits(ARM, "clamp").apply(chunk, np.zeros(2))
    np.testing.assert_allclose(limited.chunk.values, [[0.2, 2.0], [0.4, 0.0]])
    assert limited.clamped == {"a.velocity": 3}
