# SPDX-License-Identifier: Apache-2.0
"""Text requests between the question and a slot.

Here lives the check that a text can run at all, and the waiting line of one tick: `ask` puts arrivals
in, `advance` takes them out one by one.
Nothing waits here from one tick to the next: who finds no slot is refused, or an older text goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.request import TextTask
from oxygen_ros.models.interface import Model


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that has no slot yet; with `share` it already holds its frame."""

    id: int
    task: TextTask
    frame: Frame
    prompt: tuple[int, ...]
    adapter: int
    tick_asked: int
    asked_at: float


class Arrivals:
    """Arrivals of one tick; answers leave first, then in the order they came."""

    def __init__(self) -> None:
        self._waiting: list[Arrival] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, arrival: Arrival) -> None:
        self._waiting.append(arrival)

    def remove(self, arrival: Arrival) -> None:
        """Take out who was given a slot or refused; an error before that leaves it in the line."""
        self._waiting.remove(arrival)

    def in_order(self) -> list[Arrival]:
        """Everyone in the line, in the order of admission: a person who asked comes first."""
        return sorted(self._waiting, key=lambda arrival: (arrival.task.kind != "answer", arrival.id))

    def __iter__(self) -> Iterator[Arrival]:
        return iter(self._waiting)


def prepare_prompt(task: TextTask, model: Model, suffix_tokens: int) -> tuple[tuple[int, ...], int]:
    """Prompt tokens of a task, and the id of its adapter: 0 for none, else its place among the loaded + 1.

    suffix_tokens: what one suffix slot holds. Raises ValueError when the task can never run.
    """
    prompt = tuple(model.tokenize(task.prompt))
    room = suffix_tokens - task.max_tokens
    if not prompt:
        raise ValueError(
            f'{task.kind}: the prompt suffix "{task.prompt}" has no token; a text needs one to start'
        )
    if len(prompt) > room:
        raise ValueError(
            f"{task.kind}: the prompt suffix has {len(prompt)} tokens, its slot has room for {room}"
        )
    if not task.adapter:
        return prompt, 0
    if task.adapter not in model.adapters:
        loaded = ", ".join(model.adapters) or "none"
        raise ValueError(f'{task.kind}: text adapter "{task.adapter}" is not loaded (loaded: {loaded})')
    return prompt, model.adapters.index(task.adapter) + 1
