# SPDX-License-Identifier: Apache-2.0
"""Joint limits from a robot description (URDF), and merged with those that parameters set.

The format is that of https://wiki.ros.org/urdf/XML/joint; only `<limit>` and `<mimic>` are read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, isnan
from xml.etree import ElementTree

from oxygen_ros.robot.limits import JointLimit

MOST_CHARS = 20_000_000
# Joints that have one position; joint states have none for the others (fixed, floating, planar).
KINDS = ("revolute", "continuous", "prismatic")


class DescriptionError(ValueError):
    """A robot description, or a joint of it, that cannot be used; names what and why."""


@dataclass(frozen=True, slots=True)
class Described:
    """The limits of one joint in a description.

    kind:      "revolute" | "continuous" (no position limits, and none missing) | "prismatic"
    lower, upper, velocity:  [rad or m, and their rate]; infinite where the description sets none
    problem:   why its limits cannot be used as they are, "" when they can. It matters only for a joint that
               is commanded and whose limits are not set by parameters
    """

    kind: str
    lower: float = -inf
    upper: float = inf
    velocity: float = inf
    problem: str = ""


def read_description(text: str) -> dict[str, Described]:
    """Joint name -> its limits in the URDF, narrower where joints that mimic it need it.

    Raises DescriptionError for what is no URDF. A document type declaration is refused before it is read: no
    URDF needs one, and its entities can name files or grow without bound.
    """
    if len(text) > MOST_CHARS:
        raise DescriptionError(
            f"the robot description has {len(text)} characters, at most {MOST_CHARS} are read"
        )
    if "<!DOCTYPE" in text or "<!ENTITY" in text:
        raise DescriptionError("the robot description declares a document type or entities; a URDF has none")
    try:
        root = ElementTree.fromstring(text)
    except (ElementTree.ParseError, ValueError) as error:
        raise DescriptionError(f"the robot description is no XML: {error}") from error
    if root.tag != "robot":
        raise DescriptionError(
            f"the robot description's outermost element is <{root.tag}>; a URDF's is <robot>"
        )
    # Direct children only: <transmission> and <ros2_control> have <joint> elements of another meaning.
    elements = {joint.get("name", ""): joint for joint in root.findall("joint") if joint.get("type") in KINDS}
    found = {name: _read_joint(name, element) for name, element in elements.items()}
    for name, element in elements.items():
        mimic = element.find("mimic")
        leader = "" if mimic is None else mimic.get("joint", "")
        if mimic is not None and leader in found:
            found[leader] = _narrow(leader, found[leader], name, found[name], mimic)
    return found


def merge_limit(joint: str, given: Mapping[str, float], described: Described | None) -> JointLimit:
    """One joint's limits: each bound that was set, else the description's, else none.

    given: "lower", "upper", "velocity", "step", those that were set

    Raises DescriptionError when the description's share of it cannot be used, ValueError (of JointLimit)
    when the bounds contradict each other.
    """
    from_text = described or Described("")
    needed = {"lower", "upper", "velocity"} - set(given)
    if from_text.problem and needed:
        parameters = ", ".join(f"limits.{joint}.{bound}" for bound in sorted(needed))
        raise DescriptionError(f"robot_description: {from_text.problem}; correct it, or set {parameters}")
    return JointLimit(
        given.get("lower", from_text.lower),
        given.get("upper", from_text.upper),
        given.get("velocity", from_text.velocity),
        given.get("step", inf),
    )


def _read_joint(name: str, element: ElementTree.Element) -> Described:
    kind = element.get("type", "")
    limit = element.find("limit")
    if limit is None:
        missing = "" if kind == "continuous" else f"joint {name!r} is {kind} and has no <limit>"
        return Described(kind, problem=missing)
    if kind != "continuous" and limit.get("lower") is None and limit.get("upper") is None:
        # By the specification both are 0 then: a joint that cannot move, which is hardly ever meant.
        return Described(kind, problem=f"joint {name!r}: <limit> has neither lower nor upper")
    bounds: dict[str, float] = {}
    for bound, default in (("lower", 0.0), ("upper", 0.0), ("velocity", inf)):
        words = limit.get(bound)
        try:
            bounds[bound] = default if words is None else float(words)
        except ValueError:
            return Described(kind, problem=f"joint {name!r}: {bound} is {words!r}, not a number")
    # A joint that turns freely has no position limits, whatever its <limit> says.
    lower, upper = (-inf, inf) if kind == "continuous" else (bounds["lower"], bounds["upper"])
    problem = ""
    if isnan(lower) or isnan(upper) or lower > upper:
        problem = f"joint {name!r}: lower is {lower:g}, upper is {upper:g}"
    elif not bounds["velocity"] > 0:
        problem = f"joint {name!r}: velocity is {bounds['velocity']:g}; it must be positive"
    return Described(kind, lower, upper, bounds["velocity"], problem)


def _narrow(
    name: str, leader: Described, follower_name: str, follower: Described, mimic: ElementTree.Element
) -> Described:
    """The leader's limits, narrowed so that follower = multiplier * leader + offset stays within its own."""
    try:
        factor, offset = float(mimic.get("multiplier", "1")), float(mimic.get("offset", "0"))
    except ValueError:
        problem = f"joint {follower_name!r}: its <mimic> has a multiplier or offset that is no number"
        return replace(leader, problem=problem)
    if leader.problem or follower.problem or factor == 0:
        return leader
    ends = sorted(((follower.lower - offset) / factor, (follower.upper - offset) / factor))
    lower, upper = max(leader.lower, ends[0]), min(leader.upper, ends[1])
    if not lower <= upper:
        problem = f"joint {name!r}: no position leaves {follower_name!r}, which mimics it, within its limits"
        return replace(leader, problem=problem)
    return Described(leader.kind, lower, upper, min(leader.velocity, follower.velocity / abs(factor)))
