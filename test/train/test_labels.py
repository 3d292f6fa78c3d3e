# SPDX-License-Identifier: Apache-2.0
"""True sentences for every state of a task, and memories that are wrong on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxygen_ros.sim import words
from oxygen_ros.sim.task import Task
from oxygen_ros.sim.words import Phase
from oxygen_ros.train import labels
from oxygen_ros.train.batch import sentence_of


@pytest.mark.parametrize(
    ("count", "inside", "how_many", "left"),
    [
        (1, 0, "no.", "one red block."),
        (1, 1, "one.", "no block."),
        (2, 0, "no.", "two red blocks."),
        (2, 1, "one.", "one red block."),
        (2, 2, "two.", "no block."),
        (2, 3, "two.", "no block."),
    ],
)
def test_answers(count: int, inside: int, how_many: str, left: str) -> None:
    task = Task("red", count)
    assert labels.answer(labels.HOW_MANY, task, inside, Phase.REACH, "red") == how_many
    assert labels.answer(labels.WHAT_LEFT, task, inside, Phase.REACH, "red") == left
    doing = labels.answer(labels.WHAT_NOW, task, inside, Phase.CARRY, "blue")
    assert doing == "carrying a blue block."


def test_an_unknown_question_is_an_error() -> None:
    with pytest.raises(ValueError, match="is not one of"):
        labels.answer("why?", Task(), 0, Phase.REACH, "red")


def test_a_wrong_memory_is_never_true(rng: np.random.Generator) -> None:
    for _ in range(200):
        task = Task("green", int(rng.integers(1, 3)))
        inside = int(rng.integers(0, task.count + 1))
        memory, claim = labels.wrong_memory(task, inside, rng)
        assert memory != words.memory(task, inside)
        assert memory == "" or memory == words.memory(task, claim)


def test_about_as_many_memories_are_wrong_as_asked(small: Any, rng: np.random.Generator) -> None:
    """With every memory corrupted none of the true ones is left; with none, all are as old as the lag."""
    truth = {i: sentence_of(small.data.record(i), "memory", rng)[1] for i in range(40)}
    batch = small.data.make(np.arange(40), 1, rng, "memory", corrupted=1.0)
    for i in range(40):
        prompt = batch.inputs.prompt[i, : batch.inputs.prompt_length[i]].tolist()
        assert f"Memory: {truth[i]}" not in small.base.processor.detokenize(prompt)
    assert batch.weights.sum() < small.data.make(np.arange(40), 1, rng, "memory", 0.0).weights.sum()
