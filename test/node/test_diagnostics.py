# SPDX-License-Identifier: Apache-2.0
"""The level of a part with more than one problem."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import rclpy
from node_lab import Robot

from oxygen_ros.node.diagnostics import ERROR, OK, PARTS, STALE, WARN, Diagnostics


@pytest.fixture
def diagnostics(robot: Robot) -> Iterator[Diagnostics]:
    """Of a node of its own: the robot's listener hears it."""
    node = rclpy.create_node("judge")
    yield Diagnostics(node, lambda: None)
    node.destroy_node()


@pytest.mark.parametrize(
    ("level", "expected"), [(OK, WARN), (WARN, WARN), (ERROR, ERROR), (STALE, WARN)], ids="owes"
)
def test_qos_trouble_raises_a_level_and_never_lowers_one(
    robot: Robot, diagnostics: Diagnostics, level: bytes, expected: bytes
) -> None:
    words = f"as it is {level!r}"
    diagnostics.report("inputs", level, words, {"rate": 1.0}, is_logged=True)
    deadline = time.monotonic() + 20.0
    heard: list[Any] = []
    while not heard:
        # Repeatedly: the match of the listener cannot be observed.
        assert time.monotonic() < deadline
        diagnostics.publish({"inputs": {"QoS of top": "incompatible QoS"}})
        time.sleep(0.02)
        heard = [m for m in robot.heard["/diagnostics"] for s in m.status if s.message.startswith(words)]
    message = heard[0]
    (status,) = [status for status in message.status if status.name == "judge: inputs"]
    assert status.level == expected
    assert status.message == f"{words}; incompatible QoS"
    assert {pair.key: pair.value for pair in status.values} == {"rate": "1", "QoS of top": "incompatible QoS"}
    others = {status.level for status in message.status if status.name != "judge: inputs"}
    assert others == {STALE}
    assert len(message.status) == len(PARTS)
