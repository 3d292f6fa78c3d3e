# SPDX-License-Identifier: Apache-2.0
"""The table of parameters: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from oxygen_ros.actions import ActionComponent, ActionSpace, ComponentKind, joint_space
from oxygen_ros.engine import TextKind, ticks_of_text
from oxygen_ros.models import ModelSpec
from oxygen_ros.models.interface import ExpertSpec
from oxygen_ros.node.layout import make_layout
from oxygen_ros.node.parameters import (
    FIXED,
    ParameterProblem,
    describe_table,
    explain_unknown,
    find_rows,
    rows_of_model,
)
from oxygen_ros.node.settings import make_settings
from oxygen_ros.robot.chunk import explain_uncommandable


@pytest.mark.parametrize(
    ("name", "value", "checked"),
    [
        ("period", 1, 1.0),
        ("period", 0.5, 0.5),
        ("torch_threads", 4, 4),
        ("adapters", None, []),
        ("adapters", ["a", "b"], ["a", "b"]),
        ("trigger", "images", "images"),
        ("cameras.left_eye.transport", "compressed", "compressed"),
        ("limits.arm.joint1.lower", -math.inf, -math.inf),
    ],
)
def test_good_values_are_taken(name: str, value: Any, checked: Any) -> None:
    result = find_rows({name: value})[name].check(value)
    assert result == checked
    assert type(result) is type(checked)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("period", "fast", "parameter 'period' is 'fast' (a string); it must be a number in 0.001 .. 60"),
        ("period", 0.0, "parameter 'period' is 0.0; it must be a number in 0.001 .. 60"),
        ("period", math.nan, "parameter 'period' is nan"),
        ("period", 2**60 + 1, "parameter 'period' is"),
        ("period", True, "(a bool)"),
        ("torch_threads", 1.0, "(a number); it must be an integer in 1 .. 256"),
        ("autostart", 1, "it must be true or false"),
        ("trigger", "perod", "one of period, images, chunk_end"),
        ("adapters", [1, 2], "a list of strings"),
        ("limits.joint1.velocity", -1.0, "a number in 0 .. inf"),
    ],
)
def test_bad_values_are_refused_with_the_cure(name: str, value: Any, words: str) -> None:
    row = find_rows({name: value})[name]
    with pytest.raises(ParameterProblem) as caught:
        row.check(value)
    assert words in str(caught.value)


def test_unknown_names_get_a_suggestion() -> None:
    assert (
        not {"perriod", "cameras.top.topics"} & find_rows({"perriod": 0.1, "cameras.top.topics": ""}).keys()
    )
    assert "did you mean 'period'?" in explain_unknown("perriod")


def test_every_row_is_in_the_manual_with_what_is_allowed() -> None:
    table = describe_table()
    assert all(f"| `{name}` |" in table for name in FIXED)
    assert all(row.description.endswith(".") for row in FIXED.values())
    assert all(row.check(row.default) == row.default for row in FIXED.values() if not row.required)


ARM = ExpertSpec("arm", joint_space(["b"]), horizon=4, width=2, step=0.1, denoise_steps=1)
SPEC = ModelSpec(
    family="toy", cameras=("top", "wrist"), image_size=(8, 8), joints=("a", "b"), experts=(ARM,),
    eos_ids=(0,), feedback=("subtask", "memory"),
)  # fmt: skip
CAMERAS = {"cameras.top.topic": "/top", "cameras.wrist.topic": "/wrist"}


@pytest.mark.parametrize("name", ["demo.yaml", "robot_template.yaml"])
def test_our_own_files_hold_only_good_parameters(name: str) -> None:
    path = Path(__file__).resolve().parents[2] / "config" / name
    ((_, content),) = yaml.safe_load(path.read_text()).items()
    settings = make_settings(dict(_flatten(content["ros__parameters"])))
    assert {kind.name for kind in settings.text.kinds} == {"memory", "narration", "answer"}


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_a_robot_is_described_in_its_own_names() -> None:
    values = {**CAMERAS, "joints.b.name": "wheel", "limits.wheel.lower": -1.0, "limits.wheel.upper": 2.0}
    layout = make_layout(make_settings(values), SPEC)
    assert [camera.topic for camera in layout.cameras.values()] == ["/top", "/wrist"]
    assert layout.joints == ("a", "wheel")
    assert layout.space == joint_space(["wheel"])
    assert layout.columns(0) == [1]
    assert layout.ranges == {"wheel": (-1.1, 2.1)}
    assert layout.limits.by_joint["wheel"].upper == 2.0
    assert layout.unlimited == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cameras.top.topic": ""}, "'cameras.top.topic' is missing: the model sees top, wrist"),
        ({"cameras.front.topic": "/front"}, "the model has no camera 'front'; it has top, wrist"),
        ({"cameras.top.optional": True, "cameras.wrist.optional": True}, "at least one must not be"),
        ({"cameras.top.topic": "/wrist"}, "same topic"),
        ({"limits.c.lower": 0.0}, "limits.c.lower': the model has no joint 'c'; it has a, b"),
        ({"limits.a.lower": 1.0, "limits.a.upper": 0.0}, "limits.a"),
        ({"joints.a.name": "b"}, "same name"),
        ({"text.answer.prompt": "Q: "}, "{question}"),
        ({"text.memory.stop": [""]}, "text.memory.stop"),
        ({"text.memory.every_n_ticks": 0}, "text.memory.on_instruction is false: it would never be asked"),
        ({"text.subtask.feed_prompt": True}, "text.subtask.enabled is false: there is none to feed"),
        ({"expert": "leg"}, "'expert': the model has no action expert 'leg'; it has arm"),
        ({"other_experts": ["arm"]}, "'other_experts' names 'arm', which acts already"),
        ({"periode": 1.0}, "'periode' is unknown; did you mean 'period'?"),
    ],
)
def test_clashes_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterProblem) as caught:
        make_layout(make_settings({**CAMERAS, **changes}), SPEC)
    assert words in str(caught.value)


def kinds_of(**changes: Any) -> dict[str, TextKind]:
    return {kind.name: kind for kind in make_settings(changes).text.kinds}


def test_the_memory_lag_follows_from_tokens_and_steps() -> None:
    memory = kinds_of(**{"text.memory.max_tokens": 30, "budget.steps": 4})["memory"]
    assert memory.feed_after == ticks_of_text(30, 4) + 1 == 9
    assert kinds_of(**{"text.memory.lag_ticks": 12})["memory"].feed_after == 12


def test_subtasks_are_fed_by_the_same_rule_where_they_are() -> None:
    on = {"text.subtask.enabled": True, "text.subtask.max_tokens": 9}
    assert kinds_of(**on)["subtask"].feed_after == 0
    fed = {**on, "text.subtask.feed_prompt": True}
    assert kinds_of(**fed)["subtask"].feed_after == ticks_of_text(9, 4) + 1 == 4
    assert kinds_of(**fed, **{"text.subtask.lag_ticks": 2})["subtask"].feed_after == 2


def test_only_kinds_that_the_prompt_has_a_place_for_are_fed_back() -> None:
    """By default a memory is, where it can be; what was asked for by name is refused by name."""
    deaf = replace(SPEC, feedback=())
    (memory, *_) = make_settings({}).text.kinds_of(deaf)
    assert (memory.name, memory.feed_after) == ("memory", 0)
    hazard = {"text.hazard.prompt": "Hazard: ", "text.hazard.feed_prompt": True}
    for spec, given in ((deaf, {"text.memory.feed_prompt": True}), (SPEC, hazard)):
        with pytest.raises(ParameterProblem, match=r"feed_prompt' is true, but the prompt of this model"):
            make_settings(given).text.kinds_of(spec)
    assert [kind.feed_after > 0 for kind in make_settings(hazard).text.kinds_of(
        replace(SPEC, feedback=("memory", "hazard")))] == [True, False, False, True]  # fmt: skip


def test_a_new_instruction_ends_what_would_be_acted_on_and_keeps_what_people_read() -> None:
    on = {"text.subtask.enabled": True}

    def cancelled(**changes: Any) -> list[str]:
        return [name for name, kind in kinds_of(**on, **changes).items() if kind.cancel_on_instruction]

    assert cancelled() == ["memory", "subtask"]
    changed = {"text.memory.when_instructed": "keep", "text.answer.when_instructed": "cancel"}
    assert cancelled(**changed) == ["subtask", "answer"]


def test_a_kind_may_be_asked_at_new_instructions_only() -> None:
    only = {"text.narration.every_n_ticks": 0, "text.narration.on_instruction": True}
    narration = kinds_of(**only)["narration"]
    assert [narration.is_due(1, True), narration.is_due(1), narration.is_due(11)] == [True, False, False]


def test_a_kind_of_ones_own_needs_no_more_than_a_prompt() -> None:
    hazard = kinds_of(**{"text.hazard.prompt": "Hazard: "})["hazard"]
    assert (hazard.task.prompt, hazard.every_n_ticks, hazard.is_question) == ("Hazard: ", 10, False)
    why = kinds_of(**{"text.why.prompt": "Why {question}", "text.why.at_once": 2})["why"]
    assert (why.is_question, why.at_once, why.every_n_ticks) == (True, 2, 0)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"text.hazard.enabled": True}, "A text kind of your own needs text.hazard.prompt"),
        ({"text.naration.max_tokens": 8}, "did you mean 'text.narration.max_tokens'?"),
        ({"text.hazard.prompt": "x", "text.hazard.max_token": 8}, "did you mean 'text.hazard.max_tokens'?"),
        ({"text.answer.every_n_ticks": 8}, "has no use: text.answer.prompt holds {question}"),
        ({"text.memory.at_once": 2}, "has no use: text.memory.prompt does not hold {question}"),
        ({"text.hazard": "Hazard: "}, "there are. A text kind of your own needs text.hazard.prompt"),
        ({"text.tick.prompt": "x"}, "cannot have the topic ~/tick"),
        ({"text.my kind.prompt": "x"}, "cannot have the topic ~/my kind"),
    ],
)
def test_a_kind_that_cannot_be_is_named(given: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterProblem) as caught:
        make_settings(given)
    assert words in str(caught.value)


def test_actions_that_no_trajectory_can_command_are_refused_by_name() -> None:
    tool = ActionSpace((ActionComponent("tool", ComponentKind.ROTATION, "1", "base", "quaternion_xyzw"),))
    spec = replace(SPEC, experts=(replace(ARM, name="tool", action_space=tool, width=4), ARM))
    layout = make_layout(make_settings(CAMERAS), spec)
    assert "'tool' is a rotation" in explain_uncommandable(layout.space)
    for given, words in (
        ({"command.enabled": True}, "'command.enabled' is true, but .*'tool' is a rotation"),
        ({"join.mode": "rtc"}, "'join.mode' is 'rtc', but .*'tool' is a rotation"),
    ):
        with pytest.raises(ParameterProblem, match=words):
            make_layout(make_settings({**CAMERAS, **given}), spec)
    # The other expert can be, and then the first one acts besides.
    arm = {"expert": "arm", "other_experts": ["tool"], "command.enabled": True, "join.mode": "rtc"}
    assert explain_uncommandable(make_layout(make_settings({**CAMERAS, **arm}), spec).space) == ""


def test_a_models_rows_carry_its_names() -> None:
    names = [row.name for row in rows_of_model(["top"], ["a"])]
    assert "cameras.top.topic" in names
    assert "limits.a.velocity" in names
    assert all("<" not in name for name in names)
