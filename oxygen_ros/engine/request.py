# SPDX-License-Identifier: Apache-2.0
"""Text requests: what is asked for, how far it has come, and how it ended.

Here lives the state of one request. Which rows of which request run is `scheduler`; when they
run is `budget`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from oxygen_ros.engine.frame import Frame


class FinishReason(StrEnum):
    """Why a text ended. Every request ends with exactly one of these."""

    EOS = "eos"  # the model said so
    STOP = "stop"  # one of the task's stop texts
    LENGTH = "length"  # its token limit
    AGE = "age"  # its limit in ticks
    CANCELLED = "cancelled"  # a caller's wish
    DEACTIVATED = "deactivated"  # no more ticks
    REJECTED = "rejected"  # there was no slot for it
    DROPPED = "dropped"  # it gave its slot to a newer one
    ERROR = "error"  # a tick failed

    @property
    def is_complete(self) -> bool:
        """Whether the model itself came to an end (or to its token limit)."""
        return self in (FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """What to generate from a frame.

    kind:         "memory", "narration", "subtask", "answer" or an application's own
    prompt:       prompt suffix, put after the prefix
    max_tokens:   token limit (>= 1), the end token not counted
    max_age:      ticks after which it expires (0: the token limit alone bounds it)
    stop:         texts that end the generation; cut from the result
    temperature:  0 is greedy; else sampling from logits / temperature
    top_p:        smallest set of tokens with this probability is sampled from (0..1]
    seed:         with the observation's stamp, kind and token index, the whole source of chance
    adapter:      name of the text adapter, "" for none
    """

    kind: str
    prompt: str = ""
    max_tokens: int = 30
    max_age: int = 0
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    adapter: str = ""

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise ValueError(f"{self.kind}: max_tokens must be at least 1, got {self.max_tokens}")
        if self.max_age < 0:
            raise ValueError(f"{self.kind}: max_age must be 0 (no limit) or more ticks, got {self.max_age}")
        if self.temperature < 0:
            raise ValueError(f"{self.kind}: temperature must not be negative, got {self.temperature}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"{self.kind}: top_p must be in (0, 1], got {self.top_p}")
        if any(not stop for stop in self.stop):
            raise ValueError(f"{self.kind}: an empty stop text would end every text at once")

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory(TextTask):
    """What to remember of the scene; fed back into the prompt of a later tick."""

    kind: str = "memory"
    prompt: str = "Memory: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Narration(TextTask):
    """What the robot is doing now."""

    kind: str = "narration"
    prompt: str = "Narration: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Subtask(TextTask):
    """The next instruction of a hierarchical policy."""

    kind: str = "subtask"
    prompt: str = "Subtask: "


# A function, since a question is no field of a task; it reads as the others where it is used.
def Answer(question: str, template: str = "Question: {question} Answer: ", **limits: object) -> TextTask:
    """The answer to a person's question; first at admission."""
    return TextTask(kind="answer", prompt=template.replace("{question}", question), **limits)  # type: ignore[arg-type]


@dataclass(eq=False, slots=True)
class TextRequest:
    """One resumable generation. The engine's thread owns it; the scheduler moves it forward.

    pending:  tokens not yet in the suffix cache: the prompt at first, then the newest token
    cached:   tokens in the suffix cache
    tokens:   generated ids, the end token not included
    asked_at: on the engine's clock [s]
    steps:    decode steps it had rows in
    """

    id: int
    task: TextTask
    frame: Frame
    suffix_slot: int
    adapter: int
    tick_asked: int
    asked_at: float
    eos_ids: tuple[int, ...]
    pending: list[int]
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    finish_reason: FinishReason | None = None
    end_token: int | None = None

    @property
    def is_finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(frozen=True, slots=True)
class FinishedText:
    """A text that ended, with what is needed to know what it was about.

    task:         what was asked: prompt suffix, limits, adapter, seed
    stamp:        of the observation asked about [ns]
    instruction, memory, subtask:  the words in the prompt of that observation
    steps:        decode steps it took part in
    seconds:      from the question to the end
    """

    id: int
    task: TextTask
    text: str
    finish_reason: FinishReason
    stamp: int
    instruction: str
    memory: str
    subtask: str
    tick_asked: int
    tick_finished: int
    tokens: tuple[int, ...]
    steps: int
    seconds: float

    @property
    def kind(self) -> str:
        return self.task.kind

    @property
    def prompt(self) -> str:
        """The prompt suffix."""
        return self.task.prompt
