# SPDX-License-Identifier: Apache-2.0
"""The first seconds of an activation, on a robot where all is well: nothing is an error yet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from node_lab import LEVELS, Robot


def test_a_good_start_raises_no_alarm(start_node: Callable[..., Any], robot: Robot) -> None:
    """First images take up to a period; that is no error to be logged at each start."""
    node = start_node(toy={})
    robot.wait_for_status("inputs", "all inputs are fresh", timeout=60)
    statuses = [status for m in robot.heard["/diagnostics"] for status in m.status]
    words = [s.message for s in statuses if s.name == "oxygen: inputs" and LEVELS.get(s.level) == "error"]
    assert words == []
    assert "[ERROR]" not in node.output


def test_what_does_not_come_is_an_error_soon(start_node: Callable[..., Any], robot: Robot) -> None:
    robot.forget()
    with robot.spoiled(image=lambda camera, image: None if camera == "top" else image):
        start_node(name="blind", toy={})

        def is_told(message: Any) -> bool:
            return any(
                s.name == "blind: inputs" and LEVELS.get(s.level) == "error" and "silent" in s.message
                for s in message.status
            )

        robot.wait_for("/diagnostics", is_told, timeout=60)
