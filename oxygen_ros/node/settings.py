# SPDX-License-Identifier: Apache-2.0
"""Parameter values as typed settings, made once. No ROS.

Defaults are in the table of parameters. layout.py matches the settings with a model.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from math import ceil
from typing import Any, Literal

from oxygen_ros.engine import QUESTION, STANDARD_KINDS, Budget, TextKind, TextTask, ticks_of_text
from oxygen_ros.models.interface import ExpertSpec, ModelSpec
from oxygen_ros.node.parameters import ParameterProblem, explain_unknown, find_rows
from oxygen_ros.robot.joining import JoinRule
from oxygen_ros.robot.joining.rule import Mode, Schedule

# The name of a text kind, or of an expert beside the commanding one, becomes a topic of the node.
TOPIC_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_TAKEN = (
    "action_chunk", "instruction", "joint_trajectory", "markers", "preview", "question", "text", "tick",
    "transition_event",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """Which model, and how it is loaded. denoise_steps: 0: as it was made; expert: "" for the first."""

    folder: str
    device: str
    dtype: str
    denoise_steps: int
    adapters: tuple[str, ...]
    expert: str
    other_experts: tuple[str, ...]
    torch_threads: int
    warmup_ticks: int


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How text is executed. debug: the slot accounting is checked."""

    mode: str
    when_full: str
    draft_tokens: int
    seed: int
    debug: bool


@dataclass(frozen=True, slots=True)
class CameraSettings:
    """One camera. topic: "" when the robot does not have it; transport: "raw" | "compressed"."""

    topic: str = ""
    transport: str = "raw"
    optional: bool = False


@dataclass(frozen=True, slots=True)
class InputSettings:
    """What belongs together. max_skew, max_age: seconds; range_margin: rad or m beyond a joint's limits.

    cameras, joint_names: by the model's names; joint_names: the robot's, "" for the same
    """

    max_skew: float
    max_age: float
    range_margin: float
    cameras: Mapping[str, CameraSettings]
    joint_names: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class TextSettings:
    """What is asked of the model.

    names:   of all kinds there are; kinds: those that are asked
    wished:  kinds that are fed back because a parameter was set, not by default
    """

    names: tuple[str, ...]
    kinds: tuple[TextKind, ...]
    wished: frozenset[str]
    question_max_chars: int

    def kinds_of(self, spec: ModelSpec) -> tuple[TextKind, ...]:
        """The kinds as this model can have them: fed back only where its prompt has a place for them.

        Raises ParameterProblem where that was asked for by name.
        """
        for kind in self.kinds:
            if kind.name in self.wished and kind.name not in spec.feedback:
                raise ParameterProblem(
                    f"parameter 'text.{kind.name}.feed_prompt' is true, but the prompt of this model has "
                    f"no place for it; it has one for {', '.join(spec.feedback) or 'no kind'}"
                )
        return tuple(
            kind if kind.name in spec.feedback else replace(kind, feed_after=0) for kind in self.kinds
        )


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    """When something counts as wrong: seconds on the steady clock, and ticks in a row. late, give_up and
    failed_ticks of 0: after a period, never, never."""

    silence: float
    late: float
    stuck: float
    give_up: float
    failed_ticks: int


@dataclass(frozen=True, slots=True)
class LimitSettings:
    """by_joint: robot's joint name -> "lower", "upper", "velocity", "step", those that were set."""

    mode: Literal["clamp", "refuse"]
    use_robot_description: bool
    description_wait: float
    by_joint: Mapping[str, Mapping[str, float]]


@dataclass(frozen=True, slots=True)
class JoinSettings:
    """How chunks are joined. delay_steps of -1: from the latency; overlap [s] of 0: all that is left;
    max_weight of 0: from the model."""

    mode: Mode
    delay_steps: int
    overlap: float
    schedule: Schedule
    max_weight: float
    tolerance: float

    def make_rule(self, expert: ExpertSpec, latency_s: float) -> JoinRule:
        """latency_s: of a chunk, as the warm-up measured it; the delay where none is set"""
        # A step under way when the chunk comes counts as executed.
        measured = min(ceil(latency_s / expert.step), expert.horizon)
        delay = measured if self.delay_steps < 0 else self.delay_steps
        overlap = max(round(self.overlap / expert.step), 1) if self.overlap > 0 else None
        weight = self.max_weight or float(expert.denoise_steps)
        return JoinRule(self.mode, delay, overlap, self.schedule, weight, self.tolerance)


@dataclass(frozen=True, slots=True)
class MarkerSettings:
    """The text in RViz. height, size: meters."""

    frame: str
    height: float
    size: float


@dataclass(frozen=True, slots=True)
class Settings:
    """All parameters read at configure. trigger: "period" | "images" | "chunk_end"; period, chunk_deadline:
    seconds."""

    model: ModelSettings
    engine: EngineSettings
    inputs: InputSettings
    text: TextSettings
    budget: Budget
    watchdog: WatchdogSettings
    limits: LimitSettings
    join: JoinSettings
    markers: MarkerSettings
    trigger: str
    period: float
    chunk_deadline: float
    instruction: str
    commands_enabled: bool


def make_settings(given: Mapping[str, Any]) -> Settings:
    """Settings from the parameters that were set, the table's defaults for the rest.

    Raises ParameterProblem for a value that is wrong or unknown, or where values contradict each other.
    """
    rows = find_rows(given)
    for name in given:
        if name not in rows:
            raise ParameterProblem(explain_unknown(name, rows))
    v = {name: row.check(given.get(name, row.default)) for name, row in rows.items()}
    budget = Budget(v["budget.steps"], v["budget.max_rows"], v["budget.mode"], v["budget.margin"])
    cameras = {name: CameraSettings(**group) for name, group in _group(v, "cameras").items()}
    joints = {name: group["name"] for name, group in _group(v, "joints").items()}
    margin = v["joints.range_margin"]
    inputs = InputSettings(v["max_skew"], v["max_age"], margin, cameras, joints)
    groups: dict[str, Any] = {
        "model": _fill(ModelSettings, v, folder=v["model"]),
        "engine": _fill(EngineSettings, v),
        "inputs": inputs,
        "text": _make_text(v, given, budget),
        "budget": budget,
        "watchdog": _fill(WatchdogSettings, v, "watchdog."),
        "limits": _fill(LimitSettings, v, "limits.", by_joint=_group(v, "limits")),
        "join": _fill(JoinSettings, v, "join."),
        "markers": _fill(MarkerSettings, v, "markers."),
    }
    settings: Settings = _fill(Settings, v, commands_enabled=v["command.enabled"], **groups)
    return settings


def _fill(group: Any, values: Mapping[str, Any], prefix: str = "", /, **more: Any) -> Any:
    """A group of settings: `more`, and the other fields from the parameters `prefix` + field."""
    for field in fields(group):
        if field.name not in more:
            value = values[prefix + field.name]
            more[field.name] = tuple(value) if isinstance(value, list) else value
    return group(**more)


def _group(values: Mapping[str, Any], prefix: str) -> dict[str, dict[str, Any]]:
    """Parameters named <prefix>.<item>.<tail> as item -> tail -> value."""
    found: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        head, _, rest = name.partition(".")
        item, _, tail = rest.rpartition(".")
        if head == prefix and item:
            found.setdefault(item, {})[tail] = value
    return found


def _make_text(values: Mapping[str, Any], given: Mapping[str, Any], budget: Budget) -> TextSettings:
    groups = _group(values, "text")
    wished = frozenset(kind for kind in groups if given.get(f"text.{kind}.feed_prompt"))
    for kind in wished:
        if not groups[kind]["enabled"]:
            raise ParameterProblem(
                f"parameter 'text.{kind}.feed_prompt' is true, but text.{kind}.enabled is false: there is "
                "none to feed"
            )
    on = {kind: group for kind, group in groups.items() if group["enabled"]}
    kinds = tuple(_make_kind(kind, group, values["seed"], budget) for kind, group in on.items())
    return TextSettings(tuple(groups), kinds, wished, values["question_max_chars"])


def _make_kind(kind: str, group: Mapping[str, Any], seed: int, budget: Budget) -> TextKind:
    """group: the kind's parameters by their last word"""
    if kind not in STANDARD_KINDS and (kind in _TAKEN or not TOPIC_NAME.fullmatch(kind)):
        raise ParameterProblem(
            f"parameter 'text.{kind}.prompt': a text kind cannot have the topic ~/{kind}; choose a name of "
            f"letters, digits and _ that is none of {', '.join(_TAKEN)}"
        )
    every, on_instruction = group.get("every_n_ticks", 0), group.get("on_instruction", False)
    if not (QUESTION in group["prompt"] or every or on_instruction):
        raise ParameterProblem(
            f"parameter 'text.{kind}.every_n_ticks' is 0 and text.{kind}.on_instruction is false: it would "
            f"never be asked; set one of them, put {QUESTION} into text.{kind}.prompt for a kind that "
            f"questions ask, or set text.{kind}.enabled to false"
        )
    try:
        task: TextTask = _fill(TextTask, group, kind=kind, words={}, seed=seed)
    except ValueError as error:
        raise ParameterProblem(f"parameter 'text.{kind}.stop': {error}") from error
    lag = group.get("lag_ticks", 0) or ticks_of_text(task.max_tokens, budget.steps) + 1
    return TextKind(
        task,
        every,
        on_instruction,
        feed_after=lag if group.get("feed_prompt", False) else 0,
        cancel_on_instruction=group["when_instructed"] == "cancel",
        at_once=group.get("at_once", 1),
    )
