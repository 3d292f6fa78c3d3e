# SPDX-License-Identifier: Apache-2.0
"""Chunks in time: what is past, what is left, and whether a configuration can keep up."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.actions import ActionComponent, ActionSpace, ComponentKind, joint_space
from oxygen_ros.robot.chunk import Chunk, ChunkError, check_timing, explain_uncommandable

MS = 1_000_000
T0 = 1_700_000_000 * 1_000_000_000 + 123


def make(horizon: int = 10, step: float = 0.05, kind: ComponentKind = ComponentKind.JOINT_POSITION) -> Chunk:
    values = np.arange(2.0 * horizon).reshape(horizon, 2)
    return Chunk(T0, step, joint_space("ab", kind), values)


def test_action_i_is_due_at_stamp_plus_i_plus_one_steps() -> None:
    chunk = make()
    assert chunk.offsets_ns.tolist() == [50 * MS * k for k in range(1, 11)]
    assert chunk.valid_until_ns == T0 + 500 * MS
    assert chunk.covers_s == pytest.approx(0.5)
    assert chunk.horizon == 10


@pytest.mark.parametrize(
    ("late_ns", "past"),
    [
        (-(10**9), 0),
        (0, 0),
        (50 * MS - 1, 0),
        (50 * MS, 1),
        (120 * MS, 2),
        (500 * MS - 1, 9),
        (500 * MS, 10),
        (10**12, 10),
    ],
)
def test_steps_that_have_passed_are_dropped(late_ns: int, past: int) -> None:
    """NVIDIA/Isaac-GR00T#272: the arm steps back at each new chunk, unless the steps that passed go."""
    chunk = make()
    assert chunk.first_valid(T0 + late_ns) == past
    if past == 10:
        with pytest.raises(ChunkError, match=r"0\.500 s \(10 actions of 0\.05 s\)"):
            chunk.trajectory(T0 + late_ns)
        return
    offsets, positions = chunk.trajectory(T0 + late_ns)
    assert offsets.dtype == np.int64
    assert offsets[0] == (past + 1) * 50 * MS
    np.testing.assert_array_equal(positions, chunk.values[past:])


def test_the_error_for_a_chunk_wholly_past_has_its_age() -> None:
    with pytest.raises(ChunkError, match=r"it is 0\.730 s old and covers 0\.500 s"):
        make().trajectory(T0 + 730 * MS)


@given(horizon=st.integers(1, 60), step=st.floats(1e-3, 0.5), late=st.floats(0, 40))
def test_trajectories_are_never_empty_never_past_and_strictly_increasing(
    horizon: int, step: float, late: float
) -> None:
    chunk = make(horizon, step)
    now_ns = T0 + int(late * 1e9)
    first = chunk.first_valid(now_ns)
    if now_ns >= chunk.valid_until_ns:
        assert first == horizon
        with pytest.raises(ChunkError):
            chunk.trajectory(now_ns)
        return
    offsets, positions = chunk.trajectory(now_ns)
    assert len(offsets) == len(positions) == horizon - first >= 1
    assert (T0 + offsets > now_ns).all()
    assert (np.diff(offsets) > 0).all()
    assert offsets[0] > 0
    np.testing.assert_allclose(offsets / 1e9, (np.arange(first, horizon) + 1) * step, atol=1e-9)


def test_a_sequence_of_chunks_never_steps_back() -> None:
    """Isaac-GR00T#272, openpi#393: a ramp observed every 200 ms, published 120 ms late, spliced as a
    trajectory controller does (the first point's time onwards is replaced), is executed as the ramp."""
    plan: dict[int, float] = {}
    for tick in range(5):
        stamp = T0 + tick * 200 * MS
        due = stamp + np.arange(1, 11) * 50 * MS
        chunk = Chunk(stamp, 0.05, joint_space("a"), ((due - T0) / 1e9)[:, None].astype(float))
        offsets, positions = chunk.trajectory(stamp + 120 * MS)
        start = stamp + int(offsets[0])
        plan = {at: value for at, value in plan.items() if at < start}
        plan |= {stamp + int(o): float(p[0]) for o, p in zip(offsets, positions, strict=True)}
    times = np.array(sorted(plan))
    np.testing.assert_allclose([plan[t] for t in times], (times - T0) / 1e9, atol=1e-12)
    assert set(np.diff(times)) == {50 * MS}


OTHER_KINDS = (
    ActionComponent("a", ComponentKind.JOINT_VELOCITY, "rad/s"),
    ActionComponent("a", ComponentKind.JOINT_DELTA, "rad"),
    ActionComponent("hand", ComponentKind.CARTESIAN_POSITION, "m", "base"),
    ActionComponent("hand", ComponentKind.CARTESIAN_DELTA, "m", "base"),
    ActionComponent("hand", ComponentKind.ROTATION, "rad", "base", "axis_angle"),
    ActionComponent("hand", ComponentKind.ROTATION_DELTA, "1", "base", "matrix_6d"),
    ActionComponent("grip", ComponentKind.GRIPPER, "1"),
)


def test_velocities_make_no_trajectory() -> None:
    with pytest.raises(ChunkError, match="'a' is a joint_velocity"):
        make(kind=ComponentKind.JOINT_VELOCITY).trajectory(T0)


def test_these_are_all_kinds_but_joint_positions() -> None:
    assert {component.kind for component in OTHER_KINDS} == set(ComponentKind) - {
        ComponentKind.JOINT_POSITION
    }


@pytest.mark.parametrize("component", OTHER_KINDS, ids=lambda component: str(component.kind))
def test_what_a_trajectory_cannot_command_is_named(component: ActionComponent) -> None:
    """An end-effector policy, or one gripper beside the joints: refused by name, never sent in part."""
    space = ActionSpace((*joint_space("ab").components, component))
    words = rf"needs joint positions; component '{component.name}' is a {component.kind}$"
    with pytest.raises(ChunkError, match=words):
        Chunk(T0, 0.05, space, np.zeros((4, space.size))).trajectory(T0)
    assert explain_uncommandable(space)
    assert explain_uncommandable(joint_space("ab")) == ""


@pytest.mark.parametrize(
    ("step", "names", "shape", "words"),
    [
        (0.0, "a", (3, 1), "step is 0.0"),
        (float("nan"), "a", (3, 1), "step is nan"),
        (0.1, "a", (3, 2), r"\[3, 2\] for actions of 1 numbers"),
        (0.1, "a", (0, 1), r"\[0, 1\]"),
        (0.1, "aa", (3, 2), "'a' is there twice"),
    ],
)
def test_malformed_chunks_are_errors(step: float, names: str, shape: tuple, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Chunk(T0, step, joint_space(names), np.zeros(shape))


def test_timing_is_checked_with_both_numbers() -> None:
    """openpi#393: the arm pauses for inference between chunks; so: period + p99 <= H * step."""
    check_timing(0.4, 0.1, 10, 0.05)
    with pytest.raises(ChunkError, match=r"0\.4 \+ 0\.2 = 0\.6 s.*10 x 0\.05 = 0\.5 s"):
        check_timing(0.4, 0.2, 10, 0.05)
    with pytest.raises(ChunkError, match="period is 0"):
        check_timing(0.0, 0.2, 10, 0.05)
    with pytest.raises(ChunkError, match="latency is nan"):
        check_timing(0.1, float("nan"), 10, 0.05)
