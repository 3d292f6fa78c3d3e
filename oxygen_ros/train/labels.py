# SPDX-License-Identifier: Apache-2.0
"""Sentences a frame should be answered with, and memories that are wrong on purpose.

Here lives only text: the closed grammar is `sim.words`; which frame it is about is `records`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from oxygen_ros.sim import words
from oxygen_ros.sim.task import NUMBERS, Task
from oxygen_ros.sim.words import Phase

HOW_MANY: Final = "how many are in the box?"
WHAT_NOW: Final = "what are you doing?"
WHAT_LEFT: Final = "what is left?"
QUESTIONS: Final = (HOW_MANY, WHAT_NOW, WHAT_LEFT)

MEMORY_PROMPT: Final = "Memory: "
NARRATION_PROMPT: Final = "Narration: "
ANSWER_PROMPT: Final = "Question: {question} Answer: "


def answer(question: str, task: Task, inside: int, phase: Phase, colour: str) -> str:
    """The true answer. inside: blocks of the task's colour in the box; colour: of the block acted on."""
    done = min(inside, task.count)
    if question == HOW_MANY:
        return f"{NUMBERS[done]}."
    if question == WHAT_NOW:
        return words.narration(phase, colour)
    if question == WHAT_LEFT:
        left = task.count - done
        if left == 0:
            return "no block."
        return f"{NUMBERS[left]} {task.colour} block{'s' if left > 1 else ''}."
    raise ValueError(f"question {question!r} is not one of {', '.join(QUESTIONS)}")


def wrong_memory(task: Task, inside: int, rng: np.random.Generator) -> tuple[str, int]:
    """A memory sentence that is not true of `inside`, and the count it claims; "" and the truth sometimes."""
    if rng.random() < 0.25:
        return "", inside
    claims = [k for k in range(task.count + 1) if k != min(inside, task.count)]
    claim = int(rng.choice(claims))
    return words.memory(task, claim), claim
