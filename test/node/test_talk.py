# SPDX-License-Identifier: Apache-2.0
"""Subtasks in the prompt, texts asked and ended at a new instruction, and what ~/text has of each.

Two nodes of the same robot make the same of an image.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from node_lab import RELIABLE, Robot, feedback_of, nanoseconds
from std_msgs.msg import String

from oxygen_ros.msg import ActionChunk, TextOutput

ENDED = ("eos", "length", "stop")
SAYS = "abcdefg"  # 7 tokens and the end: 8 decode steps, 4 a tick
LAG = 3  # ceil(8 / 4) + 1
SEED = 3
SAME = {
    "trigger": "images",
    "seed": SEED,
    "instruction": "tidy up",
    "text.subtask.feed_prompt": True,
    "text.subtask.enabled": True,
    "text.subtask.every_n_ticks": 4,
    "text.subtask.max_tokens": 8,
    "text.memory.every_n_ticks": 1,
    "text.narration.every_n_ticks": 0,
    "text.narration.on_instruction": True,
}


@pytest.fixture(scope="module", autouse=True)
def nodes(start_node: Callable[..., Any], robot: Robot) -> Any:
    robot.listen("/twin/action_chunk", ActionChunk, RELIABLE)
    toy = {"noisy": True, "longest_instruction": 60}
    both = start_node(SAME, toy=toy), start_node(SAME, name="twin", toy=toy)
    robot.wait_for("/oxygen/text", lambda m: m.tick_asked >= 40, timeout=60)
    return both


def _texts(robot: Robot) -> list[TextOutput]:
    return list(robot.heard["/oxygen/text"])


def test_a_subtask_is_published(robot: Robot) -> None:
    text = next(m for m in _texts(robot) if m.kind == "subtask" and m.finish_reason in ENDED)
    assert text.text == SAYS
    assert (text.tick_asked - 1) % 4 == 0
    assert robot.wait_for("/oxygen/subtask").data == SAYS


def test_a_subtask_enters_the_prompt_at_its_tick(robot: Robot) -> None:
    """Asked at t, it stands in the prompt of t + lag, whenever it was ready; late ones never do."""
    texts = [m for m in _texts(robot) if m.instruction == "tidy up"]
    # Only those whose whole past was heard: the first subtask comes at tick 1.
    assert min(m.tick_asked for m in texts) == 1
    in_time = [m.tick_asked + LAG for m in texts if m.kind == "subtask" and m.finish_reason in ENDED
               and m.tick_finished < m.tick_asked + LAG]  # fmt: skip
    fed = {m.tick_asked: feedback_of(m).get("subtask", "") for m in texts if m.tick_asked <= 30}
    assert {tick: words for tick, words in fed.items() if tick < min(in_time)} == dict.fromkeys(
        [tick for tick in fed if tick < min(in_time)], ""
    )
    assert all(words == SAYS for tick, words in fed.items() if tick >= min(in_time))
    assert set(fed.values()) == {"", SAYS}


def test_a_text_tells_all_that_the_model_saw(robot: Robot) -> None:
    robot.question.publish(String(data="what is left?"))
    answer = robot.wait_for("/oxygen/text", lambda m: m.kind == "answer")
    assert answer.prompt == "Question: what is left? Answer: "
    assert answer.instruction == "tidy up"
    assert feedback_of(answer) == {"memory": SAYS, "subtask": SAYS}
    assert (answer.adapter, answer.seed, answer.temperature, answer.top_p) == ("", SEED, 0.0, 1.0)
    chunk = robot.wait_for("/oxygen/action_chunk", lambda m: m.tick == answer.tick_asked)
    assert chunk.header.stamp == answer.header.stamp


def test_a_new_instruction_is_asked_about_at_once_and_ends_what_would_be_acted_on(robot: Robot) -> None:
    robot.instruction.publish(String(data="wave"))
    newer = robot.wait_for("/oxygen/text", lambda m: m.instruction == "wave" and m.kind == "subtask")
    robot.wait_for("/oxygen/text", lambda m: m.tick_asked >= newer.tick_asked + 12)
    texts = _texts(robot)
    taken = min(m.tick_asked for m in texts if m.instruction == "wave")
    asked = {m.kind for m in texts if m.tick_asked == taken and m.instruction == "wave"}
    assert asked >= {"narration", "subtask"}
    assert {m.tick_asked for m in texts if m.kind == "narration"} == {1, taken}
    cancelled = [m for m in texts if m.finish_reason == "cancelled"]
    assert cancelled
    assert {m.kind for m in cancelled} <= {"memory", "subtask"}
    assert {m.instruction for m in cancelled} == {"tidy up"}
    # What the model said for the old instruction is gone from the prompt until it speaks of the new one.
    assert not [m for m in texts if taken <= m.tick_asked < taken + LAG and feedback_of(m)]
    assert any(feedback_of(m).get("subtask") == SAYS for m in texts if m.instruction == "wave")
    assert not [m for m in texts if m.kind in ("memory", "subtask") and m.instruction == "tidy up"
                and m.tick_finished >= taken]  # fmt: skip


def test_a_refused_instruction_asks_nothing_and_ends_nothing(robot: Robot) -> None:
    before = robot.now("/oxygen/text")
    robot.instruction.publish(String(data="y" * 61))
    words = '"wave" stands: the instruction has 61 letters, 60 fit: shorten it'
    assert words in robot.wait_for_status("control", words, level="warn").message
    robot.wait_for("/oxygen/text", after=before + 20)
    later = _texts(robot)[before:]
    assert {m.instruction for m in later} == {"wave"}
    assert not [m for m in later if m.kind == "narration" or m.finish_reason == "cancelled"]


def test_the_same_image_gives_the_same_chunk_in_another_node(robot: Robot) -> None:
    """strands-labs/robots PR#725: they come from seed and stamp, not from when or how often it ticked."""

    def chunks(name: str) -> dict[int, tuple[float, ...]]:
        heard = list(robot.heard[f"/{name}/action_chunk"])
        return {nanoseconds(m.header.stamp): tuple(m.values) for m in heard}

    # On a busy machine each leaves out images of its own.
    robot.wait_for("/twin/action_chunk", lambda m: len(chunks("oxygen").keys() & chunks("twin").keys()) >= 20)
    ours, twins = chunks("oxygen"), chunks("twin")
    common = ours.keys() & twins.keys()
    assert all(ours[stamp] == twins[stamp] for stamp in common)
    assert len({ours[stamp] for stamp in common}) == len(common)
