# SPDX-License-Identifier: Apache-2.0
"""An instruction that does not fit the model stops the robot and says so; the next one moves it again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from node_lab import Robot
from std_msgs.msg import String


def test_another_instruction_cures_one_that_is_too_long(start_node: Callable[..., Any], robot: Robot) -> None:
    """Not only when the pause after many failed tries, 5 s, is over; and the machine is not called slow."""
    start_node()
    robot.wait_for("/oxygen/tick", timeout=60)
    robot.instruction.publish(String(data="y " * 300))
    last = robot.wait_for_status("control", "next try in 5.0 s", timeout=30)
    assert "shorten it" in last.message
    ticks, told = robot.now("/oxygen/tick"), robot.now("/diagnostics")
    cured = time.monotonic()
    robot.instruction.publish(String(data="put two red blocks in the box"))
    robot.wait_for("/oxygen/tick", after=ticks)
    assert time.monotonic() - cured < 2.5
    robot.wait_for_status("control", "ticking")
    reports = [status for m in robot.heard["/diagnostics"][told:] for status in m.status]
    missed = [int(p.value) for s in reports for p in s.values if p.key == "ticks skipped"]
    assert missed[-1] - missed[0] < 20  # of 100 that would have passed by in the pauses
