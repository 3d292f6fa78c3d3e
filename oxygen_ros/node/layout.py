# SPDX-License-Identifier: Apache-2.0
"""The robot as a model needs it: its cameras, joints, action spaces and limits. No ROS.

Made in configure from the settings and the model's spec; a mismatch is refused by name.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import isfinite

from oxygen_ros.actions import ActionSpace
from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.node.parameters import ParameterProblem
from oxygen_ros.node.settings import TOPIC_NAME, CameraSettings, LimitSettings, Settings
from oxygen_ros.robot.chunk import explain_uncommandable
from oxygen_ros.robot.description import Described, DescriptionError, merge_limit
from oxygen_ros.robot.joining import JoinRule
from oxygen_ros.robot.limits import JointLimit, Limits


@dataclass(frozen=True, slots=True)
class RobotLayout:
    """The robot's side of a model's cameras, joints and actions.

    cameras:        those the robot has, by the model's names
    joints:         the robot's names [J], in the order of the model's state
    spaces:         action space of each expert of the model, joints by the robot's names
    expert:         the commanding one; other_experts: those that act besides
    ranges:         joint -> believable positions [rad or m], for joints that have limits
    limits:         what may be commanded
    unlimited:      joints of actions without position limits, those that turn freely left out
    """

    cameras: Mapping[str, CameraSettings]
    joints: tuple[str, ...]
    spaces: tuple[ActionSpace, ...]
    expert: int
    other_experts: tuple[int, ...]
    ranges: Mapping[str, tuple[float, float]]
    limits: Limits
    unlimited: tuple[str, ...]

    @property
    def space(self) -> ActionSpace:
        """Of the expert that commands."""
        return self.spaces[self.expert]

    def columns(self, expert: int) -> list[int]:
        """Place of each joint of an expert's actions among `joints`."""
        return [self.joints.index(name) for name in self.spaces[expert].joints]


def make_layout(
    settings: Settings, spec: ModelSpec, description: Mapping[str, Described] | None = None
) -> RobotLayout:
    """The robot's cameras, joints, action spaces and limits as this model needs them.

    description: the robot's URDF, for the bounds that no parameter sets; None: there is none

    Raises ParameterProblem for a camera, joint or expert that is missing or unknown to the model, an action
    joint that the description does not have, or an action that cannot be commanded or joined as set.
    """
    cameras = _find_cameras(settings.inputs.cameras, spec.cameras)
    _refuse_unknown("joints", {joint: ["name"] for joint in settings.inputs.joint_names}, spec.joints)
    names = {joint: settings.inputs.joint_names.get(joint) or joint for joint in spec.joints}
    joints = tuple(names[joint] for joint in spec.joints)
    if len(set(joints)) != len(joints):
        raise ParameterProblem(f"two joints have the same name: {', '.join(sorted(joints))}")
    _refuse_unknown("limits", settings.limits.by_joint, joints)
    expert, *others = _find_experts(settings.model.expert, settings.model.other_experts, spec)
    spaces = tuple(_rename(item.action_space, names) for item in spec.experts)
    _check_actions(settings, spaces[expert])
    acting = tuple(dict.fromkeys(name for at in (expert, *others) for name in spaces[at].joints))
    limits = {name: _find_limit(name, settings.limits, description, name in acting) for name in joints}
    margin = settings.inputs.range_margin
    bounded = {
        name: limit for name, limit in limits.items() if isfinite(limit.lower) or isfinite(limit.upper)
    }
    turning = {name for name, described in (description or {}).items() if described.kind == "continuous"}
    return RobotLayout(
        cameras=cameras,
        joints=joints,
        spaces=spaces,
        expert=expert,
        other_experts=tuple(others),
        ranges={name: (limit.lower - margin, limit.upper + margin) for name, limit in bounded.items()},
        limits=Limits(limits, settings.limits.mode),
        unlimited=tuple(name for name in acting if name not in bounded and name not in turning),
    )


def _find_cameras(given: Mapping[str, CameraSettings], known: Sequence[str]) -> dict[str, CameraSettings]:
    _refuse_unknown("cameras", {camera: ["topic"] for camera in given}, known)
    cameras = {name: given.get(name, CameraSettings()) for name in known}
    for name, camera in cameras.items():
        if not camera.topic and not camera.optional:
            raise ParameterProblem(
                f"parameter 'cameras.{name}.topic' is missing: the model sees {', '.join(known)}; "
                f"give the image topic, or set cameras.{name}.optional to act without it"
            )
    if all(camera.optional for camera in cameras.values()):
        raise ParameterProblem(f"every camera of {', '.join(known)} is optional; at least one must not be")
    topics = [camera.topic for camera in cameras.values() if camera.topic]
    if len(set(topics)) != len(topics):
        raise ParameterProblem(f"two cameras have the same topic: {', '.join(sorted(topics))}")
    return {name: camera for name, camera in cameras.items() if camera.topic}


def _find_experts(commanding: str, others: Sequence[str], spec: ModelSpec) -> list[int]:
    """Places of the commanding expert and the others among the model's."""
    known = [expert.name for expert in spec.experts]
    wanted = [commanding or known[0], *others]
    for place, name in enumerate(wanted):
        parameter = "other_experts" if place else "expert"
        if name not in known:
            raise ParameterProblem(
                f"parameter '{parameter}': the model has no action expert '{name}'; it has {', '.join(known)}"
            )
        if name in wanted[:place]:
            raise ParameterProblem(f"parameter '{parameter}' names '{name}', which acts already")
        if place and not TOPIC_NAME.fullmatch(name):
            raise ParameterProblem(f"parameter '{parameter}': '{name}' is no name for a topic")
    return [known.index(name) for name in wanted]


def _rename(space: ActionSpace, names: Mapping[str, str]) -> ActionSpace:
    """The action space with its joints by the robot's names."""
    return ActionSpace(
        tuple(
            replace(component, name=names[component.name]) if component.kind.is_joint else component
            for component in space.components
        )
    )


def _check_actions(settings: Settings, space: ActionSpace) -> None:
    if settings.commands_enabled and (problem := explain_uncommandable(space)):
        raise ParameterProblem(f"parameter 'command.enabled' is true, but {problem}")
    if problem := JoinRule(mode=settings.join.mode).explain_unjoinable(space):
        raise ParameterProblem(f"parameter 'join.mode' is '{settings.join.mode}', but {problem}")


def _refuse_unknown(prefix: str, given: Mapping[str, Iterable[str]], known: Sequence[str]) -> None:
    """given: item -> last words of its parameters"""
    for item, tails in given.items():
        if item not in known:
            noun = "camera" if prefix == "cameras" else "joint"
            raise ParameterProblem(
                f"parameter '{prefix}.{item}.{next(iter(tails))}': the model has no {noun} '{item}'; "
                f"it has {', '.join(known)}"
            )


def _find_limit(
    joint: str, settings: LimitSettings, description: Mapping[str, Described] | None, is_commanded: bool
) -> JointLimit:
    """Each bound from the parameters, else from the description."""
    given = settings.by_joint.get(joint, {})
    described = None if description is None else description.get(joint)
    if described is None and description is not None and is_commanded and {"lower", "upper"} - set(given):
        raise ParameterProblem(
            f"robot_description has no joint '{joint}' that moves, and limits.{joint}.lower and .upper "
            f"are not both set; it has {', '.join(description) or 'none'}"
        )
    if described is not None and described.problem and not is_commanded:
        described = None  # a joint that is only read needs no limits
    try:
        return merge_limit(joint, given, described)
    except DescriptionError as error:
        raise ParameterProblem(str(error)) from error
    except ValueError as error:
        raise ParameterProblem(f"parameters 'limits.{joint}.*': {error}") from error
