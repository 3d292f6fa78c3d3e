# SPDX-License-Identifier: Apache-2.0
"""Limits from robot_description over real DDS: heard when latched, named when absent, after parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from node_lab import JOINTS, LATCHED, Robot
from std_msgs.msg import String

ASKED = {
    **{f"limits.{joint}.{bound}": None for joint in JOINTS for bound in ("lower", "upper")},
    "limits.use_robot_description": True,
}


def urdf(upper: float) -> str:
    """Every joint revolute within [-1, upper] at 2 rad/s."""
    limit = f'<limit lower="-1" upper="{upper}" effort="1" velocity="2"/>'
    return (
        "<robot>" + "".join(f'<joint name="{j}" type="revolute">{limit}</joint>' for j in JOINTS) + "</robot>"
    )


@pytest.fixture(scope="module")
def describe(robot: Robot) -> Any:
    """What robot_state_publisher is for the node."""
    return robot.node.create_publisher(String, "/robot_description", LATCHED)


@pytest.fixture(scope="module")
def node(start_node: Callable[..., Any], robot: Robot) -> Any:
    """Started before anybody describes the robot; joint2 is to go far beyond."""
    process = start_node(
        {**ASKED, "autostart": False, "limits.description_wait": 1.0, "limits.joint2.upper": 0.25},
        toy={"jump_ticks": list(range(1, 2000))},
    )
    robot.wait_for_state("unconfigured")
    return process


def test_without_one_configure_fails_by_name(robot: Robot, node: Any) -> None:
    assert not robot.change_state("configure")
    status = robot.wait_for_status("model", "no robot description came on /robot_description", level="error")
    assert "in 1 s" in status.message
    assert robot.state() == "unconfigured"


def test_one_that_is_no_urdf_is_refused(robot: Robot, node: Any, describe: Any) -> None:
    assert robot.set_parameter("limits.description_wait", 30.0) == ""
    describe.publish(String(data='<!DOCTYPE a [<!ENTITY b "c">]><robot/>'))
    assert not robot.change_state("configure")
    robot.wait_for_status("model", "declares a document type", level="error")


def test_one_without_a_commanded_joint_names_it(robot: Robot, node: Any, describe: Any) -> None:
    describe.publish(String(data=urdf(0.7).replace("gripper", "hand")))
    assert not robot.change_state("configure")
    status = robot.wait_for_status("model", "robot_description has no joint 'gripper'", level="error")
    assert "joint1" in status.message


def test_its_limits_hold_and_parameters_come_first(robot: Robot, node: Any, describe: Any) -> None:
    """Described before configure, heard because it is latched. joint6 stands at 0.5, joint2 wants 100 rad:
    0.25 is the parameter's bound, 2 rad/s the description's speed."""
    describe.publish(String(data=urdf(0.7)))
    assert robot.change_state("configure")
    assert robot.change_state("activate")
    chunk = robot.wait_for("/oxygen/action_chunk")
    joint2 = np.array(chunk.values).reshape(chunk.horizon, -1)[:, 1]
    assert joint2[:2] == pytest.approx([0.2, 0.25], abs=1e-6)  # from 0.1, 0.05 s at 2 rad/s
    assert joint2[-1] == pytest.approx(0.25)
    robot.wait_for_status("control", "joint2.velocity")
