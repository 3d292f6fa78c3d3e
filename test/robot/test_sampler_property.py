# SPDX-License-Identifier: Apache-2.0
"""The sampler against brute force, over any interleaving of images, joints, takes, jumps and clears."""

import itertools
import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.robot.joints import JointBuffer
from oxygen_ros.robot.sampler import Missing, Sample, Sampler

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
# Every run starts from a state in which a sample is likely.
start = st.lists(st.tuples(st.integers(0, AGE), st.integers(-SKEW - 1, SKEW + 1)), min_size=1, max_size=4)


@given(start=start, events=st.lists(event, min_size=1, max_size=30))
@settings(max_examples=600, deadline=None)
def test_any_interleaving_gives_the_newest_coherent_set_of_brute_force(start: list, events: list) -> None:
    """Coherent, the newest possible, never stale, nothing from before a jump; message_filters' faults
    (ros_comm#1518, #1438: looped bags pair stale messages or evict the newest) cannot be found."""
    sampler = Sampler(["top", "wrist"], JointBuffer("ab", None, 10**9), SKEW, AGE, ["side"])
    reference, now = Reference(), 1000
    before = [
        event
        for lag, skew in start
        for event in (("image", "top", lag), ("image", "wrist", lag + skew), ("joints", "ab", lag, 0.5))
    ]
    for number, (kind, *fields) in enumerate([*before, ("take", 0), *events, ("take", 0)]):
        if kind == "image":
            camera, stamp = fields[0], now - fields[1]
            sampler.add_image(camera, stamp, number, number)
            reference.images[camera][stamp] = number
        elif kind == "joints":
            names, stamp, value = fields[0], now - fields[1], fields[2]
            sampler.add_joints(stamp, list(names), [value] * len(names), number)
            for name in set(names) & {"a", "b"}:
                reference.joints[name][stamp] = value
        elif fields == ["clear"]:
            sampler.clear()
            reference = Reference()
        else:
            now += fields[0]
            check(sampler.take(now), reference, now)


def check(taken: Sample | Missing, reference: Reference, now: int) -> None:
    expected = reference.take(now)
    if expected is None:
        assert isinstance(taken, Missing)
        assert taken.problems
        assert {problem.stream for problem in taken.problems} <= {"top", "wrist", "joint_states"}
        assert len({problem.stream for problem in taken.problems}) == len(taken.problems)
        return
    instant, skew, joints = expected
    assert isinstance(taken, Sample), str(taken)
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
