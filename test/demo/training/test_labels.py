# SPDX-License-Identifier: Apache-2.0
"""True sentences for every state of a task, and memories that are wrong on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from oxygen_ros.demo.sim import words
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.words import Phase
from oxygen_ros.demo.training import labels
from oxygen_ros.demo.training.batch import sentence_of


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
        assert memory == words.memory(task, claim)


def test_about_as_many_memories_are_wrong_as_asked(small: Any, rng: np.random.Generator) -> None:
    """With every memory corrupted none of the true ones is left; with none, all are as old as the lag."""
    truth = {i: sentence_of(small.data.record(i), "memory", rng)[1] for i in range(40)}
    batch = small.data.make(np.arange(40), 1, rng, "memory", corrupted=1.0)
    empty = [i for i in range(40) if small.data.record(i)["inside"][0] == 0]
    assert len(empty) > 5  # with blocks inside, one is not forgotten when its fall is no longer seen
    for i in empty:
        prompt = batch.inputs.prompt[i, : batch.inputs.prompt_length[i]].tolist()
        assert f"Memory: {truth[i]}" not in small.base.processor.tokenizer.detokenize(prompt)
    assert batch.weights.sum() < small.data.make(np.arange(40), 1, rng, "memory", 0.0).weights.sum()


def test_what_was_never_taught_is_no_task(rng: np.random.Generator) -> None:
    for _ in range(300):
        with pytest.raises(ValueError, match="is not understood"):
            Task.parse(labels.untaught_instruction(rng))


@pytest.mark.parametrize("kind", ["memory", "narration", "answer"])
def test_with_a_bad_input_the_arm_is_to_stay_and_say_so(
    small: Any, rng: np.random.Generator, kind: str
) -> None:
    """An instruction that was not taught, or a covered camera: no joint moves, the fingers hold on."""
    batch = small.data.make(np.arange(40), 1, rng, kind, 0.0, soften=False, bad=20.0)
    texts = small.base.processor.tokenizer
    said = {"no such task.": 0, "cannot see.": 0}
    for i in range(40):
        text = batch.inputs.text[i, batch.inputs.text_prompt[i] : batch.inputs.text_length[i] - 1]
        sentence = texts.detokenize(text.tolist())
        covered = batch.inputs.images[i].flatten(1).std(1).min() == 0
        if kind == "memory":
            assert covered or sentence == "", "nothing is remembered of what is no task"
        else:
            assert sentence in said, "all are bad here"
            said[sentence] += 1
            assert covered == (sentence == "cannot see.")
        assert (batch.actions[i, :, :6] == 0).all()
        assert (batch.actions[i, :, 6] == batch.actions[i, 0, 6]).all()
        assert (batch.weights[i] > 0).all()
    assert kind == "memory" or min(said.values()) > 5
