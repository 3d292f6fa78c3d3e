# SPDX-License-Identifier: Apache-2.0
"""The synchronizer against reports of how such code fails in the field, and against brute force."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.robot.joints import JointBuffer
from oxygen_ros.robot.synchronizer import MAX_IMAGES, InputSet, Missing, Synchronizer

MS = 1_000_000
S = 1000 * MS


def make(cameras: str = "top wrist", **options: object) -> Synchronizer:
    joints = JointBuffer(["a", "b"], {"a": (-2.0, 2.0)}, S)
    return Synchronizer(cameras.split(), joints, 20 * MS, 200 * MS, **options)


def feed(
    synchronizer: Synchronizer, start: int, end: int, cameras: str = "top wrist", joints: bool = True
) -> None:
    """Images at 30 Hz, joints at 100 Hz; received 5 ms after their stamps on a clock of another origin."""
    for stamp in range(start, end, 10 * MS):
        if joints:
            synchronizer.add_joints(stamp, ["b", "a"], [2.0, 1.0], stamp - start + 5 * MS)
    for stamp in range(start, end, 33 * MS):
        for camera in cameras.split():
            synchronizer.add_image(camera, stamp, f"{camera}@{stamp}", stamp - start + 5 * MS)


def only(taken: InputSet | Missing) -> tuple[str, str, str]:
    assert isinstance(taken, Missing), taken
    (problem,) = taken.problems
    return problem.stream, problem.reason, problem.detail


def test_a_set_is_taken_and_known_when_taken_again() -> None:
    """lerobot#1557, #1500, #2356: never filter by similarity; the same content at rest is taken again."""
    synchronizer = make()
    feed(synchronizer, S, 2 * S)
    first = synchronizer.take(2 * S)
    assert isinstance(first, InputSet)
    assert first.stamp_ns == S + 30 * 33 * MS
    assert first.images == {camera: f"{camera}@{first.stamp_ns}" for camera in ("top", "wrist")}
    assert first.joints.tolist() == [1.0, 2.0]
    assert (first.age_ns, first.skew_ns, first.is_new) == (10 * MS, 0, True)
    assert not synchronizer.take(2 * S).is_new
    for camera in ("top", "wrist"):
        synchronizer.add_image(camera, 2 * S, first.images[camera], S)
    assert synchronizer.take(2 * S).is_new


def test_a_silent_stream_is_named_with_what_the_others_do() -> None:
    """ros2/message_filters#169: the callback never fires, without a reason."""
    synchronizer = make()
    feed(synchronizer, S, 2 * S, cameras="top")
    stream, reason, detail = only(synchronizer.take(2 * S))
    assert (stream, reason) == ("wrist", "silent")
    assert "0 messages" in detail
    synchronizer = make()
    feed(synchronizer, S, 2 * S, joints=False)
    stream, reason, detail = only(synchronizer.take(2 * S))
    assert (stream, reason) == ("joint_states", "silent")
    assert "joints 'a', 'b': never received" in detail
    assert {p.stream for p in make().take(S).problems} == {"top", "wrist", "joint_states"}


def test_a_frozen_camera_stops_stale_and_recovers_by_itself() -> None:
    """livekit/portal#69, grabette PR#89: one frozen camera blocks all, or its last frame is used for ever
    and the arm moves wildly. Right: an age limit for each stream; stop, report, recover."""
    synchronizer = make()
    feed(synchronizer, S, 2 * S)
    assert isinstance(synchronizer.take(2 * S), InputSet)
    feed(synchronizer, 2 * S, 3 * S, cameras="top")
    for k in range(5):  # it goes on sending its last frame
        synchronizer.add_image("wrist", S + 990 * MS, "frozen", S + k * MS)
    stream, reason, detail = only(synchronizer.take(3 * S))
    assert (stream, reason) == ("wrist", "stale")
    assert "age 1.010 s" in detail
    assert "5 since the last look" in detail
    feed(synchronizer, 3 * S, 3 * S + 40 * MS)
    assert isinstance(synchronizer.take(3 * S + 40 * MS), InputSet)


def test_stale_joints_are_named() -> None:
    synchronizer = make()
    feed(synchronizer, S, 2 * S)
    feed(synchronizer, 2 * S, 3 * S, joints=False)
    stream, reason, detail = only(synchronizer.take(3 * S))
    assert (stream, reason) == ("joint_states", "stale")
    assert "'a'" in detail
    assert "'b'" in detail


def test_cameras_never_together_are_unsynchronized_with_the_skew() -> None:
    """message_filters#169 again: all streams alive, no match; the skew is the reason."""
    synchronizer = make()
    feed(synchronizer, S, 2 * S, cameras="top")
    for k in range(5):
        synchronizer.add_image("wrist", S + 16 * MS + k * 200 * MS + 1, "w", k * 200 * MS)
    synchronizer.add_image("wrist", 2 * S - 45 * MS, "w", S)
    # top: ... 1.957, 1.990; wrist: 1.816, 1.955
    assert isinstance(synchronizer.take(2 * S), InputSet)
    synchronizer = Synchronizer(["top", "wrist"], JointBuffer(["a"], None, S), 5 * MS, 200 * MS)
    synchronizer.add_image("top", 2 * S, "t", 0)
    synchronizer.add_image("wrist", 2 * S - 12 * MS, "w", 0)
    synchronizer.add_joints(2 * S, ["a"], [0.0], 0)
    stream, reason, detail = only(synchronizer.take(2 * S))
    assert (stream, reason) == ("wrist", "unsynchronized")
    assert "skew to 'top' is 0.012 s" in detail
    assert "0.005 s" in detail


def test_three_cameras_each_close_to_one_but_not_together_are_unsynchronized() -> None:
    synchronizer = Synchronizer(["x", "y", "z"], JointBuffer(["a"], None, S), 5 * MS, 200 * MS)
    for camera, stamp in (("x", 2 * S), ("y", 2 * S + 4 * MS), ("z", 2 * S - 4 * MS)):
        synchronizer.add_image(camera, stamp, camera, 0)
    synchronizer.add_joints(2 * S, ["a"], [0.0], 0)
    taken = synchronizer.take(2 * S)
    assert isinstance(taken, Missing)
    assert {problem.reason for problem in taken.problems} == {"unsynchronized"}


def test_a_late_camera_still_finds_its_partner() -> None:
    """The wrist's images arrive 150 ms after the top's of the same stamps: the history must span that."""
    synchronizer = make()
    for k in range(30):
        stamp = S + k * 33 * MS
        synchronizer.add_joints(stamp, ["a", "b"], [0.0, float(k)], stamp)
        synchronizer.add_image("top", stamp, k, stamp)
        if k >= 5:
            synchronizer.add_image("wrist", stamp - 5 * 33 * MS, k - 5, stamp)
            taken = synchronizer.take(stamp)
            assert taken.images == {"top": k - 5, "wrist": k - 5}
            assert taken.joints.tolist() == [0.0, k - 5.0]


def test_zero_stamps_are_rejected_by_name() -> None:
    """ros_comm#1716: zero stamps never match, without a report."""
    synchronizer = make()
    feed(synchronizer, S, 2 * S, cameras="top")
    synchronizer.add_image("wrist", 0, "w", 0)
    stream, reason, detail = only(synchronizer.take(2 * S))
    assert (stream, reason) == ("wrist", "unstamped")
    assert "header.stamp" in detail
    synchronizer = make()
    feed(synchronizer, S, 2 * S, joints=False)
    synchronizer.add_joints(0, ["a", "b"], [0.0, 0.0], 0)
    assert only(synchronizer.take(2 * S))[:2] == ("joint_states", "unstamped")


@pytest.mark.parametrize(("value", "words"), [(math.nan, "nan"), (-math.pi, r"-3.14159, outside")])
def test_bad_joint_values_stop_the_sample_until_they_are_good(value: float, words: str) -> None:
    """clearpath_robot#222, interbotix_ros_core PR#46, as the synchronizer shows them."""
    synchronizer = make()
    feed(synchronizer, S, 2 * S, joints=False)
    for stamp in range(S, 2 * S, 10 * MS):
        synchronizer.add_joints(stamp, ["a", "b", "effort_only"], [value, 0.0, math.nan], stamp)
    stream, reason, detail = only(synchronizer.take(2 * S))
    assert (stream, reason) == ("joint_states", "rejected")
    assert words in detail
    assert "'b'" not in detail
    feed(synchronizer, 2 * S, 2 * S + 100 * MS)
    assert isinstance(synchronizer.take(2 * S + 100 * MS), InputSet)


def test_mismatched_joint_messages_are_reported_as_rejected() -> None:
    synchronizer = make()
    feed(synchronizer, S, 2 * S, joints=False)
    synchronizer.add_joints(2 * S, ["a", "b"], [0.0], 0)
    stream, reason, detail = only(synchronizer.take(2 * S))
    assert (stream, reason) == ("joint_states", "rejected")
    assert "2 names but 1 positions" in detail


def test_a_stamp_in_the_future_is_a_problem_and_never_becomes_an_input() -> None:
    """Kept, the image would pass for a fresh one ten seconds later, when the camera may be dead."""
    synchronizer = make()
    feed(synchronizer, S, 2 * S)
    feed(synchronizer, 12 * S, 12 * S + 10 * MS, joints=False)
    taken = synchronizer.take(2 * S)
    assert isinstance(taken, InputSet)  # the good ones before are still good
    feed(synchronizer, 12 * S, 12 * S + 10 * MS)
    taken = synchronizer.take(2 * S + 300 * MS)
    assert isinstance(taken, Missing)
    assert {(p.stream, p.reason) for p in taken.problems} == {
        (name, "future") for name in ("top", "wrist", "joint_states")
    }
    assert "9.700 s ahead" in taken.problems[0].detail
    taken = synchronizer.take(12 * S)
    assert isinstance(taken, Missing)
    # A little ahead is another machine's clock, and allowed.
    feed(synchronizer, 12 * S + 50 * MS, 12 * S + 60 * MS)
    assert synchronizer.take(12 * S).age_ns == -50 * MS


@pytest.mark.parametrize("told", [True, False])
def test_a_looped_bag_starts_again_without_pairing_across_the_jump(told: bool) -> None:
    """ros_comm#1518, #1438; geometry2#551: looping pairs stale messages or never matches again. `told`:
    the node's jump callback calls clear; else the clock going back is noticed here."""
    synchronizer = make()
    feed(synchronizer, S, 5 * S)
    assert isinstance(synchronizer.take(5 * S), InputSet)
    if told:
        synchronizer.clear()
        assert all(status.count == 0 and status.age_ns is None for status in synchronizer.status(S))
    else:
        assert isinstance(synchronizer.take(S), Missing)
    feed(synchronizer, S, S + 100 * MS, cameras="top")
    assert only(synchronizer.take(S + 100 * MS))[0] == "wrist"  # the old wrist frames are gone
    feed(synchronizer, S, S + 100 * MS)
    taken = synchronizer.take(S + 100 * MS)
    assert isinstance(taken, InputSet)
    assert taken.stamp_ns == S + 99 * MS
    assert taken.is_new


def test_without_any_notice_of_a_jump_new_images_still_displace_old_ones() -> None:
    """ros_comm#1438: the newest message is the one evicted. Here the first to arrive leaves first, whatever
    its stamp: else one new image at a time would stay, and cameras with different delays never meet."""
    synchronizer = make()
    for stamp in range(5 * S, 5 * S + MAX_IMAGES):
        for camera in ("top", "wrist"):
            synchronizer.add_image(camera, stamp, "old", stamp)
    for k in range(6):
        stamp = S + k * 33 * MS
        synchronizer.add_joints(stamp, ["a", "b"], [0.0, 0.0], stamp)
        synchronizer.add_image("top", stamp, k, stamp)
        synchronizer.add_image("wrist", stamp - 2 * 33 * MS, k - 2, stamp)
    assert synchronizer.take(S + 5 * 33 * MS).images == {"top": 3, "wrist": 3}


def test_no_joint_reading_older_than_the_age_is_used_even_for_an_older_image() -> None:
    synchronizer = make("top")
    synchronizer.add_image("top", 2 * S, "t", 0)
    synchronizer.add_joints(2 * S - 100 * MS, ["a", "b"], [1.0, 1.0], 0)
    assert isinstance(synchronizer.take(2 * S + 100 * MS), InputSet)
    assert only(synchronizer.take(2 * S + 101 * MS))[:2] == ("joint_states", "stale")
    synchronizer.add_joints(2 * S + 100 * MS, ["a", "b"], [2.0, 2.0], 0)
    assert synchronizer.take(2 * S + 100 * MS).joints.tolist() == [1.5, 1.5]
    assert synchronizer.take(2 * S + 150 * MS).joints.tolist() == [2.0, 2.0]


def test_limits_of_age_and_skew_are_inclusive() -> None:
    synchronizer = make()
    synchronizer.add_image("top", 2 * S, "t", 0)
    synchronizer.add_image("wrist", 2 * S + 20 * MS, "w", 0)
    synchronizer.add_joints(2 * S, ["a", "b"], [0.0, 0.0], 0)
    taken = synchronizer.take(2 * S + 200 * MS)
    assert (taken.age_ns, taken.skew_ns) == (200 * MS, 20 * MS)
    assert isinstance(synchronizer.take(2 * S + 200 * MS + 1), Missing)


def test_a_problem_that_has_passed_is_kept_but_blames_nothing_later() -> None:
    synchronizer = make("top")
    synchronizer.add_image("top", 0, "t", 0)
    feed(synchronizer, S, 2 * S, cameras="top")
    status = synchronizer.status(2 * S)[0]
    assert (status.problem.reason, status.faulty) == ("unstamped", False)
    feed(synchronizer, 2 * S, 3 * S, cameras="")
    assert only(synchronizer.take(3 * S))[:2] == ("top", "stale")


def test_an_optional_camera_joins_when_it_fits_and_holds_nobody_up() -> None:
    synchronizer = make("top wrist", optional_cameras=["wrist"])
    feed(synchronizer, S, 2 * S, cameras="top")
    assert set(synchronizer.take(2 * S).images) == {"top"}
    synchronizer.add_image("wrist", S + 980 * MS, "w", 0)
    taken = synchronizer.take(2 * S)
    assert taken.images["wrist"] == "w"
    assert taken.stamp_ns == S + 990 * MS
    assert (taken.skew_ns, taken.is_new) == (10 * MS, False)


@pytest.mark.parametrize("order", [(970, 980, 989, 995), (995, 989, 980, 970)])
def test_of_several_fitting_images_of_an_optional_camera_the_nearest_is_taken(order: tuple) -> None:
    """Not the oldest, not the newest, not the first or the last to arrive: the one nearest to the instant."""
    synchronizer = make("top wrist", optional_cameras=["wrist"])
    feed(synchronizer, S, 2 * S, cameras="top")  # the last one at 1.990 s; the skew may be 20 ms
    for ms in order:
        synchronizer.add_image("wrist", S + ms * MS, ms, 0)
    taken = synchronizer.take(2 * S)
    assert (taken.stamp_ns, taken.images["wrist"], taken.skew_ns) == (S + 990 * MS, 989, MS)


def test_a_problem_has_its_figures_as_values() -> None:
    """Readers of a problem, of diagnostics or a recording, need not parse its sentence."""
    synchronizer = Synchronizer(["top", "wrist"], JointBuffer(["a", "b"], None, S), 5 * MS, 200 * MS)
    synchronizer.add_image("top", 2 * S, "t", 0)
    synchronizer.add_image("wrist", 2 * S - 12 * MS, "w", 0)
    for joints, value in ((["a"], 0.0), (["b"], math.nan)):
        synchronizer.add_joints(2 * S, joints, [value], 0)
    wrist, joints = synchronizer.take(2 * S + 3 * MS).problems
    assert (wrist.stream, wrist.reason, wrist.lead) == ("wrist", "unsynchronized", "top")
    assert (wrist.offset_ns, wrist.limit_ns, wrist.behind_ns) == (12 * MS, 5 * MS, 12 * MS)
    assert wrist.figures == (0.0, 15 * MS, 1, 1)
    assert [(fault.joint, fault.reason) for fault in joints.joints] == [("b", "rejected")]
    assert str(joints) == (
        "joint_states: rejected: joint 'b' reads nan; a failed read? "
        "(rate 0.0 Hz, age 0.003 s, 2 messages, 2 since the last look)"
    )


def test_what_is_wrong_with_the_last_message_and_at_the_instant_is_said_once() -> None:
    synchronizer = make("top")
    synchronizer.add_image("top", 2 * S, "t", 0)
    synchronizer.add_joints(2 * S, ["a"], [math.nan], 0)
    _, _, detail = only(synchronizer.take(2 * S))
    assert detail.startswith("joint 'a' reads nan; a failed read?; joint 'b': never received (rate")
    synchronizer.add_joints(2 * S, ["a", "b"], [0.0], 0)
    _, _, detail = only(synchronizer.take(2 * S))
    assert detail.startswith("2 names but 1 positions: each name needs one position; joint 'a' reads nan; ")


def test_status_has_rate_age_skew_and_the_last_problem() -> None:
    synchronizer = make()
    feed(synchronizer, S, 3 * S)
    synchronizer.add_image("wrist", 0, "w", 2 * S)
    top, wrist, joints = synchronizer.status(3 * S)
    assert (top.stream, wrist.stream, joints.stream) == ("top", "wrist", "joint_states")
    assert top.rate_hz == pytest.approx(1000 / 33, rel=0.01)
    assert joints.rate_hz == pytest.approx(100, rel=0.01)
    assert top.age_ns == 20 * MS
    assert joints.skew_ns == -10 * MS
    assert (top.count, top.problem, top.faulty) == (61, None, False)
    assert (wrist.problem.reason, wrist.faulty) == ("unstamped", True)
    synchronizer.blame("top", "does not decode")
    assert synchronizer.status(3 * S)[0].problem.reason == "rejected"
    feed(synchronizer, 3 * S, 6 * S, cameras="top")
    synchronizer.add_image("top", 6 * S, "t", 30 * S)
    assert synchronizer.status(6 * S)[1].rate_hz == 0.0  # quiet while another lives


def test_rates_are_measured_on_the_clock_of_receipt() -> None:
    """ros2/ros2#1081: the system clock steps; intervals are measured on a monotonic clock."""
    synchronizer = make("top")
    for k in range(20):
        stamp = S + k * 100 * MS + (3600 * S if k == 10 else 0)
        synchronizer.add_image("top", stamp, k, 7 + k * 100 * MS)
    assert synchronizer.status(3 * S)[0].rate_hz == pytest.approx(10.0)


def test_memory_is_bounded_and_payloads_are_never_looked_at() -> None:
    """message_filters#65: work inside the synchronizer serializes everything; here nothing is decoded."""

    class Opaque:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("payloads must not be compared")

        __hash__ = None

    synchronizer = make("top")
    for k in range(2 * MAX_IMAGES):
        synchronizer.add_image("top", S + k, Opaque(), k)
    assert len(synchronizer._images["top"]) == MAX_IMAGES
    synchronizer.add_joints(S, ["a", "b"], [0.0, 0.0], 0)
    assert synchronizer.take(S + 2 * MAX_IMAGES).stamp_ns == S + 2 * MAX_IMAGES - 1
    synchronizer.add_image("top", 2 * S, Opaque(), S)
    synchronizer.discard_old(2 * S)
    assert len(synchronizer._images["top"]) == 1


def test_fast_cameras_with_different_delays_meet() -> None:
    """400 Hz, one camera 180 ms later than the other: 72 images lie between."""
    synchronizer, step, delay = make(), 2_500_000, 180 * MS
    for k in range(200):
        now = S + k * step
        synchronizer.add_joints(now, ["a", "b"], [0.0, 0.0], now)
        synchronizer.add_image("top", now, k, now)
        synchronizer.add_image("wrist", now - delay, k - 72, now)
    taken = synchronizer.take(now)
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
        Synchronizer(cameras, JointBuffer(["a"], None, S), 1, 1, optional)
    with pytest.raises(ValueError, match="max_age_ns 0"):
        Synchronizer(["top"], JointBuffer(["a"], None, S), 1, 0)
    with pytest.raises(ValueError, match="'belly' is not one of"):
        make().add_image("belly", S, None, 0)


# -- against brute force -------------------------------------------------------------------------

SKEW, AGE = 3, 10


class Reference:
    """All that was ever added, and every combination tried: slow and plain."""

    def __init__(self) -> None:
        self.images: dict[str, dict[int, object]] = {"top": {}, "wrist": {}, "side": {}}
        self.joints: dict[str, dict[int, float]] = {"a": {}, "b": {}}
        self.last_now = -(10**9)
        self.last_taken: int | None = None

    def joint(self, name: str, at: int, now: int) -> float:
        column = self.joints[name]
        usable = [s for s in column if abs(s - at) <= AGE and abs(s - now) <= AGE]
        before = max((s for s in usable if s <= at), default=None)
        after = min((s for s in usable if s > at), default=None)
        if before is None and after is None:
            return math.nan
        if before is None or after is None or before == at:
            return column[after if before is None else before]
        return float(np.interp(at, [before, after], [column[before], column[after]]))

    def take(self, now: int) -> tuple[int, int, list[float]] | None:
        """(instant, least skew of the required cameras, joints) of the newest set."""
        if now < self.last_now - AGE:
            self.__init__()
        self.last_now = now
        for column in (*self.images.values(), *self.joints.values()):
            for stamp in [s for s in column if s > now + AGE]:
                del column[stamp]
        # Once too old, an image stays so, also when the clock steps back a little.
        for column in self.images.values():
            for stamp in [s for s in column if s < now - AGE]:
                del column[stamp]
        best: tuple[int, int, list[float]] | None = None
        for pair in itertools.product(self.images["top"], self.images["wrist"]):
            instant, skew = min(pair), max(pair) - min(pair)
            if skew > SKEW or instant < now - AGE:
                continue
            joints = [self.joint(name, instant, now) for name in "ab"]
            if not np.isnan(joints).any() and (best is None or (instant, -skew) > (best[0], -best[1])):
                best = (instant, skew, joints)
        return best


# Lags cluster where the limits are: about now, at the skew, at the age; and a few in the future.
lag = st.one_of(st.integers(0, 6), st.integers(0, 12), st.sampled_from([AGE - 1, AGE, AGE + 1, -1, -AGE - 1]))
value = st.sampled_from([*np.linspace(-1, 1, 15).tolist(), math.nan])
event = st.one_of(
    st.tuples(st.just("image"), st.sampled_from(["top", "wrist"]), lag),
    st.tuples(st.just("image"), st.sampled_from(["top", "wrist", "side"]), lag),
    st.tuples(st.just("joints"), st.sampled_from(["ab", "ba", "abx", "a", "b"]), lag, value),
    st.tuples(st.just("joints"), st.just("ab"), lag, st.floats(-1, 1)),
    st.tuples(st.just("take"), st.integers(0, 4)),
    st.tuples(st.just("take"), st.integers(4, 14)),
    st.tuples(st.just("rare"), st.sampled_from(["clear", *range(-25, -5)])),
)
# Every run starts from a state in which a set is likely, with several images of the optional camera about it.
start = st.lists(
    st.tuples(
        st.integers(0, AGE),
        st.integers(-SKEW - 1, SKEW + 1),
        st.lists(st.integers(-SKEW - 1, SKEW + 1), max_size=4),
    ),
    min_size=1,
    max_size=4,
)


@given(start=start, events=st.lists(event, min_size=1, max_size=30))
@settings(max_examples=600, deadline=None)
def test_any_interleaving_gives_the_newest_coherent_set_of_brute_force(start: list, events: list) -> None:
    """Coherent, the newest possible, never stale, nothing from before a jump; message_filters' faults
    (ros_comm#1518, #1438: looped bags pair stale messages or evict the newest) cannot be found."""
    synchronizer = Synchronizer(["top", "wrist"], JointBuffer("ab", None, 10**9), SKEW, AGE, ["side"])
    reference, now = Reference(), 1000
    before = [
        event
        for lag, skew, sides in start
        for event in (
            ("image", "top", lag),
            ("image", "wrist", lag + skew),
            ("joints", "ab", lag, 0.5),
            *(("image", "side", lag + side) for side in sides),
        )
    ]
    for number, (kind, *fields) in enumerate([*before, ("take", 0), *events, ("take", 0)]):
        if kind == "image":
            camera, stamp = fields[0], now - fields[1]
            synchronizer.add_image(camera, stamp, number, number)
            reference.images[camera][stamp] = number
        elif kind == "joints":
            names, stamp, value = fields[0], now - fields[1], fields[2]
            synchronizer.add_joints(stamp, list(names), [value] * len(names), number)
            for name in set(names) & {"a", "b"}:
                reference.joints[name][stamp] = value
        elif fields == ["clear"]:
            synchronizer.clear()
            reference = Reference()
        else:
            now += fields[0]
            check(synchronizer.take(now), reference, now)


def check(taken: InputSet | Missing, reference: Reference, now: int) -> None:
    expected = reference.take(now)
    if expected is None:
        assert isinstance(taken, Missing)
        assert taken.problems
        assert {problem.stream for problem in taken.problems} <= {"top", "wrist", "joint_states"}
        assert len({problem.stream for problem in taken.problems}) == len(taken.problems)
        return
    instant, skew, joints = expected
    assert isinstance(taken, InputSet), str(taken)
    assert taken.stamp_ns == instant
    assert taken.age_ns == now - instant <= AGE
    np.testing.assert_allclose(taken.joints, joints, atol=1e-12)
    stamps = taken.image_stamps
    required = [stamps["top"], stamps["wrist"]]
    assert min(required) == instant
    assert max(required) - min(required) == skew
    assert max(stamps.values()) - min(stamps.values()) == taken.skew_ns <= SKEW
    assert min(stamps.values()) >= now - AGE
    assert taken.images == {camera: reference.images[camera][stamp] for camera, stamp in stamps.items()}
    fits = [
        s
        for s in reference.images["side"]
        if abs(s - now) <= AGE and max(s, *required) - min(s, *required) <= SKEW
    ]
    assert ("side" in stamps) == bool(fits)
    if fits:
        assert abs(stamps["side"] - instant) == min(abs(s - instant) for s in fits)
    assert taken.is_new == (instant != reference.last_taken)
    reference.last_taken = instant
