# SPDX-License-Identifier: Apache-2.0
"""Text kinds as data: what is asked, when, and whether it is fed back into the prompt.

The four standard kinds are entries of a table; an application adds its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from oxygen_ros.engine.request import TextTask

QUESTION = "{question}"


@dataclass(frozen=True, slots=True)
class TextKind:
    """One kind of text of a session.

    task:            prompt, limits and priority of each request
    every_n_ticks:   asked at ticks 1, 1 + n, 1 + 2n, ...; 0: not by itself
    on_instruction:  asked, besides, at each tick at which a new instruction (or the first one) takes effect
    feed_after:      ticks from asking to the prompt that holds the text (`feedback`); 0: it is not fed back
    cancel_on_instruction: a new instruction ends the texts under way (`cancelled`); else they go on
    at_once:         requests of a question kind that slots are planned for

    Raises ValueError where these contradict each other.
    """

    task: TextTask
    every_n_ticks: int = 0
    on_instruction: bool = False
    feed_after: int = 0
    cancel_on_instruction: bool = False
    at_once: int = 4

    def __post_init__(self) -> None:
        if self.every_n_ticks < 0:
            raise ValueError(f"{self.name}: every_n_ticks must not be negative, got {self.every_n_ticks}")
        if self.feed_after < 0:
            raise ValueError(f"{self.name}: lag must be at least 1 tick, got {self.feed_after}")
        if self.is_question and (self.every_n_ticks or self.on_instruction or self.feed_after):
            raise ValueError(f"{self.name}: {QUESTION} is asked by questions alone, and not fed back")
        if not (self.is_question or self.every_n_ticks or self.on_instruction):
            raise ValueError(
                f"{self.name}: it would never be asked: every_n_ticks must be at least 1, or on_instruction "
                f"set, or {QUESTION} stand in the prompt"
            )

    @property
    def name(self) -> str:
        return self.task.kind

    @property
    def is_question(self) -> bool:
        """Asked with each question, whose words fill its prompt."""
        return QUESTION in self.task.prompt

    def is_due(self, tick: int, is_instructed: bool = False) -> bool:
        """is_instructed: whether an instruction takes effect at this tick"""
        is_turn = self.every_n_ticks > 0 and (tick - 1) % self.every_n_ticks == 0
        return is_turn or (self.on_instruction and is_instructed)

    def about(self, question: str) -> TextTask:
        """The task that answers a question."""
        return replace(self.task, words={"question": question})


# A person waits for an answer, so it is admitted first.
STANDARD_KINDS: Mapping[str, TextKind] = MappingProxyType(
    {
        "memory": TextKind(
            TextTask(kind="memory", prompt="Memory: "), every_n_ticks=10, cancel_on_instruction=True
        ),
        "narration": TextKind(TextTask(kind="narration", prompt="Narration: "), every_n_ticks=10),
        "subtask": TextKind(
            TextTask(kind="subtask", prompt="Subtask: "),
            every_n_ticks=10,
            on_instruction=True,
            cancel_on_instruction=True,
        ),
        "answer": TextKind(TextTask(kind="answer", prompt=f"Question: {QUESTION} Answer: ", priority=10)),
    }
)
