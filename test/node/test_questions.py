# SPDX-License-Identifier: Apache-2.0
"""More questions than there is room for: each is answered, refused, or counted in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from node_lab import Robot
from std_msgs.msg import String

BURST = 40
FLOOD = 90


def test_no_question_of_a_burst_is_lost_without_a_word(start_node: Callable[..., Any], robot: Robot) -> None:
    """Slots hold some, the rest is refused by name: as many texts as questions."""
    start_node({"period": 0.5}, toy={})
    robot.wait_for_tick()
    for index in range(BURST):
        robot.question.publish(String(data=f"what is {index}?"))
    for index in range(BURST):
        robot.wait_for("/oxygen/text", lambda m, index=index: f"what is {index}?" in m.prompt)


def test_what_came_beyond_room_is_counted_in_words(start_node: Callable[..., Any], robot: Robot) -> None:
    """No tick runs meanwhile: the questions must wait."""
    robot.forget()
    node = start_node({"text.answer.at_once": 2}, name="flooded", toy={})
    flood = robot.node.create_publisher(String, "/flooded/question", 100)
    robot.wait_for("/diagnostics", lambda m: "flooded: control" in str(m) and "ticking" in str(m), timeout=60)
    with robot.spoiled(image=lambda camera, image: None):
        robot.wait_for("/diagnostics", lambda m: "flooded: inputs" in str(m) and "stale" in str(m))
        for index in range(FLOOD):
            flood.publish(String(data=f"what is {index}?"))
        assert flood.wait_for_all_acked()
    line = node.wait_for_line(r"(\d+) questions not asked")
    found = re.search(r"(\d+) questions not asked", line)
    assert found is not None
    assert int(found[1]) == FLOOD - 64
