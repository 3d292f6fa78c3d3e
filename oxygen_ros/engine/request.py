# SPDX-License-Identifier: Apache-2.0
"""Text requests: what is asked for, how far it has come, and how it ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum

from oxygen_ros.engine.encoded import EncodedObservation


class FinishReason(StrEnum):
    """Why a text ended. Every request ends with exactly one of these."""

    EOS = "eos"  # an end token
    STOP = "stop"  # one of the task's stop texts
    LENGTH = "length"  # its token limit
    AGE = "age"  # its limit in ticks
    CANCELLED = "cancelled"  # by a caller
    DEACTIVATED = "deactivated"  # no more ticks
    REJECTED = "rejected"  # no slot was free
    DROPPED = "dropped"  # its slot went to a newer one
    ERROR = "error"  # a tick failed

    @property
    def is_complete(self) -> bool:
        """Whether the model ended it, or its token limit."""
        return self in (FinishReason.EOS, FinishReason.STOP, FinishReason.LENGTH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTask:
    """What to generate from an encoded observation.

    kind:         name of the text kind, e.g. "memory"
    prompt:       template of the prompt suffix, put after the prefix. Special tokens that it spells are
                  honored; {name} stands for words[name]
    words:        what a person said, for the template; nothing in it is parsed for special tokens
    max_tokens:   token limit (>= 1), the end token not counted
    max_age:      ticks after which it expires (0: the token limit alone bounds it)
    stop:         texts that end the generation; cut from the result
    temperature:  0 is greedy; else sampling from logits / temperature
    top_p:        smallest set of tokens with this probability is sampled from (0..1]
    seed:         with the observation's stamp, kind and token index the only source of randomness
    adapter:      name of the text adapter, "" for none
    priority:     of the requests of one tick, higher ones are admitted first
    """

    kind: str
    prompt: str
    words: Mapping[str, str] = field(default_factory=dict)
    max_tokens: int = 30
    max_age: int = 0
    stop: tuple[str, ...] = ()
    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    adapter: str = ""
    priority: int = 0

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

    @property
    def text(self) -> str:
        """The prompt suffix with its words filled in."""
        text = self.prompt
        for name, words in self.words.items():
            text = text.replace(f"{{{name}}}", words)
        return text


class RequestState(Enum):
    """WAITING for a suffix slot -> LIVE in one -> ENDED; a request may end while it waits."""

    WAITING = 0
    LIVE = 1
    ENDED = 2


@dataclass(eq=False, slots=True)
class TextRequest:
    """One resumable generation, from asked to ended. The engine's thread owns it.

    pending:    tokens not yet in the suffix cache: the prompt at first, then the newest token
    asked_at:   on the engine's clock [s]
    holds:      whether it holds a reference to `encoded`
    is_forked:  whether its suffix slot continues the prefix, see `Model.fork`; no row of it before
    cached:     tokens in the suffix cache
    tokens:     generated ids, the end token not included
    steps:      decode steps it had rows in
    """

    id: int
    task: TextTask
    encoded: EncodedObservation
    adapter: int
    tick_asked: int
    asked_at: float
    eos_ids: tuple[int, ...]
    pending: list[int]
    state: RequestState = RequestState.WAITING
    holds: bool = False
    suffix_slot: int = -1
    is_forked: bool = False
    cached: int = 0
    tokens: list[int] = field(default_factory=list)
    steps: int = 0
    finish_reason: FinishReason | None = None
    end_token: int | None = None

    @property
    def is_finished(self) -> bool:
        """Whether it has a reason to end; the engine then takes it out."""
        return self.finish_reason is not None

    def hold(self) -> None:
        self.encoded.retain()
        self.holds = True

    def let_go(self) -> None:
        if self.holds:
            self.holds = False
            self.encoded.release()


@dataclass(frozen=True, slots=True)
class FinishedText:
    """A text that ended, and what it was about.

    task:         what was asked: prompt suffix, limits, adapter, seed
    text:         cut at its stop text
    stamp:        of the observation asked about [ns]
    instruction, feedback:  the words in the prompt of that observation
    tokens:       generated ids, the end token not included
    steps:        decode steps it took part in
    seconds:      from asking to the end
    """

    id: int
    task: TextTask
    text: str
    finish_reason: FinishReason
    stamp: int
    instruction: str
    feedback: Mapping[str, str]
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
        """The prompt suffix, its words filled in."""
        return self.task.text
