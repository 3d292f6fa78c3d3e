# SPDX-License-Identifier: Apache-2.0
"""The true sentences of a frame, and memories that are wrong on purpose.

The closed grammar itself is `sim.words`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from oxygen_ros.demo.sim import words
from oxygen_ros.demo.sim.task import NUMBERS, Task
from oxygen_ros.demo.sim.words import Phase

HOW_MANY: Final = "how many are in the box?"
WHAT_NOW: Final = "what are you doing?"
WHAT_LEFT: Final = "what is left?"
QUESTIONS: Final = (HOW_MANY, WHAT_NOW, WHAT_LEFT)

MEMORY_PROMPT: Final = "Memory: "
NARRATION_PROMPT: Final = "Narration: "
ANSWER_PROMPT: Final = "Question: {question} Answer: "


_VERBS: Final = (
    "open", "close", "wash", "fold", "throw", "stack", "find", "bring", "turn", "push", "put", "hold", "wave",
)  # fmt: skip
_THINGS: Final = (
    "the door", "a cup", "the shirt", "the table", "the lamp", "me water", "the box", "all blocks", "it away",
    "two pink balls", "three red blocks", "a blue ball", "green things", "one black block in the bag",
)  # fmt: skip


def untaught_instruction(rng: np.random.Generator) -> str:
    """An instruction that is no task: of other words, of no words, or empty."""
    kind = rng.random()
    if kind < 0.1:
        return ""
    if kind < 0.18:
        return str(rng.choice(("stop", "wait", "hello", "do it")))
    if kind < 0.3:
        letters = "".join(rng.choice(list("abcdefghijklmnopqrstuvwxyz "), int(rng.integers(3, 11))))
        return letters.strip()
    if kind < 0.5:
        number, noun = str(rng.choice(("three", "four", "no", "all"))), str(rng.choice(("blocks", "cups")))
        return f"put {number} {rng.choice(('red', 'green', 'blue', 'pink'))} {noun} in the box"
    return f"{rng.choice(_VERBS)} {rng.choice(_THINGS)}"


def answer(question: str, task: Task, inside: int, phase: Phase, color: str) -> str:
    """The true answer. inside: blocks of the task's color in the box; color: of the block acted on."""
    done = min(inside, task.count)
    if question == HOW_MANY:
        return f"{NUMBERS[done]}."
    if question == WHAT_NOW:
        return words.narration(phase, color)
    if question == WHAT_LEFT:
        left = task.count - done
        if left == 0:
            return "no block."
        return f"{NUMBERS[left]} {task.color} block{'s' if left > 1 else ''}."
    raise ValueError(f"question {question!r} is not one of {', '.join(QUESTIONS)}")


def wrong_memory(task: Task, inside: int, rng: np.random.Generator) -> tuple[str, int]:
    """A memory sentence that is not true of `inside`, and the count it claims.

    Never an empty one: that must mean that the task has just begun.
    """
    claims = [k for k in range(task.count + 1) if k != min(inside, task.count)]
    claim = int(rng.choice(claims))
    return words.memory(task, claim), claim
