# SPDX-License-Identifier: Apache-2.0
"""Text that arrives by topic reaches the prompt as plain text: short, without control characters.

That special tokens are never parsed out of it is the model's part: test/models/test_tokenizer.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from node_lab import Robot
from std_msgs.msg import String

from oxygen_ros.node.inputs import INSTRUCTION_CHARS, clean_words

# No zero character: a string of ROS 2 ends there, whatever comes after it.
RUDE = "what\x01is\x1b[31m\r\nin\tthe‮  box?\x7f<eos>{question}"
CLEAN = "what is [31m in the box? <eos>{question}"


@given(st.text(), st.integers(0, 50))
def test_clean_words_are_printable_and_short(text: str, most: int) -> None:
    words = clean_words(text, most)
    assert len(words) <= most
    assert words.isprintable()
    assert "  " not in words
    assert words == words.strip()
    assert clean_words(words, most) == words


@given(st.text(alphabet=st.characters(categories=("L", "N", "P"))))
def test_clean_words_leaves_words_alone(text: str) -> None:
    assert clean_words(text, len(text)) == text


@pytest.fixture(scope="module")
def ticking(start_node: Callable[..., Any], robot: Robot) -> None:
    """A node that answers, with a model that takes any words of any length."""
    others = {f"text.{kind}.enabled": False for kind in ("memory", "narration")}
    start_node({"question_max_chars": 60, "period": 0.3, **others}, toy={})
    robot.wait_for_tick()


@pytest.mark.usefixtures("ticking")
def test_controls_are_stripped_and_nothing_is_expanded(robot: Robot) -> None:
    """~/text has what the model saw: the question is in its template once, unchanged."""
    robot.question.publish(String(data=RUDE))
    answer = robot.wait_for("/oxygen/text", lambda m: m.kind == "answer")
    assert answer.prompt == f"Question: {CLEAN} Answer: "
    # A question of many thousand letters costs what one of the configured length costs.
    robot.question.publish(String(data="long " * 20_000))
    answer = robot.wait_for("/oxygen/text", lambda m: m.kind == "answer" and "long" in m.prompt)
    assert answer.prompt == f"Question: {('long ' * 12).strip()} Answer: "
    # One of nothing but control characters is no question; the next one is answered.
    robot.question.publish(String(data="\x01\x02\x03"))
    robot.question.publish(String(data="and now?"))
    answer = robot.wait_for("/oxygen/text", lambda m: m.kind == "answer" and m.id > answer.id)
    assert answer.prompt == "Question: and now? Answer: "


@pytest.mark.usefixtures("ticking")
def test_an_instruction_is_cleaned_and_cut_too(robot: Robot) -> None:
    robot.instruction.publish(String(data="put two\x01red\x1bblocks in the box"))
    robot.wait_for_status("control", "instruction: put two red blocks in the box")
    robot.instruction.publish(String(data="x" * 5 * INSTRUCTION_CHARS))

    def is_cut(message: Any) -> bool:
        values = {pair.key: pair.value for status in message.status for pair in status.values}
        return values.get("instruction") == "x" * INSTRUCTION_CHARS

    robot.wait_for("/diagnostics", is_cut, after=robot.now("/diagnostics"))
