# SPDX-License-Identifier: Apache-2.0
"""One engine in one mode, ticked in turn with others; its clock stops while they run."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.bench.preset import Scene, suffix_of
from oxygen_ros.bench.setup import BenchShared
from oxygen_ros.bench.timing import CallTimer, Clock, PausableClock
from oxygen_ros.engine import Budget, FinishedText, TextTask, make_engine
from oxygen_ros.models.interface import Capacity
from oxygen_ros.observation import Observation


@dataclass(frozen=True, slots=True)
class TickSample:
    """One tick, in seconds.

    total:    from the observation to the end of its text
    action:   from the observation to the chunk
    outside:  of `total`, what was spent outside model calls (on a GPU: unless the calls wait, also waiting)
    live:     texts under way after it
    ended:    texts that ended in it, refused and expired ones included
    """

    total: float
    action: float
    outside: float
    live: int
    ended: Sequence[FinishedText]


class EngineRun:
    """A mode with its engine, a model with pools of its own, and their outputs. One thread owns it.

    remark:    why passes are slower than necessary, else ""
    chunks:    by tick number
    texts:     tokens by (tick number, place among that tick's requests)
    finished:  texts that came to their end or token limit
    """

    def __init__(
        self, shared: BenchShared, dtype: str, mode: str | None, capacity: Capacity, budget: Budget, *,
        scene: Scene | None = None, prepared: bool = True, acts: bool = True, patience: int = 0,
        clock: Clock | None = None, **options: Any,
    ) -> None:  # fmt: skip
        """mode:   one of MODES; None: it only acts, nothing is asked
        scene:     the observations; default the shared one
        prepared:  whether the model is prepared for them
        acts:      whether a chunk is made in each tick
        patience:  a text expires after so many times its shortest life; 0: never
        clock:     default the shared one
        options:   of the engine
        """
        self.mode, self.budget = mode, budget
        self.scene = scene or shared.scene
        self.clock = PausableClock(clock or shared.clock)
        model = shared.model(dtype)
        self.timer = CallTimer(model, self.clock.base)
        self.engine = make_engine(mode or "oxygen", model, capacity, clock=self.clock, **options)
        self.remark = model.prepare(model.process(self.scene.at(0))) if prepared else ""
        self.chunks: dict[int, NDArray[np.float64]] = {}
        self.texts: dict[tuple[int, int], tuple[int, ...]] = {}
        self.finished: list[FinishedText] = []
        self._acts, self._patience = acts, patience
        self._prompt = suffix_of(shared.setup.suffix_tokens)
        self._tasks: dict[int, TextTask] = {}
        self._asked: dict[int, tuple[int, int]] = {}

    def tick(self, number: int, asked: Sequence[int]) -> TickSample:
        """Observe, act, ask for texts of `asked` tokens, advance."""
        observation, tasks = self.scene.at(number), self._make_tasks(asked)
        with self.clock.running():
            return self._tick(number, observation, tasks, None)

    def tick_until(self, due: float, number: int, asked: Sequence[int]) -> TickSample:
        """A tick in real time, its clock running: text stops for the next tick, which is `due` [s]."""
        return self._tick(number, self.scene.at(number), self._make_tasks(asked), due)

    def trace(self, number: int, asked: Sequence[int]) -> list[tuple[str, float, float]]:
        """One more tick with waiting calls; (call, start, end) in seconds from its beginning."""
        self.timer.waits = True
        began = self.clock.base()
        self.tick(number, asked)
        self.timer.waits = False
        return [(name, start - began, end - began) for name, start, end in self.timer.calls]

    def drain(self) -> None:
        """Run the texts under way to their ends, so that they can be compared."""
        budget = Budget(steps=1, rows=self.budget.rows)
        with self.clock.running():
            while self.budget.steps > 0 and self.engine.live:
                self._keep(self.engine.advance(budget))
        self.engine.check_integrity()

    def forget_outputs(self) -> None:
        """For a run whose outputs are not compared."""
        for outputs in (self.chunks, self.texts, self.finished):
            outputs.clear()

    def _make_tasks(self, asked: Sequence[int]) -> list[TextTask]:
        if self.mode is None:
            return []
        for tokens in asked:
            if tokens not in self._tasks:
                age = self._patience * -(-tokens // max(self.budget.steps, 1))
                self._tasks[tokens] = TextTask(
                    kind="bench", prompt=self._prompt, max_tokens=tokens, max_age=age
                )
        return [self._tasks[tokens] for tokens in asked]

    def _tick(
        self, number: int, observation: Observation, tasks: Sequence[TextTask], due: float | None
    ) -> TickSample:
        engine, clock = self.engine, self.clock
        self.timer.calls.clear()
        started = clock()
        with engine.observe(observation) as encoded:
            if self._acts:
                self.chunks[number] = engine.act(encoded)
            acted = clock()
            ids = [engine.ask(encoded, task) for task in tasks]
        ended = engine.advance(self.budget, due) if self.mode else []
        total = clock() - started
        self._asked.update((request, (number, place)) for place, request in enumerate(ids))
        self._keep(ended)
        return TickSample(total, acted - started, total - self.timer.seconds, engine.live, ended)

    def _keep(self, ended: Iterable[FinishedText]) -> None:
        for text in ended:
            place = self._asked.pop(text.id)
            if text.finish_reason.is_complete:
                self.texts[place] = text.tokens
                self.finished.append(text)


def tokens_per_step(texts: Sequence[FinishedText]) -> float | None:
    """Tokens of texts over the decode steps that they took part in; None without texts."""
    steps = sum(text.steps for text in texts)
    return sum(len(text.tokens) for text in texts) / steps if steps else None
