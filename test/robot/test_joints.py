# SPDX-License-Identifier: Apache-2.0
"""Joints: merged by name, checked, sampled at an instant, explained when missing."""

import array
import math
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.robot.joints import MAX_READINGS, JointBuffer, JointFault, summarize

MS = 1_000_000
S = 1000 * MS


def make(names: str = "a b c", **ranges: tuple[float, float]) -> JointBuffer:
    return JointBuffer(names.split(), ranges, history_ns=S)


def explain(joints: JointBuffer, stamp_ns: int, max_age_ns: int) -> list[str]:
    return [str(fault) for fault in joints.find_faults(stamp_ns, max_age_ns)]


def test_order_in_messages_does_not_matter_and_other_joints_are_ignored() -> None:
    """ros2_controllers#159, PR#1572: joint order is not the URDF's; it may even change."""
    joints = make()
    assert joints.add(S, ["c", "x", "a", "b"], array.array("d", [3.0, 9.0, 1.0, 2.0])) == []
    assert joints.sample(S, 0).tolist() == [1.0, 2.0, 3.0]
    assert joints.add(S + MS, ["b", "c", "a"], np.array([20.0, 30.0, 10.0])) == []
    sampled = joints.sample(S + MS, 0)
    assert sampled.tolist() == [10.0, 20.0, 30.0]
    assert sampled.dtype == np.float64


def test_partial_and_interleaved_messages_are_merged_and_interpolated() -> None:
    joints = make("arm gripper")
    for k in range(5):
        joints.add(S + 10 * k * MS, ["arm"], [k * 1.0])
        joints.add(S + (10 * k + 5) * MS, ["wheel", "gripper"], [0.0, 100.0 + k])
    assert joints.sample(S + 15 * MS, 50 * MS).tolist() == [1.5, 101.0]
    assert joints.sample(S + 20 * MS, 50 * MS).tolist() == [2.0, 101.5]
    # After the last of `arm` (40 ms) and before its limit: the nearest.
    assert joints.sample(S + 45 * MS, 50 * MS).tolist() == [4.0, 104.0]


def test_only_readings_within_the_age_are_used() -> None:
    joints = make("a")
    joints.add(S, ["a"], [1.0])
    joints.add(S + 500 * MS, ["a"], [2.0])
    assert joints.sample(S + 250 * MS, 100 * MS) is None
    assert joints.sample(S + 450 * MS, 100 * MS).tolist() == [2.0]  # never across the gap
    assert joints.sample(S + 250 * MS, 250 * MS).tolist() == [1.5]
    assert joints.sample(S + 250 * MS, 250 * MS, within=(S + 1, 2 * S)).tolist() == [2.0]
    assert joints.sample(S + 250 * MS, 250 * MS, within=(S + 1, S + 499 * MS)) is None


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_not_finite_in_a_used_joint_means_not_ready_and_recovers(bad: float) -> None:
    """clearpath_robot#222, ros_odrive#20: NaN in a used field: not ready; in an unused one: ignored."""
    joints = make("a b")
    assert joints.add(S, ["a", "unused", "b"], [1.0, bad, 2.0]) == []
    assert joints.sample(S, 0).tolist() == [1.0, 2.0]
    (fault,) = joints.add(S + MS, ["a", "b"], [1.0, bad])
    assert (fault.joint, fault.reason) == ("b", "rejected")
    assert str(fault) == f"joint 'b' reads {bad}; a failed read?"
    # The older good value does not stand in for the failed one.
    assert joints.sample(S + MS, 100 * MS) is None
    assert joints.sample(S + 2 * MS, 100 * MS) is None
    assert explain(joints, S + MS, 100 * MS) == [str(fault)]
    joints.add(S + 3 * MS, ["a", "b"], [1.0, 2.5])
    assert joints.sample(S + 3 * MS, 100 * MS).tolist() == [1.0, 2.5]


def test_a_failed_read_reported_as_minus_pi_is_out_of_range() -> None:
    """interbotix_ros_core PR#46: a failed read is reported as -pi."""
    joints = make("a b", b=(-1.5, 1.5))
    assert joints.add(S, ["a", "b"], [-math.pi, 1.5]) == []  # no range for a; bounds are inside
    (words,) = map(str, joints.add(S + MS, ["a", "b"], [0.0, -math.pi]))
    assert "'b' reads -3.14159" in words
    assert "[-1.5, 1.5]" in words
    assert joints.sample(S + MS, S) is None
    assert joints.sample(S, S).tolist() == [-math.pi, 1.5]


def test_length_mismatch_and_zero_stamp_are_rejected_with_numbers() -> None:
    joints = make("a b")
    assert "2 names but 1 positions" in str(joints.add(S, ["a", "b"], [1.0])[0])
    assert "2 names but 0 positions" in str(joints.add(S, ["a", "b"], [])[0])
    assert "stamp is 0" in str(joints.add(0, ["a", "b"], [1.0, 2.0])[0])
    assert joints.sample(S, S) is None
    # Messages about other joints alone are no fault.
    assert joints.add(0, ["wheel"], [1.0]) == []
    assert joints.add(S, ["wheel"], []) == []


def test_explain_names_each_missing_and_stale_joint_with_its_age() -> None:
    joints = make("a b c")
    joints.add(S, ["a"], [1.0])
    joints.add(S + 300 * MS, ["b"], [1.0])
    assert explain(joints, S + 300 * MS, 100 * MS) == [
        "joint 'a': nearest reading is 0.300 s older than the instant wanted (limit 0.100 s)",
        "joint 'c': never received",
    ]
    joints.add(S + 300 * MS, ["a", "c"], [1.0, 1.0])
    assert explain(joints, S + 300 * MS, 100 * MS) == []
    joints.clear()
    assert len(explain(joints, S, S)) == 3
    assert joints.newest_ns is None


def test_what_holds_of_several_joints_is_said_once() -> None:
    stale = ": nearest reading is 0.300 s older than the instant wanted (limit 0.100 s)"
    faults = [
        JointFault("a", "stale", stale),
        JointFault("c", "silent", ": never received"),
        JointFault("b", "stale", stale),
    ]
    assert summarize(faults) == f"joints 'a', 'b'{stale}; joint 'c': never received"
    mismatch = JointFault("", "rejected", "7 names but 3 positions: each name needs one position")
    assert summarize([mismatch, JointFault("a", "rejected", " reads nan; a failed read?")]) == (
        f"{mismatch}; joint 'a' reads nan; a failed read?"
    )
    assert summarize([]) == ""


def test_memory_is_bounded_by_time_and_by_number() -> None:
    joints = JointBuffer(["a"], None, history_ns=10 * MS)
    for k in range(100):
        joints.add(S + k * MS, ["a"], [float(k)])
    assert joints.sample(S + 89 * MS, 0).tolist() == [89.0]
    assert joints.sample(S + 88 * MS, 0) is None
    joints = JointBuffer(["a"], None, history_ns=10**15)
    for k in range(MAX_READINGS + 50):
        joints.add(1 + k, ["a"], [float(k)])
    joints.add(51, ["a"], [0.0])
    assert joints.sample(1 + 49, 0) is None
    assert joints.sample(1 + MAX_READINGS + 49, 0) is not None
    assert all(len(track.stamps) <= MAX_READINGS for track in joints._tracks.values())


@given(
    messages=st.lists(
        st.tuples(
            st.integers(1, 60),
            st.dictionaries(
                st.sampled_from("abx"), st.one_of(st.floats(-2, 2), st.just(math.nan)), max_size=3
            ),
        ),
        max_size=25,
    ),
    at=st.integers(1, 60),
    age=st.integers(0, 40),
    history=st.integers(1, 80),
)
@settings(max_examples=300, deadline=None)
def test_sample_equals_the_slow_reference(messages: list, at: int, age: int, history: int) -> None:
    """Any order of arrival, any subset of joints, any values: the same as from a plain dictionary."""
    joints = JointBuffer(["a", "b"], {"a": (-1.0, 1.0)}, history)
    kept: dict[str, dict[int, float]] = {"a": {}, "b": {}}
    for stamp, content in messages:
        joints.add(stamp, list(content), list(content.values()))
        for name, value in content.items():
            if name == "x":
                continue
            column = kept[name]
            column[stamp] = math.nan if name == "a" and not -1 <= value <= 1 else value
            for old in [s for s in column if s < max(column) - history]:
                del column[old]

    def value(column: dict[int, float]) -> float:
        before = max((s for s in column if at - age <= s <= at), default=None)
        after = min((s for s in column if at < s <= at + age), default=None)
        if before is None and after is None:
            return math.nan
        if before is None or after is None or before == at:
            return column[after if before is None else before]
        return float(np.interp(at, [before, after], [column[before], column[after]]))

    expected = np.array([value(kept["a"]), value(kept["b"])])
    sampled = joints.sample(at, age)
    if np.isnan(expected).any():
        assert sampled is None
        named = [name for name, v in zip("ab", expected, strict=True) if np.isnan(v)]
        assert [fault.joint for fault in joints.find_faults(at, age)] == named
    else:
        np.testing.assert_allclose(sampled, expected, rtol=0, atol=1e-12)
        assert joints.find_faults(at, age) == []


def test_add_is_cheap_enough_for_500_hz() -> None:
    """ros2/rclpy#763: positions come as array.array and are read as they are. 20 joints took 15-20 us
    on the machine this was written on; the limit leaves room for a busy one."""
    names = [f"joint_{k}" for k in range(20)]
    joints = JointBuffer(names, {name: (-3.0, 3.0) for name in names}, S)
    positions = array.array("d", [0.1] * 20)
    times = []
    for k in range(1000):
        start = time.perf_counter()
        joints.add(S + 2 * k * MS, names, positions)
        times.append(time.perf_counter() - start)
    assert np.median(times) < 150e-6


@pytest.mark.parametrize(
    ("names", "ranges", "history", "words"),
    [
        (["a", "a"], None, 1, "must differ"),
        (["a"], {"b": (0, 1)}, 1, "'b', which is not among"),
        (["a"], {"a": (1, 0)}, 1, r"\[1, 0\]"),
        (["a"], None, 0, "history_ns is 0"),
    ],
)
def test_wrong_configuration_is_an_error(names: list, ranges: dict, history: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        JointBuffer(names, ranges, history)


def test_names_that_do_not_match_are_told() -> None:
    """Wrong joint names in the robot's file: what the messages carry instead is the cure."""
    buffer = JointBuffer(["joint1"], None, 10**9)
    assert buffer.add(10**9, ["shoulder_pan", "shoulder_lift"], [0.1, 0.2]) == []
    (words,) = explain(buffer, 10**9, 10**8)
    assert words == "joint 'joint1': never received (messages carry shoulder_pan, shoulder_lift)"
    buffer.add(2 * 10**9, [f"other{i}" for i in range(100)], [0.0] * 100)
    (words,) = explain(buffer, 2 * 10**9, 10**8)
    assert words.count(",") == 7, "eight names are enough"
