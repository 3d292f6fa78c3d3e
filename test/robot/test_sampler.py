# SPDX-License-Identifier: Apache-2.0
"""The sampler against the reports of how such code fails in the field."""

import math

import pytest

from oxygen_ros.robot.joints import JointBuffer
from oxygen_ros.robot.sampler import MAX_IMAGES, Missing, Sample, Sampler

MS = 1_000_000
S = 1000 * MS


def make(cameras: str = "top wrist", **options: object) -> Sampler:
    joints = JointBuffer(["a", "b"], {"a": (-2.0, 2.0)}, S)
    return Sampler(cameras.split(), joints, 20 * MS, 200 * MS, **options)


def feed(sampler: Sampler, start: int, end: int, cameras: str = "top wrist", joints: bool = True) -> None:
    """Images at 30 Hz, joints at 100 Hz; received 5 ms after their stamps on a clock of another origin."""
    for stamp in range(start, end, 10 * MS):
        if joints:
            sampler.add_joints(stamp, ["b", "a"], [2.0, 1.0], stamp - start + 5 * MS)
    for stamp in range(start, end, 33 * MS):
        for camera in cameras.split():
            sampler.add_image(camera, stamp, f"{camera}@{stamp}", stamp - start + 5 * MS)


def only(taken: Sample | Missing) -> tuple[str, str, str]:
    assert isinstance(taken, Missing), taken
    (problem,) = taken.problems
    return problem.stream, problem.reason, problem.detail


def test_a_set_is_taken_and_known_when_taken_again() -> None:
    """lerobot#1557, #1500, #2356: never filter by similarity; the same content at rest is taken again."""
    sampler = make()
    feed(sampler, S, 2 * S)
    first = sampler.take(2 * S)
    assert isinstance(first, Sample)
    assert first.stamp_ns == S + 30 * 33 * MS
    assert first.images == {camera: f"{camera}@{first.stamp_ns}" for camera in ("top", "wrist")}
    assert first.joints.tolist() == [1.0, 2.0]
    assert (first.age_ns, first.skew_ns, first.is_new) == (10 * MS, 0, True)
    assert not sampler.take(2 * S).is_new
    for camera in ("top", "wrist"):
        sampler.add_image(camera, 2 * S, first.images[camera], S)
    assert sampler.take(2 * S).is_new


def test_a_silent_stream_is_named_with_what_the_others_do() -> None:
    """ros2/message_filters#169: the callback never fires and nothing says why."""
    sampler = make()
    feed(sampler, S, 2 * S, cameras="top")
    stream, reason, detail = only(sampler.take(2 * S))
    assert (stream, reason) == ("wrist", "silent")
    assert "0 messages" in detail
    sampler = make()
    feed(sampler, S, 2 * S, joints=False)
    stream, reason, detail = only(sampler.take(2 * S))
    assert (stream, reason) == ("joint_states", "silent")
    assert "joints 'a', 'b': never received" in detail
    assert {p.stream for p in make().take(S).problems} == {"top", "wrist", "joint_states"}


def test_a_frozen_camera_stops_stale_and_recovers_by_itself() -> None:
    """livekit/portal#69, grabette PR#89: one frozen camera blocks all, or its last frame is used for ever
    and the arm moves wildly. Right: an age limit for each stream; stop, report, recover."""
    sampler = make()
    feed(sampler, S, 2 * S)
    assert isinstance(sampler.take(2 * S), Sample)
    feed(sampler, 2 * S, 3 * S, cameras="top")
    for k in range(5):  # it goes on sending its last frame
        sampler.add_image("wrist", S + 990 * MS, "frozen", S + k * MS)
    stream, reason, detail = only(sampler.take(3 * S))
    assert (stream, reason) == ("wrist", "stale")
    assert "age 1.010 s" in detail
    assert "5 since the last look" in detail
    feed(sampler, 3 * S, 3 * S + 40 * MS)
    assert isinstance(sampler.take(3 * S + 40 * MS), Sample)


def test_stale_joints_are_named() -> None:
    sampler = make()
    feed(sampler, S, 2 * S)
    feed(sampler, 2 * S, 3 * S, joints=False)
    stream, reason, detail = only(sampler.take(3 * S))
    assert (stream, reason) == ("joint_states", "stale")
    assert "'a'" in detail
    assert "'b'" in detail


def test_cameras_never_together_are_unsynchronised_with_the_skew() -> None:
    """message_filters#169 again: all streams alive, no match; the skew is the reason."""
    sampler = make()
    feed(sampler, S, 2 * S, cameras="top")
    for k in range(5):
        sampler.add_image("wrist", S + 16 * MS + k * 200 * MS + 1, "w", k * 200 * MS)
    sampler.add_image("wrist", 2 * S - 45 * MS, "w", S)
    # top: ... 1.957, 1.990; wrist: 1.816, 1.955
    assert isinstance(sampler.take(2 * S), Sample)
    sampler = Sampler(["top", "wrist"], JointBuffer(["a"], None, S), 5 * MS, 200 * MS)
    sampler.add_image("top", 2 * S, "t", 0)
    sampler.add_image("wrist", 2 * S - 12 * MS, "w", 0)
    sampler.add_joints(2 * S, ["a"], [0.0], 0)
    stream, reason, detail = only(sampler.take(2 * S))
    assert (stream, reason) == ("wrist", "unsynchronised")
    assert "skew to 'top' is 0.012 s" in detail
    assert "0.005 s" in detail


def test_three_cameras_each_close_to_one_but_not_together_are_unsynchronised() -> None:
    sampler = Sampler(["x", "y", "z"], JointBuffer(["a"], None, S), 5 * MS, 200 * MS)
    for camera, stamp in (("x", 2 * S), ("y", 2 * S + 4 * MS), ("z", 2 * S - 4 * MS)):
        sampler.add_image(camera, stamp, camera, 0)
    sampler.add_joints(2 * S, ["a"], [0.0], 0)
    taken = sampler.take(2 * S)
    assert isinstance(taken, Missing)
    assert {problem.reason for problem in taken.problems} == {"unsynchronised"}


def test_a_late_camera_still_finds_its_partner() -> None:
    """The wrist's images arrive 150 ms after the top's of the same stamps: the history must span that."""
    sampler = make()
    for k in range(30):
        stamp = S + k * 33 * MS
        sampler.add_joints(stamp, ["a", "b"], [0.0, float(k)], stamp)
        sampler.add_image("top", stamp, k, stamp)
        if k >= 5:
            sampler.add_image("wrist", stamp - 5 * 33 * MS, k - 5, stamp)
            taken = sampler.take(stamp)
            assert taken.images == {"top": k - 5, "wrist": k - 5}
            assert taken.joints.tolist() == [0.0, k - 5.0]


def test_zero_stamps_are_rejected_by_name() -> None:
    """ros_comm#1716: zero stamps never match, and nothing says so."""
    sampler = make()
    feed(sampler, S, 2 * S, cameras="top")
    sampler.add_image("wrist", 0, "w", 0)
    stream, reason, detail = only(sampler.take(2 * S))
    assert (stream, reason) == ("wrist", "unstamped")
    assert "header.stamp" in detail
    sampler = make()
    feed(sampler, S, 2 * S, joints=False)
    sampler.add_joints(0, ["a", "b"], [0.0, 0.0], 0)
    assert only(sampler.take(2 * S))[:2] == ("joint_states", "unstamped")


@pytest.mark.parametrize(("value", "words"), [(math.nan, "nan"), (-math.pi, r"-3.14159, outside")])
def test_bad_joint_values_stop_the_sample_until_they_are_good(value: float, words: str) -> None:
    """clearpath_robot#222, interbotix_ros_core PR#46, as the sampler shows them."""
    sampler = make()
    feed(sampler, S, 2 * S, joints=False)
    for stamp in range(S, 2 * S, 10 * MS):
        sampler.add_joints(stamp, ["a", "b", "effort_only"], [value, 0.0, math.nan], stamp)
    stream, reason, detail = only(sampler.take(2 * S))
    assert (stream, reason) == ("joint_states", "rejected")
    assert words in detail
    assert "'b'" not in detail
    feed(sampler, 2 * S, 2 * S + 100 * MS)
    assert isinstance(sampler.take(2 * S + 100 * MS), Sample)


def test_mismatched_joint_messages_are_reported_as_rejected() -> None:
    sampler = make()
    feed(sampler, S, 2 * S, joints=False)
    sampler.add_joints(2 * S, ["a", "b"], [0.0], 0)
    stream, reason, detail = only(sampler.take(2 * S))
    assert (stream, reason) == ("joint_states", "rejected")
    assert "2 names but 1 positions" in detail


def test_a_stamp_in_the_future_is_a_problem_and_never_becomes_an_input() -> None:
    """Kept, the frame would pass for a fresh one ten seconds later, when the camera may be dead."""
    sampler = make()
    feed(sampler, S, 2 * S)
    feed(sampler, 12 * S, 12 * S + 10 * MS, joints=False)
    taken = sampler.take(2 * S)
    assert isinstance(taken, Sample)  # the good ones before are still good
    feed(sampler, 12 * S, 12 * S + 10 * MS)
    taken = sampler.take(2 * S + 300 * MS)
    assert isinstance(taken, Missing)
    assert {(p.stream, p.reason) for p in taken.problems} == {
        (name, "future") for name in ("top", "wrist", "joint_states")
    }
    assert "9.700 s ahead" in taken.problems[0].detail
    taken = sampler.take(12 * S)
    assert isinstance(taken, Missing)
    # A little ahead is another machine's clock, and allowed.
    feed(sampler, 12 * S + 50 * MS, 12 * S + 60 * MS)
    assert sampler.take(12 * S).age_ns == -50 * MS


@pytest.mark.parametrize("told", [True, False])
def test_a_looped_bag_starts_again_without_pairing_across_the_jump(told: bool) -> None:
    """ros_comm#1518, #1438; geometry2#551: looping pairs stale messages or never matches again. `told`:
    the node's jump callback calls clear; else the clock going back is noticed here."""
    sampler = make()
    feed(sampler, S, 5 * S)
    assert isinstance(sampler.take(5 * S), Sample)
    if told:
        sampler.clear()
        assert all(status.count == 0 and status.age_ns is None for status in sampler.status(S))
    else:
        assert isinstance(sampler.take(S), Missing)
    feed(sampler, S, S + 100 * MS, cameras="top")
    assert only(sampler.take(S + 100 * MS))[0] == "wrist"  # the old wrist frames are gone
    feed(sampler, S, S + 100 * MS)
    taken = sampler.take(S + 100 * MS)
    assert isinstance(taken, Sample)
    assert taken.stamp_ns == S + 99 * MS
    assert taken.is_new


def test_without_any_notice_of_a_jump_new_images_still_displace_old_ones() -> None:
    """ros_comm#1438: the newest message is the one evicted. Here the first to arrive leaves first, whatever
    its stamp: else one new image at a time would stay, and cameras with different delays never meet."""
    sampler = make()
    for stamp in range(5 * S, 5 * S + MAX_IMAGES):
        for camera in ("top", "wrist"):
            sampler.add_image(camera, stamp, "old", stamp)
    for k in range(6):
        stamp = S + k * 33 * MS
        sampler.add_joints(stamp, ["a", "b"], [0.0, 0.0], stamp)
        sampler.add_image("top", stamp, k, stamp)
        sampler.add_image("wrist", stamp - 2 * 33 * MS, k - 2, stamp)
    assert sampler.take(S + 5 * 33 * MS).images == {"top": 3, "wrist": 3}


def test_no_joint_reading_older_than_the_age_is_used_even_for_an_older_image() -> None:
    sampler = make("top")
    sampler.add_image("top", 2 * S, "t", 0)
    sampler.add_joints(2 * S - 100 * MS, ["a", "b"], [1.0, 1.0], 0)
    assert isinstance(sampler.take(2 * S + 100 * MS), Sample)
    assert only(sampler.take(2 * S + 101 * MS))[:2] == ("joint_states", "stale")
    sampler.add_joints(2 * S + 100 * MS, ["a", "b"], [2.0, 2.0], 0)
    assert sampler.take(2 * S + 100 * MS).joints.tolist() == [1.5, 1.5]
    assert sampler.take(2 * S + 150 * MS).joints.tolist() == [2.0, 2.0]


def test_limits_of_age_and_skew_are_inclusive() -> None:
    sampler = make()
    sampler.add_image("top", 2 * S, "t", 0)
    sampler.add_image("wrist", 2 * S + 20 * MS, "w", 0)
    sampler.add_joints(2 * S, ["a", "b"], [0.0, 0.0], 0)
    taken = sampler.take(2 * S + 200 * MS)
    assert (taken.age_ns, taken.skew_ns) == (200 * MS, 20 * MS)
    assert isinstance(sampler.take(2 * S + 200 * MS + 1), Missing)


def test_a_problem_that_has_passed_is_kept_but_blames_nothing_later() -> None:
    sampler = make("top")
    sampler.add_image("top", 0, "t", 0)
    feed(sampler, S, 2 * S, cameras="top")
    status = sampler.status(2 * S)[0]
    assert (status.problem.reason, status.faulty) == ("unstamped", False)
    feed(sampler, 2 * S, 3 * S, cameras="")
    assert only(sampler.take(3 * S))[:2] == ("top", "stale")


def test_an_optional_camera_joins_when_it_fits_and_holds_nobody_up() -> None:
    sampler = make("top wrist", optional_cameras=["wrist"])
    feed(sampler, S, 2 * S, cameras="top")
    assert set(sampler.take(2 * S).images) == {"top"}
    sampler.add_image("wrist", S + 980 * MS, "w", 0)
    taken = sampler.take(2 * S)
    assert taken.images["wrist"] == "w"
    assert taken.stamp_ns == S + 990 * MS
    assert (taken.skew_ns, taken.is_new) == (10 * MS, False)


def test_status_has_rate_age_skew_and_the_last_problem() -> None:
    sampler = make()
    feed(sampler, S, 3 * S)
    sampler.add_image("wrist", 0, "w", 2 * S)
    top, wrist, joints = sampler.status(3 * S)
    assert (top.stream, wrist.stream, joints.stream) == ("top", "wrist", "joint_states")
    assert top.rate_hz == pytest.approx(1000 / 33, rel=0.01)
    assert joints.rate_hz == pytest.approx(100, rel=0.01)
    assert top.age_ns == 20 * MS
    assert joints.skew_ns == -10 * MS
    assert (top.count, top.problem, top.faulty) == (61, None, False)
    assert (wrist.problem.reason, wrist.faulty) == ("unstamped", True)
    sampler.blame("top", "does not decode")
    assert sampler.status(3 * S)[0].problem.reason == "rejected"
    feed(sampler, 3 * S, 6 * S, cameras="top")
    sampler.add_image("top", 6 * S, "t", 30 * S)
    assert sampler.status(6 * S)[1].rate_hz == 0.0  # quiet while another lives


def test_rates_are_measured_on_the_clock_of_receipt() -> None:
    """ros2/ros2#1081: the system clock steps; intervals are measured on a monotonic clock."""
    sampler = make("top")
    for k in range(20):
        stamp = S + k * 100 * MS + (3600 * S if k == 10 else 0)
        sampler.add_image("top", stamp, k, 7 + k * 100 * MS)
    assert sampler.status(3 * S)[0].rate_hz == pytest.approx(10.0)


def test_memory_is_bounded_and_payloads_are_never_looked_at() -> None:
    """message_filters#65: work inside the synchroniser serialises everything; here nothing is decoded."""

    class Opaque:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("payloads must not be compared")

        __hash__ = None

    sampler = make("top")
    for k in range(2 * MAX_IMAGES):
        sampler.add_image("top", S + k, Opaque(), k)
    assert len(sampler._images["top"]) == MAX_IMAGES
    sampler.add_joints(S, ["a", "b"], [0.0, 0.0], 0)
    assert sampler.take(S + 2 * MAX_IMAGES).stamp_ns == S + 2 * MAX_IMAGES - 1
    sampler.add_image("top", 2 * S, Opaque(), S)
    sampler.discard_old(2 * S)
    assert len(sampler._images["top"]) == 1


def test_fast_cameras_with_different_delays_meet() -> None:
    """400 Hz, one camera 180 ms later than the other: 72 images lie between."""
    sampler, step, delay = make(), 2_500_000, 180 * MS
    for k in range(200):
        now = S + k * step
        sampler.add_joints(now, ["a", "b"], [0.0, 0.0], now)
        sampler.add_image("top", now, k, now)
        sampler.add_image("wrist", now - delay, k - 72, now)
    taken = sampler.take(now)
    assert taken.images == {"top": 127, "wrist": 127}
    assert taken.stamp_ns == now - delay
    assert taken.received_ns == now


@pytest.mark.parametrize(
    ("cameras", "optional", "words"),
    [
        (["a"], ["a"], "at least one camera must be required"),
        (["a", "a"], [], "must differ"),
        (["joint_states"], [], "must differ"),
    ],
)
def test_wrong_configuration_is_an_error(cameras: list, optional: list, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sampler(cameras, JointBuffer(["a"], None, S), 1, 1, optional)
    with pytest.raises(ValueError, match="max_age_ns 0"):
        Sampler(["top"], JointBuffer(["a"], None, S), 1, 0)
    with pytest.raises(ValueError, match="'belly' is not one of"):
        make().add_image("belly", S, None, 0)
