# SPDX-License-Identifier: Apache-2.0
"""Action spaces: what the numbers of an action mean, component by component.

Models declare an action space for each expert; chunks, limits, joining and `ActionChunk.msg` use it. Plain
values; no model, no robot, no ROS.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property


class ComponentKind(StrEnum):
    """What a component of an action is."""

    JOINT_POSITION = "joint_position"  # absolute position of one joint
    JOINT_VELOCITY = "joint_velocity"  # velocity of one joint
    JOINT_DELTA = "joint_delta"  # position of one joint relative to the observation's
    CARTESIAN_POSITION = "cartesian_position"  # x, y, z of a link in `frame`
    CARTESIAN_DELTA = "cartesian_delta"  # the same relative to the observation's
    ROTATION = "rotation"  # orientation of a link in `frame`
    ROTATION_DELTA = "rotation_delta"  # the same relative to the observation's
    GRIPPER = "gripper"  # opening of a gripper that is no joint of the state

    @property
    def is_joint(self) -> bool:
        return self in (
            ComponentKind.JOINT_POSITION,
            ComponentKind.JOINT_VELOCITY,
            ComponentKind.JOINT_DELTA,
        )

    @property
    def is_rotation(self) -> bool:
        return self in (ComponentKind.ROTATION, ComponentKind.ROTATION_DELTA)


# The numbers of a rotation in each representation, by the suffixes of their columns. Quaternions are
# x, y, z, w as in geometry_msgs; "matrix_6d" is the first two columns of the rotation matrix (Zhou et al.
# 2019).
ROTATIONS = {
    "axis_angle": ("rx", "ry", "rz"),
    "euler_xyz": ("roll", "pitch", "yaw"),
    "quaternion_xyzw": ("qx", "qy", "qz", "qw"),
    "matrix_6d": ("xx", "yx", "zx", "xy", "yy", "zy"),
}
# A joint's unit where the checkpoint does not have its type.
JOINT_UNIT = "rad or m"


@dataclass(frozen=True, slots=True)
class ActionComponent:
    """One component of an action.

    name:      the joint; of Cartesian positions and rotations the link they are of; of a gripper its name
    kind:      see ComponentKind
    unit:      of its numbers: "rad", "m", "rad/s", "m/s"; "1" for what has none
    frame:     tf frame that Cartesian positions and rotations are in; "" for joints and grippers
    rotation:  one of ROTATIONS for rotations, else ""

    Raises ValueError for a component that contradicts itself.
    """

    name: str
    kind: ComponentKind
    unit: str
    frame: str = ""
    rotation: str = ""

    def __post_init__(self) -> None:
        if not self.name or not self.unit:
            raise ValueError(f"an action component needs a name and a unit, got {self}")
        if self.kind.is_rotation != bool(self.rotation):
            raise ValueError(f"component {self.name!r}: {self.kind} with rotation {self.rotation!r}")
        if self.rotation and self.rotation not in ROTATIONS:
            raise ValueError(
                f"component {self.name!r}: rotation must be one of {', '.join(ROTATIONS)}, "
                f"got {self.rotation!r}"
            )
        is_placed = not (self.kind.is_joint or self.kind is ComponentKind.GRIPPER)
        if is_placed != bool(self.frame):
            raise ValueError(f"component {self.name!r}: {self.kind} with frame {self.frame!r}")

    @property
    def columns(self) -> tuple[str, ...]:
        """A name for each of its numbers."""
        if self.kind.is_rotation:
            return tuple(f"{self.name}.{suffix}" for suffix in ROTATIONS[self.rotation])
        if self.kind in (ComponentKind.CARTESIAN_POSITION, ComponentKind.CARTESIAN_DELTA):
            return tuple(f"{self.name}.{axis}" for axis in "xyz")
        return (self.name,)


@dataclass(frozen=True)
class ActionSpace:
    """The components of an action in the order of its numbers.

    Raises ValueError when there is none or two columns have the same name and kind.
    """

    components: tuple[ActionComponent, ...]

    def __post_init__(self) -> None:
        named = [(component.kind, component.name) for component in self.components]
        twice = [name for kind, name in named if named.count((kind, name)) > 1]
        if twice:
            raise ValueError(f"action component {twice[0]!r} is there twice")
        if not named:
            raise ValueError("an action space needs a component")

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """A name for each number of an action [A]."""
        return tuple(column for component in self.components for column in component.columns)

    @cached_property
    def kinds(self) -> tuple[ComponentKind, ...]:
        """The kind of each number of an action [A]."""
        return tuple(component.kind for component in self.components for _ in component.columns)

    @property
    def size(self) -> int:
        """A, numbers of one action."""
        return len(self.columns)

    @cached_property
    def joints(self) -> tuple[str, ...]:
        """Names of the joints among the components, in their order."""
        return tuple(component.name for component in self.components if component.kind.is_joint)

    def places(self, *kinds: ComponentKind) -> list[int]:
        """Columns of the given kinds."""
        return [place for place, kind in enumerate(self.kinds) if kind in kinds]


def joint_space(
    names: Iterable[str], kind: ComponentKind = ComponentKind.JOINT_POSITION, unit: str = JOINT_UNIT
) -> ActionSpace:
    """An action space of joints, all of one kind."""
    return ActionSpace(tuple(ActionComponent(name, kind, unit) for name in names))
