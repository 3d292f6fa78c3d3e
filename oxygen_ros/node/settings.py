# SPDX-License-Identifier: Apache-2.0
"""Checked parameter values as one typed object, and what they must have in common with a model.

Here lives no rclpy and no default: those are in the table of parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

from oxygen_ros.engine import Budget, Recurring, TextTask, ticks_of_text
from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.node.parameters import KINDS, ParameterProblem
from oxygen_ros.robot.description import Described, DescriptionError, merge_limit
from oxygen_ros.robot.limits import JointLimit, Limits
from oxygen_ros.robot.overlap import JoinRule


@dataclass(frozen=True, slots=True)
class Camera:
    """One camera stream. name: as the model names it; topic: "" when the robot does not have it."""

    name: str
    topic: str
    transport: str
    optional: bool


@dataclass(frozen=True, slots=True)
class Robot:
    """The robot's side of a model's cameras and joints.

    joints:         the robot's names [J], in the order of the model's state
    action_joints:  the robot's names [A], in the order of the model's actions
    ranges:         joint -> believable positions [rad or m], for joints that have limits
    limits:         what may be commanded
    unlimited:      action joints without position limits, those that turn freely left out
    """

    cameras: tuple[Camera, ...]
    joints: tuple[str, ...]
    action_joints: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]
    limits: Limits
    unlimited: tuple[str, ...]

    @property
    def subscribed(self) -> tuple[Camera, ...]:
        return tuple(camera for camera in self.cameras if camera.topic)


class Settings:
    """Values by parameter name, and what is made of them."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        """values: checked by parameters.Row.check. Raises ParameterProblem where they clash."""
        self._values = dict(values)
        self.budget = Budget(
            steps=self["budget.steps"],
            rows=self["budget.max_rows"],
            mode=self["budget.mode"],
            margin=self["budget.margin"],
        )
        self.tasks = {kind: self._make_task(kind) for kind in KINDS if self[f"text.{kind}.enabled"]}
        self.recurring = [self._make_recurring(task) for kind, task in self.tasks.items() if kind != "answer"]
        if self["subtask.feed_prompt"] and "subtask" not in self.tasks:
            raise ParameterProblem(
                "parameter 'subtask.feed_prompt' is true, but text.subtask.enabled is false: there is none "
                "to feed"
            )
        answer = self.tasks.get("answer")
        if answer is not None and "{question}" not in answer.prompt:
            raise ParameterProblem(
                f"parameter 'text.answer.prompt' is {answer.prompt!r}; it must hold {{question}}, "
                "where the question goes"
            )

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    @property
    def memory_lag(self) -> int:
        """Ticks from asking a memory to the prompt that holds it (rule 9)."""
        return self._find_lag("memory")

    @property
    def subtask_lag(self) -> int | None:
        """The same of subtasks; None when they are not fed."""
        return self._find_lag("subtask") if self["subtask.feed_prompt"] else None

    @property
    def cancelled_kinds(self) -> tuple[str, ...]:
        """Kinds whose texts under way a new instruction ends."""
        return tuple(kind for kind in self.tasks if self[f"text.{kind}.when_instructed"] == "cancel")

    def _find_lag(self, kind: str) -> int:
        task = self.tasks.get(kind)
        if self[f"{kind}.lag_ticks"] > 0 or task is None:
            return max(int(self[f"{kind}.lag_ticks"]), 1)
        return ticks_of_text(task.max_tokens, self.budget.steps) + 1

    def find_deadline(self, spec: ModelSpec) -> float:
        """Deadline offered for chunks [s]: twice the time between two of them."""
        between = spec.horizon * spec.step if self["trigger"] == "chunk_end" else self["period"]
        return float(self["chunk_deadline"] or 2 * between)

    def make_join_rule(self, spec: ModelSpec, latency_s: float) -> JoinRule:
        """How chunks are joined.

        latency_s: of a chunk, as warm-up measured it; the delay where none is set
        """
        delay = self["join.delay_steps"]
        overlap = self["join.overlap"]
        return JoinRule(
            mode=self["join.mode"],
            # A step under way when the chunk comes counts as executed.
            delay=min(ceil(latency_s / spec.step), spec.horizon) if delay < 0 else delay,
            overlap=max(round(overlap / spec.step), 1) if overlap > 0 else None,
            schedule=self["join.schedule"],
            max_weight=self["join.max_weight"] or float(spec.denoise_steps),
            tolerance=self["join.tolerance"],
        )

    def describe_robot(self, spec: ModelSpec, description: Mapping[str, Described] | None = None) -> Robot:
        """The robot's cameras, joints and limits as this model needs them.

        description: what the robot's URDF says, for the bounds that no parameter sets; None: there is none

        Raises ParameterProblem that names a camera or joint which is missing or unknown to the model, or an
        action joint that the description does not have.
        """
        self._refuse_strangers("cameras", spec.cameras)
        cameras = tuple(self._find_camera(name, spec) for name in spec.cameras)
        if not any(not camera.optional for camera in cameras):
            raise ParameterProblem(
                f"every camera of {', '.join(spec.cameras)} is optional; at least one must not be"
            )
        topics = [camera.topic for camera in cameras if camera.topic]
        if len(set(topics)) != len(topics):
            raise ParameterProblem(f"two cameras have the same topic: {', '.join(sorted(topics))}")
        self._refuse_strangers("joints", spec.joints)
        names = {joint: self._values.get(f"joints.{joint}.name") or joint for joint in spec.joints}
        joints = tuple(names[joint] for joint in spec.joints)
        if len(set(joints)) != len(joints):
            raise ParameterProblem(f"two joints have the same name: {', '.join(sorted(joints))}")
        self._refuse_strangers("limits", joints)
        action_joints = tuple(names[joint] for joint in spec.action_joints)
        limits = {name: self._find_limit(name, description, name in action_joints) for name in joints}
        margin = self["joints.range_margin"]
        bounded = {name: limit for name, limit in limits.items() if abs(limit.lower) != float("inf")
                   or abs(limit.upper) != float("inf")}  # fmt: skip
        turning = {name for name, described in (description or {}).items() if described.turns_freely}
        return Robot(
            cameras=cameras,
            joints=joints,
            action_joints=action_joints,
            ranges={name: (limit.lower - margin, limit.upper + margin) for name, limit in bounded.items()},
            limits=Limits(limits, self["limits.mode"]),
            unlimited=tuple(name for name in action_joints if name not in bounded and name not in turning),
        )

    def _make_recurring(self, task: TextTask) -> Recurring:
        name = f"text.{task.kind}.every_n_ticks"
        is_on_instruction = self[f"text.{task.kind}.on_instruction"]
        if self[name] == 0 and not is_on_instruction:
            raise ParameterProblem(
                f"parameter '{name}' is 0 and text.{task.kind}.on_instruction is false: it would never be "
                f"asked; set one of them, or text.{task.kind}.enabled to false"
            )
        return Recurring(task, self[name], is_on_instruction)

    def _make_task(self, kind: str) -> TextTask:
        def value(name: str) -> Any:
            return self[f"text.{kind}.{name}"]

        task = TextTask(
            kind=kind,
            prompt=value("prompt"),
            max_tokens=value("max_tokens"),
            max_age=value("max_age"),
            temperature=value("temperature"),
            top_p=value("top_p"),
            seed=self["seed"],
            adapter=value("adapter"),
        )
        try:
            return replace(task, stop=tuple(value("stop")))
        except ValueError as error:
            raise ParameterProblem(f"parameter 'text.{kind}.stop': {error}") from error

    def _refuse_strangers(self, prefix: str, known: Sequence[str]) -> None:
        for name in self._values:
            head, _, rest = name.partition(".")
            if head == prefix and "." in rest and rest.rsplit(".", 1)[0] not in known:
                word = rest.rsplit(".", 1)[0]
                noun = "camera" if prefix == "cameras" else "joint"
                raise ParameterProblem(
                    f"parameter '{name}': the model has no {noun} '{word}'; it has {', '.join(known)}"
                )

    def _find_camera(self, name: str, spec: ModelSpec) -> Camera:
        topic = self._values.get(f"cameras.{name}.topic", "")
        optional = self._values.get(f"cameras.{name}.optional", False)
        if not topic and not optional:
            raise ParameterProblem(
                f"parameter 'cameras.{name}.topic' is missing: the model sees {', '.join(spec.cameras)}; "
                f"give the image topic, or set cameras.{name}.optional to act without it"
            )
        return Camera(name, topic, self._values.get(f"cameras.{name}.transport", "raw"), optional)

    def _find_limit(
        self, joint: str, description: Mapping[str, Described] | None, is_commanded: bool
    ) -> JointLimit:
        """What parameters set comes first, bound by bound; then the description's."""
        bounds = ("lower", "upper", "velocity", "step")
        set_ones = {name: self._values.get(f"limits.{joint}.{name}") for name in bounds}
        given = {name: value for name, value in set_ones.items() if value is not None}
        described = None if description is None else description.get(joint)
        if described is None and description is not None and is_commanded and {"lower", "upper"} - set(given):
            raise ParameterProblem(
                f"robot_description has no joint '{joint}' that moves, and limits.{joint}.lower and .upper "
                f"are not both set; it has {', '.join(description) or 'none'}"
            )
        if described is not None and described.problem and not is_commanded:
            described = None  # what is only read needs no limits
        try:
            return merge_limit(joint, given, described)
        except DescriptionError as error:
            raise ParameterProblem(str(error)) from error
        except ValueError as error:
            raise ParameterProblem(f"parameters 'limits.{joint}.*': {error}") from error
