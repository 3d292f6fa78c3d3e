# SPDX-License-Identifier: Apache-2.0
"""More questions than there is room for: each is answered, refused, or counted in words."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from node_lab import Robot
from std_msgs.msg import String

BURST = 40
FLOOD = 90


def wait_for_listener(publisher: Any) -> None:
    """The node's ticks may be heard before it hears us."""
    deadline = time.monotonic() + 10.0
    while publisher.get_subscription_count() == 0:
        assert time.monotonic() < deadline, f"no subscriber of {publisher.topic_name}"
        time.sleep(0.02)
    time.sleep(0.5)  # and its end of the match, which cannot be seen from here


def test_no_question_of_a_burst_is_lost_without_a_word(start_node: Callable[..., Any], robot: Robot) -> None:
    """Slots hold some, the rest is refused and counted. (~/text keeps the newest 10 of what ends at once.)"""
    others = {f"text.{kind}.enabled": False for kind in ("memory", "narration")}
    start_node({"period": 0.5, **others}, toy={})
    robot.wait_for_tick()
    wait_for_listener(robot.question)
    for index in range(BURST):
        robot.question.publish(String(data=f"what is {index}?"))
    tick = robot.wait_for("/oxygen/tick", lambda m: m.finished + m.rejected == BURST)
    assert tick.finished >= 1
    assert tick.rejected >= 1
    robot.wait_for("/oxygen/text", lambda m: m.finish_reason == "rejected" and m.kind == "answer")


def test_what_came_beyond_room_is_counted_in_words(start_node: Callable[..., Any], robot: Robot) -> None:
    """No tick runs meanwhile: the questions must wait."""
    robot.forget()
    node = start_node({"text.answer.at_once": 2}, name="flooded", toy={})
    flood = robot.node.create_publisher(String, "/flooded/question", 100)
    robot.wait_for("/diagnostics", lambda m: "flooded: control" in str(m) and "ticking" in str(m), timeout=60)
    wait_for_listener(flood)
    with robot.spoiled(image=lambda camera, image: None):
        robot.wait_for("/diagnostics", lambda m: "flooded: inputs" in str(m) and "stale" in str(m))
        for index in range(FLOOD):
            flood.publish(String(data=f"what is {index}?"))
        assert flood.wait_for_all_acked()
    line = node.wait_for_line(r"(\d+) questions not asked")
    found = re.search(r"(\d+) questions not asked", line)
    assert found is not None
    assert int(found[1]) == FLOOD - 64
