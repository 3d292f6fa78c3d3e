# SPDX-License-Identifier: Apache-2.0
"""The soak's own judgment: what may become a chunk, from the drivers' lines alone."""

from __future__ import annotations

import pytest

from soak.expectations import Expectations

MS = 1_000_000
JOINTS = ("joint1", "joint2")
NOW = 1_000_000 * MS


@pytest.fixture
def expectations() -> Expectations:
    """Cameras a and b, 50 ms of skew, 500 ms of age; a second of good messages of everything, up to NOW."""
    one = Expectations(("a", "b"), JOINTS, 50 * MS, 500 * MS)
    for at in range(NOW - 1000 * MS, NOW + 1, 20 * MS):
        one.add(f"a {at} {at + MS} 1 good")
        one.add(f"b {at + 5 * MS} {at + 6 * MS} 1 good")
        one.add(f"joint_states {at} {at + MS} 1 joint1,joint2")
    return one


def judge(expectations: Expectations, stamp_ns: int, taken_ns: int) -> str:
    return "; ".join(expectations.find_faults(stamp_ns, taken_ns))


def test_good_input_is_good(expectations: Expectations) -> None:
    assert judge(expectations, NOW - 20 * MS, NOW + 10 * MS) == ""
    assert judge(expectations, NOW - 300 * MS, NOW) == "", "not the newest, yet not too old"


def test_a_stamp_nobody_published(expectations: Expectations) -> None:
    assert "the chunk's stamp is of no good image" in judge(expectations, NOW - 21 * MS, NOW)


def test_stale_images(expectations: Expectations) -> None:
    assert "stale: a published the image 0.899 s" in judge(expectations, NOW - 20 * MS, NOW + 900 * MS)


def test_cameras_apart(expectations: Expectations) -> None:
    expectations.add(f"a {NOW + 100 * MS} {NOW + 101 * MS} 1 good")
    assert "unsynchronized: b" in judge(expectations, NOW + 100 * MS, NOW + 110 * MS)


@pytest.mark.parametrize("stamp", [NOW + 20 * MS, 0, NOW + 20_000 * MS])
def test_a_bad_image_is_none(expectations: Expectations, stamp: int) -> None:
    expectations.add(f"a {stamp} {NOW + 21 * MS} 1 bad")
    expectations.add(f"b {NOW + 25 * MS} {NOW + 26 * MS} 1 good")
    assert "a" in judge(expectations, NOW + 20 * MS, NOW + 40 * MS)


def test_a_repeated_image_is_as_old_as_the_first_one(expectations: Expectations) -> None:
    for at in range(NOW, NOW + 1000 * MS, 20 * MS):
        expectations.add(f"a {NOW} {at + MS} 1 good")
        expectations.add(f"b {at + 5 * MS} {at + 6 * MS} 1 good")
    assert "stale: a" in judge(expectations, NOW, NOW + 990 * MS)


def add_images(expectations: Expectations, at: int) -> None:
    expectations.add(f"a {at} {at + MS} 1 good")
    expectations.add(f"b {at + 5 * MS} {at + 6 * MS} 1 good")


def test_a_joint_that_is_missing_too_long(expectations: Expectations) -> None:
    for at in range(NOW + 20 * MS, NOW + 700 * MS, 20 * MS):
        add_images(expectations, at)
        expectations.add(f"joint_states {at} {at + MS} 1 joint2")
    assert judge(expectations, NOW + 400 * MS, NOW + 410 * MS) == "", (
        "older readings stand for as long as allowed"
    )
    assert "stale: joint1" in judge(expectations, NOW + 600 * MS, NOW + 610 * MS)


def test_a_joint_whose_value_is_bad(expectations: Expectations) -> None:
    for at in range(NOW + 20 * MS, NOW + 900 * MS, 20 * MS):
        add_images(expectations, at)
        expectations.add(f"joint_states {at} {at + MS} 1 !joint1,joint2")
    assert "non-finite or failed: joint1" in judge(expectations, NOW + 60 * MS, NOW + 480 * MS)
    assert judge(expectations, NOW + 20 * MS, NOW + 60 * MS) == "", "the bad one had hardly been sent"


def test_when_a_fault_showed_and_ended(expectations: Expectations) -> None:
    expectations.add(f"a {NOW + 20 * MS} {NOW + 21 * MS} 1 bad")
    expectations.add(f"a {NOW + 40 * MS} {NOW + 41 * MS} 0 good")
    expectations.add(f"a {NOW + 60 * MS} {NOW + 61 * MS} 1 good")
    assert expectations.first_bad("a", NOW + 2 * MS) == NOW + 21 * MS
    assert expectations.first_good("a", NOW + 21 * MS) == NOW + 61 * MS, (
        "one without a subscriber does not count"
    )
    assert expectations.first_good("a", NOW + 62 * MS) is None
