# SPDX-License-Identifier: Apache-2.0
"""Action spaces: columns and kinds of mixed components, and components that contradict themselves."""

from __future__ import annotations

import pytest

from oxygen_ros.actions import ROTATIONS, ActionComponent, ActionSpace, ComponentKind, joint_space

HAND = ActionComponent("hand", ComponentKind.CARTESIAN_POSITION, "m", "base_link")
TURN = ActionComponent("hand", ComponentKind.ROTATION, "1", "base_link", "quaternion_xyzw")
CLAW = ActionComponent("claw", ComponentKind.GRIPPER, "1")
LIFT = ActionComponent("lift", ComponentKind.JOINT_VELOCITY, "m/s")


def test_every_number_has_a_name_and_a_kind() -> None:
    space = ActionSpace((HAND, TURN, CLAW, LIFT))
    assert space.columns == (
        "hand.x", "hand.y", "hand.z", "hand.qx", "hand.qy", "hand.qz", "hand.qw", "claw", "lift",
    )  # fmt: skip
    assert space.size == len(space.kinds) == len(set(space.columns)) == 9
    assert space.joints == ("lift",)
    assert space.places(ComponentKind.GRIPPER, ComponentKind.JOINT_VELOCITY) == [7, 8]
    assert space == ActionSpace((HAND, TURN, CLAW, LIFT))
    assert isinstance(hash(space), int), "a space is a value"


@pytest.mark.parametrize("rotation", ROTATIONS)
def test_a_rotation_has_the_numbers_of_its_representation(rotation: str) -> None:
    sizes = {"axis_angle": 3, "euler_xyz": 3, "quaternion_xyzw": 4, "matrix_6d": 6}
    turn = ActionComponent("hand", ComponentKind.ROTATION_DELTA, "rad", "tool0", rotation)
    assert len(set(turn.columns)) == sizes[rotation]


def test_joints_are_the_usual_case() -> None:
    space = joint_space(["a", "b"])
    assert (space.columns, space.joints) == (("a", "b"), ("a", "b"))
    assert {component.kind for component in space.components} == {ComponentKind.JOINT_POSITION}
    assert {component.unit for component in space.components} == {"rad or m"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("", ComponentKind.GRIPPER, "1"), "needs a name and a unit"),
        (("claw", ComponentKind.GRIPPER, ""), "needs a name and a unit"),
        (("claw", ComponentKind.GRIPPER, "1", "base_link"), "'claw': gripper with frame 'base_link'"),
        (("a", ComponentKind.JOINT_DELTA, "rad", "base_link"), "'a': joint_delta with frame"),
        (("hand", ComponentKind.CARTESIAN_DELTA, "m"), "'hand': cartesian_delta with frame ''"),
        (("hand", ComponentKind.ROTATION, "rad", "base_link"), "'hand': rotation with rotation ''"),
        (("a", ComponentKind.JOINT_POSITION, "rad", "", "axis_angle"), "with rotation 'axis_angle'"),
        (
            ("hand", ComponentKind.ROTATION, "rad", "base_link", "wxyz"),
            "must be one of axis_angle, .* 'wxyz'",
        ),
    ],
)
def test_a_component_that_contradicts_itself_is_named(fields: tuple[str, ...], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        ActionComponent(*fields)  # type: ignore[arg-type]


def test_a_space_names_a_component_that_is_there_twice() -> None:
    with pytest.raises(ValueError, match="'lift' is there twice"):
        ActionSpace((LIFT, CLAW, LIFT))
    with pytest.raises(ValueError, match="needs a component"):
        ActionSpace(())
