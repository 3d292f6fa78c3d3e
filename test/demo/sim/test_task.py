# SPDX-License-Identifier: Apache-2.0
"""Tasks, and the closed grammar of the robot's sentences."""

from __future__ import annotations

import pytest

from oxygen_ros.demo.sim.geometry import COLORS
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.words import Phase, all_sentences, memory, narration


@pytest.mark.parametrize("color", COLORS)
@pytest.mark.parametrize("count", [1, 2])
def test_an_instruction_is_read_back(color: str, count: int) -> None:
    task = Task(color, count)
    assert Task.parse(task.instruction) == task


def test_instructions_in_words() -> None:
    assert Task("red", 2).instruction == "put two red blocks in the box"
    assert Task("blue", 1).instruction == "put one blue block in the box"
    assert Task.parse(" Put  one RED block in the box. ") == Task("red", 1)


@pytest.mark.parametrize(
    "text", ["", "put three red blocks in the box", "put two pink blocks in the box", "dance"]
)
def test_an_instruction_nobody_understands_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="is not understood; say 'put one"):
        Task.parse(text)


def test_a_task_that_is_not_possible_is_refused() -> None:
    with pytest.raises(ValueError, match="'pink' is unknown; it must be one of red, green, blue"):
        Task("pink", 1)
    with pytest.raises(ValueError, match="count 3 is not possible"):
        Task("red", 3)


def test_sentences() -> None:
    assert narration(Phase.REACH, "red") == "reaching for a red block."
    assert narration(Phase.DONE, "red") == "done."
    assert memory(Task("red", 2), 0) == "no red block is in the box."
    assert memory(Task("red", 2), 1) == "one of two red blocks is in the box."
    assert memory(Task("red", 2), 2) == "two of two red blocks are in the box."
    assert memory(Task("red", 2), 3) == "two of two red blocks are in the box."
    assert memory(Task("green", 1), 1) == "the green block is in the box."


def test_the_grammar_is_small_and_closed() -> None:
    sentences = all_sentences()
    assert len(sentences) == len(set(sentences)) == 6 * 3 + 1 + 4 * 3 + 2
    assert sorted(sentences) == list(sentences)
