# SPDX-License-Identifier: Apache-2.0
"""The table of parameters: what is accepted, what is refused, and in which words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from oxygen_ros.engine import ticks_of_text
from oxygen_ros.models import ModelSpec
from oxygen_ros.node.parameters import (
    FIXED,
    ParameterProblem,
    describe_table,
    explain_unknown,
    find_row,
    rows_of_model,
)
from oxygen_ros.node.settings import Settings

DEFAULTS = {name: row.default for name, row in FIXED.items()}


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
    row = find_row(name)
    assert row is not None
    result = row.check(value)
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
    row = find_row(name)
    assert row is not None
    with pytest.raises(ParameterProblem) as caught:
        row.check(value)
    assert words in str(caught.value)


def test_unknown_names_get_a_suggestion() -> None:
    assert find_row("perriod") is None
    assert find_row("cameras.top.topics") is None
    assert "did you mean 'period'?" in explain_unknown("perriod")


def test_every_row_is_in_the_manual_with_what_is_allowed() -> None:
    table = describe_table()
    assert all(f"| `{name}` |" in table for name in FIXED)
    assert all(row.description.endswith(".") for row in FIXED.values())
    assert all(row.check(row.default) == row.default for row in FIXED.values() if not row.required)


def _spec() -> ModelSpec:
    return ModelSpec(
        family="toy", cameras=("top", "wrist"), image_size=(8, 8), joints=("a", "b"), action_joints=("b",),
        representation="position", horizon=4, action_dim=2, step=0.1, denoise_steps=1, vocabulary=8,
        eos_ids=(0,), max_prefix=4, cache_bytes_per_token=1,
    )  # fmt: skip


CAMERAS = {"cameras.top.topic": "/top", "cameras.wrist.topic": "/wrist"}


@pytest.mark.parametrize("name", ["demo.yaml", "robot_template.yaml"])
def test_our_own_files_hold_only_good_parameters(name: str) -> None:
    path = Path(__file__).resolve().parents[2] / "config" / name
    ((_, content),) = yaml.safe_load(path.read_text()).items()
    values = dict(_flatten(content["ros__parameters"]))
    for parameter, value in values.items():
        row = find_row(parameter)
        assert row is not None, explain_unknown(parameter)
        values[parameter] = row.check(value)
    settings = Settings({**DEFAULTS, **values})
    assert set(settings.tasks) == {"memory", "narration", "answer"}


def _flatten(tree: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def test_a_robot_is_described_in_its_own_names() -> None:
    values = {
        **DEFAULTS,
        **CAMERAS,
        "joints.b.name": "wheel",
        "limits.wheel.lower": -1.0,
        "limits.wheel.upper": 2.0,
    }
    robot = Settings(values).describe_robot(_spec())
    assert [camera.topic for camera in robot.cameras] == ["/top", "/wrist"]
    assert robot.joints == ("a", "wheel")
    assert robot.action_joints == ("wheel",)
    assert robot.ranges == {"wheel": (-1.1, 2.1)}
    assert robot.limits.by_joint["wheel"].upper == 2.0
    assert robot.unlimited == ()


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
        ({"subtask.feed_prompt": True}, "text.subtask.enabled is false: there is none to feed"),
    ],
)
def test_clashes_are_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ParameterProblem) as caught:
        Settings({**DEFAULTS, **CAMERAS, **changes}).describe_robot(_spec())
    assert words in str(caught.value)


def test_the_memory_lag_follows_from_tokens_and_steps() -> None:
    settings = Settings({**DEFAULTS, "text.memory.max_tokens": 30, "budget.steps": 4})
    assert settings.memory_lag == ticks_of_text(30, 4) + 1 == 9
    assert Settings({**DEFAULTS, "memory.lag_ticks": 12}).memory_lag == 12


def test_subtasks_are_fed_by_the_same_rule_where_they_are() -> None:
    on = {**DEFAULTS, "text.subtask.enabled": True, "text.subtask.max_tokens": 9}
    assert Settings(on).subtask_lag is None
    assert Settings({**on, "subtask.feed_prompt": True}).subtask_lag == ticks_of_text(9, 4) + 1 == 4
    assert Settings({**on, "subtask.feed_prompt": True, "subtask.lag_ticks": 2}).subtask_lag == 2


def test_a_new_instruction_ends_what_would_be_acted_on_and_keeps_what_people_read() -> None:
    on = {**DEFAULTS, "text.subtask.enabled": True}
    assert Settings(on).cancelled_kinds == ("memory", "subtask")
    changed = {"text.memory.when_instructed": "keep", "text.answer.when_instructed": "cancel"}
    assert Settings({**on, **changed}).cancelled_kinds == ("subtask", "answer")


def test_a_kind_may_be_asked_at_new_instructions_only() -> None:
    only = {"text.narration.every_n_ticks": 0, "text.narration.on_instruction": True}
    (narration,) = [r for r in Settings({**DEFAULTS, **only}).recurring if r.task.kind == "narration"]
    assert [narration.is_due(1, True), narration.is_due(1), narration.is_due(11)] == [True, False, False]


def test_a_models_rows_carry_its_names() -> None:
    names = [row.name for row in rows_of_model(["top"], ["a"])]
    assert "cameras.top.topic" in names
    assert "limits.a.velocity" in names
    assert all("<" not in name for name in names)
