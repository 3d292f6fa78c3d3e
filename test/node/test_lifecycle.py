# SPDX-License-Identifier: Apache-2.0
"""Transitions: in order, refused with a reason, tried again after the cure; the node outlives them all."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lifecycle_msgs.msg import State
from node_lab import PARAMETERS, Robot
from rcl_interfaces.msg import ParameterType
from rcl_interfaces.srv import DescribeParameters, GetParameters

from oxygen_ros.node.parameters import FIXED


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder of our own, to break and to mend."""
    return tmp_path_factory.mktemp("models") / "demo"


@pytest.fixture(scope="module", autouse=True)
def node(start_node: Callable[..., Any], robot: Robot, model: Path) -> Any:
    """Started with everything wrong that a parameter file can hold."""
    process = start_node(
        {"autostart": False, "model": str(model), "period": "fast", "perriod": 0.1, "max_skew": 1,
         "adapters": [], "text.memory.max_tokens": 60, "text.memory.every_n_ticks": 2,
         "cameras.wrist.topic": None}
    )  # fmt: skip
    robot.wait_for_state("unconfigured")
    return process


def _fails_with(robot: Robot, words: str) -> None:
    """Configure fails, `oxygen: model` has the reason, and the node is there to try again."""
    assert not robot.change_state("configure")
    robot.wait_for_status("model", words, level="error")
    assert robot.state() == "unconfigured"


def test_one_error_after_the_other_is_named_and_cured(robot: Robot, node: Any, model: Path) -> None:
    _fails_with(robot, "parameter 'period' is 'fast' (a string); it must be a number")
    _fails_with(robot, "parameter 'perriod' is unknown; did you mean 'period'?")
    node.wait_for_line("configure failed: .*perriod")
    assert len([line for line in node.output.splitlines() if "perriod" in line]) == 2  # of two tries
    assert "a number in 0.001 .. 60" in robot.set_parameter(
        "period", 100.0
    ) or "range" in robot.set_parameter("period", 100.0)
    assert robot.set_parameter("period", 1) == ""  # an exact integer will do
    assert robot.set_parameter("perriod", None) == ""
    _fails_with(robot, str(model))
    shutil.copytree(PARAMETERS["model"], model)
    weights = model / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    _fails_with(robot, "model.safetensors")
    weights.write_bytes(whole)
    _fails_with(robot, "'cameras.wrist.topic' is missing")
    # The model said which cameras there are: now the parameter exists.
    assert robot.set_parameter("cameras.wrist.topic", "/camera/wrist/image_raw") == ""
    assert robot.set_parameter("device", "gpu") == ""
    _fails_with(robot, "parameter 'device': device \"gpu\" is no torch device")
    assert robot.set_parameter("device", "cpu") == ""
    assert robot.set_parameter("period", 1.9) == ""
    _fails_with(robot, "a chunk covers 16 x 0.1 = 1.6 s")
    assert robot.set_parameter("period", 0.1) == ""
    assert robot.set_parameter("cameras.top.topic", "no topic!") == ""
    _fails_with(robot, "'cameras.top.topic' is 'no topic!'")
    assert robot.set_parameter("cameras.top.topic", "/camera/top/image_raw") == ""
    assert robot.change_state("configure")
    robot.wait_for_status("model", level="ok")
    assert robot.state() == "inactive"


def test_inactive_publishes_nothing_active_does(robot: Robot) -> None:
    robot.wait_for_status("control", "inactive")
    assert robot.now("/oxygen/action_chunk") == 0
    assert robot.change_state("activate")
    assert robot.wait_for("/oxygen/action_chunk").tick == 1


def test_transitions_that_do_not_fit_are_refused(robot: Robot, node: Any) -> None:
    assert not robot.change_state("configure")
    assert not robot.change_state("fly")
    node.wait_for_line("no transition 'fly' from active")
    assert robot.state() == "active"
    robot.wait_for_tick()


def test_deactivate_ends_texts_with_a_reason_and_activate_begins_anew(robot: Robot) -> None:
    robot.wait_for("/oxygen/tick", lambda m: m.requests_live > 0)
    before = robot.now("/oxygen/text")
    assert robot.change_state("deactivate")
    robot.wait_for("/oxygen/text", lambda m: m.finish_reason == "deactivated", after=before)
    chunks = robot.now("/oxygen/action_chunk")
    # The sentinel: the diagnostics say inactive twice, and no chunk came meanwhile.
    for _ in range(2):
        robot.wait_for_status("control", "inactive")
    assert robot.now("/oxygen/action_chunk") == chunks
    assert robot.change_state("activate")
    assert robot.wait_for("/oxygen/action_chunk", after=chunks).tick == 1


def test_cleanup_reads_parameters_again(robot: Robot) -> None:
    assert robot.change_state("deactivate")
    assert robot.change_state("cleanup")
    assert robot.state() == "unconfigured"
    assert robot.set_parameter("mode", "isolated") == ""
    assert robot.change_state("configure")
    assert robot.change_state("activate")
    before = robot.now("/oxygen/tick")
    tick = robot.wait_for("/oxygen/tick", lambda m: m.tick >= 3, after=before)
    assert tick.mode == "isolated"
    assert tick.prefills > tick.tick


def test_every_parameter_can_be_read(robot: Robot) -> None:
    names = [*FIXED, "cameras.top.topic", "limits.joint1.lower"]
    answer = robot.call(GetParameters, "/oxygen/get_parameters", GetParameters.Request(names=names))
    kinds = {name: value.type for name, value in zip(names, answer.values, strict=True)}
    assert kinds["adapters"] == ParameterType.PARAMETER_STRING_ARRAY
    assert ParameterType.PARAMETER_NOT_SET not in kinds.values()


def test_parameters_describe_themselves(robot: Robot) -> None:
    names = ["period", "autostart", "trigger", "cameras.top.topic"]
    answer = robot.call(
        DescribeParameters, "/oxygen/describe_parameters", DescribeParameters.Request(names=names)
    )
    period, autostart, trigger, camera = answer.descriptors
    assert "Seconds between ticks" in period.description
    assert period.floating_point_range[0].to_value == 60.0
    assert autostart.read_only
    assert "chunk_end" in trigger.additional_constraints
    assert camera.description


def test_shutdown_is_the_end(robot: Robot, node: Any) -> None:
    assert robot.change_state("shutdown")
    assert robot.state() == "finalized"
    assert State.PRIMARY_STATE_FINALIZED == 4
    node.stop()
