# SPDX-License-Identifier: Apache-2.0
"""What people look with: the ghost of the chunk, the words in RViz, /diagnostics in its usual form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from node_lab import JOINTS, LATCHED, RELIABLE, Robot, nanoseconds
from sensor_msgs.msg import JointState
from visualization_msgs.msg import Marker, MarkerArray


@pytest.fixture(scope="module", autouse=True)
def node(start_node: Callable[..., Any], robot: Robot) -> Any:
    robot.listen("/oxygen/preview/joint_states", JointState, RELIABLE)
    robot.listen("/oxygen/markers", MarkerArray, LATCHED)
    looks = {"markers.frame": "base_link", "markers.height": 1.5, "markers.size": 0.1}
    process = start_node({"period": 0.3, **looks}, toy={})
    robot.wait_for_tick()
    return process


def test_the_ghost_stands_where_the_chunk_ends(robot: Robot) -> None:
    """robot_state_publisher wants every joint by name; the stamp is when the arm will be there."""
    ghost = robot.wait_for("/oxygen/preview/joint_states")
    chunk = robot.wait_for(
        "/oxygen/action_chunk", lambda m: nanoseconds(m.valid_until) == nanoseconds(ghost.header.stamp)
    )
    assert list(ghost.name) == list(JOINTS)
    last = chunk.values[-len(chunk.components) :]
    assert list(ghost.position) == pytest.approx(list(last), abs=1e-6)


def test_the_last_words_of_each_kind_stand_in_one_marker(robot: Robot) -> None:
    def is_complete(message: MarkerArray) -> bool:
        return "memory: " in message.markers[0].text and "narration: " in message.markers[0].text

    (marker,) = robot.wait_for("/oxygen/markers", is_complete).markers
    assert marker.type == Marker.TEXT_VIEW_FACING
    assert marker.action == Marker.ADD
    assert marker.header.frame_id == "base_link"
    assert nanoseconds(marker.header.stamp) == 0, "at the frame's newest transform, also of a still robot"
    assert nanoseconds(marker.lifetime) == 0, "until other words come"
    assert marker.pose.position.z == 1.5
    assert marker.pose.orientation.w == 1.0
    assert marker.scale.z == pytest.approx(0.1)
    assert marker.color.a == 1.0
    lines = dict(line.split(": ", 1) for line in marker.text.splitlines())
    assert set(lines) == {"memory", "narration"}
    assert set(lines.values()) == {"abcdefg"}


def test_words_are_there_for_who_comes_late(robot: Robot) -> None:
    heard: list[MarkerArray] = []
    robot.node.create_subscription(MarkerArray, "/oxygen/markers", heard.append, LATCHED)
    robot.wait_for("/diagnostics", lambda m: bool(heard), after=robot.now("/diagnostics"))


def test_diagnostics_have_the_aggregators_form(robot: Robot) -> None:
    message = robot.wait_for("/diagnostics", after=robot.now("/diagnostics"))
    assert nanoseconds(message.header.stamp) > 0
    assert [status.name for status in message.status] == [
        f"oxygen: {part}" for part in ("inputs", "control", "text", "model")
    ]
    for status in message.status:
        assert status.message
        assert status.hardware_id
        assert status.values
        keys = [pair.key for pair in status.values]
        assert len(set(keys)) == len(keys)
        assert all(pair.value for pair in status.values)
