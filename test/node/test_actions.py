# SPDX-License-Identifier: Apache-2.0
"""Actions that are no joint positions, and experts beside the commanding one: published, refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from node_lab import JOINTS, RELIABLE, Robot, joints_of, nanoseconds
from sensor_msgs.msg import JointState

from oxygen_ros.msg import ActionChunk, ActionComponent

UNLIMITED = {f"limits.{joint}.{bound}": None for joint in JOINTS for bound in ("lower", "upper")}


@pytest.fixture(scope="module", autouse=True)
def nodes(start_node: Callable[..., Any], robot: Robot) -> dict[str, Any]:
    for name in ("tool", "pair"):
        robot.listen(f"/{name}/action_chunk", ActionChunk, RELIABLE)
    robot.listen("/tool/preview/joint_states", JointState, RELIABLE)
    robot.listen("/pair/action_chunk/wrist", ActionChunk, RELIABLE)
    toy = {"two_experts": True}
    beside = {"other_experts": ["wrist"], "command.enabled": True}
    return {
        "tool": start_node({"period": 0.2, **UNLIMITED}, name="tool", toy={**toy, "cartesian": True}),
        "pair": start_node({"period": 0.2, **beside}, name="pair", toy=toy),
    }


def test_an_end_effector_policy_publishes_its_components(robot: Robot) -> None:
    chunk = robot.wait_for("/tool/action_chunk", timeout=60)
    assert chunk.expert == "tool"
    assert [
        (c.name, c.kind, c.size, c.unit, c.frame_id, c.rotation) for c in chunk.components
    ] == [
        ("tool", ActionComponent.CARTESIAN_POSITION, 3, "m", "base", ""),
        ("tool", ActionComponent.ROTATION, 3, "rad", "base", "axis_angle"),
        ("hand", ActionComponent.GRIPPER, 1, "1", "", ""),
    ]  # fmt: skip
    assert len(chunk.values) == chunk.horizon * sum(c.size for c in chunk.components)
    assert np.isfinite(chunk.values).all()
    # A ghost robot can only show joints: the sentinel is the next chunk.
    robot.wait_for("/tool/action_chunk", lambda m: m.tick >= chunk.tick + 2)
    assert not robot.heard["/tool/preview/joint_states"]


def test_it_cannot_be_commanded(robot: Robot, nodes: dict[str, Any]) -> None:
    """Neither at run time nor by configure; the reason names the component."""
    words = "a trajectory needs joint positions; component 'tool' is a cartesian_position"
    assert words in robot.set_parameter("command.enabled", True, "tool")
    assert robot.set_parameter("command.enabled", False, "tool") == ""
    assert robot.change_state("deactivate", "tool")
    assert robot.change_state("cleanup", "tool")
    assert robot.set_parameter("command.enabled", True, "tool") == ""  # the model is not loaded yet
    assert not robot.change_state("configure", "tool")
    nodes["tool"].wait_for_line(f"configure failed: parameter 'command.enabled' is true, but {words}")
    # Another expert of the same model can be commanded.
    assert robot.set_parameter("expert", "leg", "tool") == ""
    assert not robot.change_state("configure", "tool")
    nodes["tool"].wait_for_line("'expert': the model has no action expert 'leg'; it has tool, wrist")
    assert robot.set_parameter("expert", "wrist", "tool") == ""
    assert robot.change_state("configure", "tool")


def test_it_cannot_be_joined(start_node: Callable[..., Any], robot: Robot) -> None:
    node = start_node(
        {"join.mode": "blend", "autostart": False, **UNLIMITED}, name="blended", toy={"cartesian": True}
    )
    robot.wait_for_state("unconfigured", "blended")
    assert not robot.change_state("configure", "blended")
    node.wait_for_line("parameter 'join.mode' is 'blend', but .* component 'tool' is a rotation")


def test_another_expert_acts_beside_the_commanding_one(robot: Robot) -> None:
    other = robot.wait_for("/pair/action_chunk/wrist", timeout=60)
    chunk = robot.wait_for("/pair/action_chunk", lambda m: m.tick == other.tick)
    assert (chunk.expert, joints_of(chunk)) == ("arm", list(JOINTS))
    assert (other.expert, joints_of(other)) == ("wrist", list(JOINTS[4:6]))
    assert (other.horizon, other.step) == (5, pytest.approx(0.1))
    assert nanoseconds(other.header.stamp) == nanoseconds(chunk.header.stamp)
    assert np.array(other.values).reshape(5, 2) == pytest.approx(np.tile([0.4, 0.5], (5, 1)), abs=1e-6)
