# SPDX-License-Identifier: Apache-2.0
"""Limits out of a URDF: what is read, what is refused, and that parameters come first."""

from __future__ import annotations

import math

import pytest

from oxygen_ros.robot.description import DescriptionError, merge_limit, read_description
from oxygen_ros.robot.limits import JointLimit

ARM = """<?xml version="1.0"?>
<robot name="arm" xmlns:xacro="http://www.ros.org/wiki/xacro">
  <link name="base"/>
  <joint name="lift" type="prismatic"><limit lower="0.1" upper="0.5" effort="9" velocity="0.2"/></joint>
  <joint name="turn" type="revolute"><limit lower="-1.5" upper="1.5" effort="9" velocity="2"/></joint>
  <joint name="wheel" type="continuous"><limit lower="-1" upper="1" effort="9" velocity="6.5"/></joint>
  <joint name="free" type="continuous"/>
  <joint name="up_only" type="revolute"><limit upper="2" effort="9" velocity="1"/></joint>
  <joint name="mount" type="fixed"/>
  <joint name="finger" type="prismatic">
    <limit lower="0" upper="0.04" effort="1" velocity="0.1"/></joint>
  <joint name="other_finger" type="prismatic">
    <limit lower="-0.06" upper="0" effort="1" velocity="0.1"/><mimic joint="finger" multiplier="-2"/></joint>
  <transmission name="t"><joint name="turn" type="revolute"><hardwareInterface/></joint></transmission>
</robot>"""


def test_limits_are_read_by_joint() -> None:
    found = read_description(ARM)
    assert merge_limit("lift", {}, found["lift"]) == JointLimit(0.1, 0.5, 0.2)
    assert merge_limit("turn", {}, found["turn"]) == JointLimit(-1.5, 1.5, 2.0)
    assert merge_limit("up_only", {}, found["up_only"]) == JointLimit(0.0, 2.0, 1.0)  # by the specification
    assert "mount" not in found


def test_what_turns_freely_has_a_speed_but_no_ends() -> None:
    found = read_description(ARM)
    assert merge_limit("wheel", {}, found["wheel"]) == JointLimit(-math.inf, math.inf, 6.5)
    assert merge_limit("free", {}, found["free"]) == JointLimit(-math.inf, math.inf, math.inf)
    assert found["free"].kind == "continuous"
    assert found["lift"].kind == "prismatic"


def test_a_joint_is_limited_for_those_that_mimic_it() -> None:
    """other_finger = -2 x finger within [-0.06, 0] at 0.1 m/s: finger up to 0.03 at 0.05."""
    finger = merge_limit("finger", {}, read_description(ARM)["finger"])
    assert (finger.lower, finger.upper, finger.velocity) == pytest.approx((0.0, 0.03, 0.05))


def test_parameters_come_first_bound_by_bound() -> None:
    turn = read_description(ARM)["turn"]
    given = {"upper": 0.5, "step": 0.01}
    assert merge_limit("turn", given, turn) == JointLimit(-1.5, 0.5, 2.0, 0.01)
    assert merge_limit("turn", {"lower": -1.0}, None) == JointLimit(-1.0, math.inf, math.inf)
    with pytest.raises(ValueError, match="must not exceed"):
        merge_limit("turn", {"lower": 1.6}, turn)


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        ("", "'j' is revolute and has no <limit>"),
        ('<limit effort="1" velocity="1"/>', "neither lower nor upper"),
        ('<limit lower="${-pi}" upper="1" velocity="1"/>', r"lower is '\$\{-pi\}', not a number"),
        ('<limit lower="2" upper="1" velocity="1"/>', "lower is 2, upper is 1"),
        ('<limit lower="nan" upper="1" velocity="1"/>', "lower is nan"),
        ('<limit lower="0" upper="1" velocity="0"/>', "velocity is 0; it must be positive"),
    ],
)
def test_a_joint_whose_limits_make_no_sense_is_named_with_the_cure(limit: str, words: str) -> None:
    """But only where it matters: parameters that set all of it make the description's share idle."""
    joint = read_description(f'<robot><joint name="j" type="revolute">{limit}</joint></robot>')["j"]
    with pytest.raises(DescriptionError, match=words + r".*set limits\.j\.lower"):
        merge_limit("j", {}, joint)
    given = {"lower": -1.0, "upper": 1.0, "velocity": 2.0}
    assert merge_limit("j", given, joint) == JointLimit(-1.0, 1.0, 2.0)


BOMB = (
    '<!DOCTYPE r [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;">]>'
    '<robot><joint name="&b;" type="revolute"/></robot>'
)
FILE = '<?xml version="1.0"?><!DOCTYPE r [<!ENTITY f SYSTEM "file:///etc/hostname">]><robot>&f;</robot>'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (BOMB, "document type"),
        (FILE, "document type"),
        ("", "is no XML"),
        ("<robot><joint", "is no XML"),
        ("\x00", "is no XML"),
        ("<robot>\ud800</robot>", "is no XML"),
        ("<sdf/>", "outermost element is <sdf>"),
        (" " * 20_000_001, "at most 20000000"),
    ],
    ids=["bomb", "file", "empty", "cut", "zero", "surrogate", "sdf", "huge"],
)
def test_what_is_no_urdf_is_refused(text: str, words: str) -> None:
    with pytest.raises(DescriptionError, match=words):
        read_description(text)


def test_a_mimic_that_cannot_be_followed_is_a_problem_of_its_leader() -> None:
    text = """<robot>
      <joint name="a" type="revolute"><limit lower="0" upper="1" velocity="1"/></joint>
      <joint name="b" type="revolute"><limit lower="0" upper="1" velocity="1"/>
        <mimic joint="a" offset="5"/></joint>
      <joint name="c" type="revolute"><limit lower="0" upper="1" velocity="1"/>
        <mimic joint="b" multiplier="two"/></joint></robot>"""
    found = read_description(text)
    with pytest.raises(DescriptionError, match="'a': no position leaves 'b'"):
        merge_limit("a", {}, found["a"])
    with pytest.raises(DescriptionError, match="'c': its <mimic>"):
        merge_limit("b", {}, found["b"])
