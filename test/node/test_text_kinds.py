# SPDX-License-Identifier: Apache-2.0
"""Text kinds of a user's own, in YAML alone: a topic, ~/text, RViz, /diagnostics, the prompt."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from node_lab import LATCHED, Robot
from std_msgs.msg import String
from visualization_msgs.msg import MarkerArray


@pytest.fixture(scope="module", autouse=True)
def node(start_node: Callable[..., Any], robot: Robot) -> Any:
    for topic in ("hazard", "why"):
        robot.listen(f"/oxygen/{topic}", String, LATCHED)
    robot.listen("/oxygen/markers", MarkerArray, LATCHED)
    process = start_node(
        {
            "period": 0.2,
            "text.memory.enabled": False,
            "text.hazard.prompt": "Hazard: ",
            "text.hazard.every_n_ticks": 4,
            "text.hazard.max_tokens": 3,
            "text.why.prompt": "Why {question} Because ",
            "text.why.max_tokens": 2,
        },
        toy={},
    )
    robot.wait_for_tick()
    return process


def test_it_is_asked_and_published_like_any_other(robot: Robot) -> None:
    text = robot.wait_for("/oxygen/text", lambda m: m.kind == "hazard")
    assert (text.prompt, text.text, text.finish_reason) == ("Hazard: ", "abc", "length")
    assert (text.tick_asked - 1) % 4 == 0
    assert robot.wait_for("/oxygen/hazard").data == "abc"
    robot.wait_for("/oxygen/markers", lambda m: "hazard: abc" in m.markers[0].text.splitlines())
    robot.wait_for_status("text", "kinds: narration, answer, hazard, why")


def test_a_question_asks_each_kind_whose_prompt_holds_one(robot: Robot) -> None:
    robot.question.publish(String(data="is it red?"))
    why = robot.wait_for("/oxygen/text", lambda m: m.kind == "why")
    answer = robot.wait_for("/oxygen/text", lambda m: m.kind == "answer")
    assert why.prompt == "Why is it red? Because "
    assert answer.prompt == "Question: is it red? Answer: "
    assert why.tick_asked == answer.tick_asked
    assert robot.wait_for("/oxygen/why").data == "ab"


def test_a_kind_without_a_prompt_and_one_misspelt_are_named(
    start_node: Callable[..., Any], robot: Robot
) -> None:
    wrong = {"text.danger.every_n_ticks": 3, "text.hazard.prompt": "Hazard: ", "text.hazard.max_token": 3}
    node = start_node({**wrong, "autostart": False}, name="misspelt", toy={})
    robot.wait_for_state("unconfigured", "misspelt")
    assert not robot.change_state("configure", "misspelt")
    line = node.wait_for_line("configure failed: ")
    assert "did you mean 'text.hazard.max_tokens'?" in line
    assert "A text kind of your own needs text.danger.prompt" in line
    # Deleting them is the cure, as of any unknown parameter.
    for name in ("text.danger.every_n_ticks", "text.hazard.max_token"):
        assert robot.set_parameter(name, None, "misspelt") == ""
    assert robot.change_state("configure", "misspelt")


def test_what_the_prompt_has_no_place_for_cannot_be_fed_back(
    start_node: Callable[..., Any], robot: Robot
) -> None:
    given = {"text.hazard.prompt": "Hazard: ", "text.hazard.feed_prompt": True, "autostart": False}
    node = start_node(given, name="deaf", toy={})
    robot.wait_for_state("unconfigured", "deaf")
    assert not robot.change_state("configure", "deaf")
    node.wait_for_line("'text.hazard.feed_prompt' is true, but the prompt of this model has no place for it")
    assert robot.set_parameter("text.hazard.feed_prompt", False, "deaf") == ""
    assert robot.change_state("configure", "deaf")
