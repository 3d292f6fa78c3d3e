# SPDX-License-Identifier: Apache-2.0
"""Trajectories of a slow model, as the controller gets them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from node_lab import JOINTS, Robot

SPEED = 2.0
SEEN = 0.1  # rad, of joint2, always
LATENCY = 0.12  # s, of 0.05 s a step


@pytest.fixture(scope="module", autouse=True)
def node(start_node: Callable[..., Any], robot: Robot) -> Any:
    jumps = list(range(1, 2000))
    speeds = {f"limits.{joint}.velocity": SPEED for joint in JOINTS}
    process = start_node(
        {"period": 0.3, **speeds},
        toy={"denoise_seconds": LATENCY, "jump_ticks": jumps},
    )
    robot.wait_for("/oxygen/tick", timeout=60)
    return process


def test_a_late_trajectory_starts_within_the_speed_limit(robot: Robot) -> None:
    """Two steps are past when the chunk is ready. The joint stands still and is told to go as fast as it may:
    its first point must be one it can reach in what is left, not where the past steps would have led it."""
    # Enabled only now: nothing was commanded before the first trajectory, so the joints stand as they read.
    assert not robot.heard["/oxygen/joint_trajectory"]
    assert robot.set_parameter("command.enabled", True) == ""
    message = robot.wait_for("/oxygen/joint_trajectory")
    joint = message.joint_names.index("joint2")
    at = message.points[0].time_from_start.nanosec / 1e9
    assert at >= LATENCY
    assert abs(message.points[0].positions[joint] - SEEN) <= SPEED * (at - LATENCY) + 1e-6
    assert abs(message.points[1].positions[joint] - SEEN) <= SPEED * (at + 0.05 - LATENCY) + 1e-6
    assert "trajectories slowed at their join" in str(robot.wait_for_status("control"))
