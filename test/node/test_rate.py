# SPDX-License-Identifier: Apache-2.0
"""A loop that does not keep its rate is reported, with the reason."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from node_lab import Robot


def test_a_slow_camera_is_not_all_is_well(start_node: Callable[..., Any], robot: Robot) -> None:
    """Wrist images at 2 Hz are fresh enough, but a period of 0.1 s wants five times as many."""
    last = 0.0

    def thin_out(camera: str, image: Any) -> Any:
        nonlocal last
        if camera != "wrist":
            return image
        if time.monotonic() < last + 0.5:
            return None
        last = time.monotonic()
        return image

    with robot.spoiled(image=thin_out):
        start_node({"max_age": 1.5, "max_skew": 0.1}, toy={})
        status = robot.wait_for_status("control", "instead of 10: no new images", level="warn", timeout=40)
    assert 0 < float(status.message.split()[2]) < 7
    robot.wait_for_status("control", "ticking at", level="ok")


def test_a_period_the_machine_cannot_keep_is_named_with_what_it_takes(
    start_node: Callable[..., Any], robot: Robot
) -> None:
    robot.forget()
    with robot.spoiled():
        start_node({"period": 0.01}, name="hasty", toy={"denoise_seconds": 0.06})

        def is_told(message: Any) -> bool:
            words = r"the period is 0\.01 s, a chunk takes \d\.\d+ s"
            return any(s.name == "hasty: control" and re.search(words, s.message) for s in message.status)

        robot.wait_for("/diagnostics", is_told, timeout=40)
