# SPDX-License-Identifier: Apache-2.0
"""What starts a tick, and what may be left out: triggers, an absent camera, a robot's own joint names."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from node_lab import JOINTS, RELIABLE, SENSOR, Robot, joints_of, nanoseconds

from oxygen_ros.msg import ActionChunk, TickStats

NAMES = ("by_images", "by_chunk_end")


@pytest.fixture(scope="module", autouse=True)
def nodes(start_node: Callable[..., Any], robot: Robot) -> Any:
    for name in NAMES:
        robot.listen(f"/{name}/tick", TickStats, SENSOR)
        robot.listen(f"/{name}/action_chunk", ActionChunk, RELIABLE)
    images = start_node(
        {
            "trigger": "images",
            "budget.mode": "deadline",
            "cameras.wrist.optional": True,
            "cameras.wrist.topic": "",
            "joints.joint2.name": "shoulder",
            "limits.joint2.lower": None,
            "limits.joint2.upper": None,
            "limits.shoulder.lower": -3.2,
            "limits.shoulder.upper": 3.2,
        },
        name="by_images",
        toy={},
    )
    chunk_end = start_node({"trigger": "chunk_end", "budget.mode": "deadline"}, name="by_chunk_end", toy={})
    with robot.spoiled(joints=_call_it_shoulder):
        yield images, chunk_end


def _call_it_shoulder(joints: Any) -> Any:
    """The second joint under both names, for the two nodes."""
    joints.name = [*joints.name, "shoulder"]
    joints.position.append(joints.position[1])
    return joints


def test_each_set_of_images_is_a_tick(robot: Robot) -> None:
    """Each tick is about a new image, and comes with it: sooner than a period of 0.1 s."""
    topic = "/by_images/tick"
    robot.wait_for(topic, timeout=60)
    before = robot.now(topic)
    robot.wait_for(topic, lambda m: m.used_steps > 0, after=before + 20)
    ticks = robot.heard[topic][before : before + 20]
    stamps = [nanoseconds(tick.header.stamp) for tick in ticks]
    gaps = sorted(b - a for a, b in itertools.pairwise(stamps))
    assert 0 < gaps[0] < 75e6


def test_joints_go_by_the_robots_names(robot: Robot) -> None:
    chunk = robot.wait_for("/by_images/action_chunk")
    assert joints_of(chunk) == ["joint1", "shoulder", *JOINTS[2:]]


def test_the_next_tick_comes_when_the_chunk_runs_out(robot: Robot) -> None:
    """The toy's chunk covers 20 x 0.05 = 1 s."""
    topic = "/by_chunk_end/action_chunk"
    first = robot.wait_for(topic, timeout=60)
    second = robot.wait_for(topic, lambda m: m.tick == first.tick + 1)
    gap = nanoseconds(second.header.stamp) - nanoseconds(first.header.stamp)
    # The observation of the second is at most `max_age` older than the end of the first.
    assert gap >= 0.7e9
