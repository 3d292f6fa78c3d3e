# SPDX-License-Identifier: Apache-2.0
"""One engine in one mode, ticked in turn with others; its clock stands still while they run.

Here lives a single tick and what was seen of it. Who ticks when is `cell`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.engine import MODES, Budget, Engine, FinishedText, TextTask
from oxygen_ros.models.interface import Capacity, Model
from oxygen_ros.observation import Observation

# The calls that are the model's; what a tick takes besides is the engine's own time.
_CALLS = ("process", "encode", "denoise", "unprocess", "extend", "fork", "detokenize")


Clock = Callable[[], float]


class LaneClock:
    """Seconds this lane has run: times of its texts are those of a robot that has the device for itself."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._before if self._since is None else self._before + self._clock() - self._since

    def run(self) -> None:
        self._since = self._clock()

    def stand(self) -> None:
        self._before = self()
        self._since = None


class CallTimer:
    """Times every call into one model object: the object's methods are replaced by timed ones.

    On a GPU a call returns before its work is done; with `waits` every call waits for it, which the
    timeline of one tick needs and measured ticks must not have.
    """

    def __init__(self, model: Model, clock: Clock) -> None:
        self._clock = clock
        self.waits = False
        self.calls: list[tuple[str, float, float]] = []
        self._wait = synchroniser(model.device)
        for name in _CALLS:
            setattr(model, name, self._timed(name, getattr(model, name)))

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = self._clock()
            result = call(*arguments, **named)
            if self.waits:
                self._wait()
            self.calls.append((name, started, self._clock()))
            return result

        return timed


def synchroniser(device: torch.device) -> Callable[[], None]:
    """What waits until the device has done all it was given."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


@dataclass(frozen=True, slots=True)
class TickSample:
    """One tick, in seconds.

    total:    from the observation to the end of its text
    action:   from the observation to the chunk
    outside:  of `total`, what was spent outside model calls (on a GPU: unless the calls wait, also waiting)
    live:     texts under way after it
    """

    total: float
    action: float
    outside: float
    live: int


@dataclass(slots=True)
class Heard:
    """What a lane put out: chunks by round, tokens by (round, place in that round's requests)."""

    chunks: dict[int, NDArray[np.float64]] = field(default_factory=dict)
    texts: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)


class Lane:
    """A mode with its engine. One thread owns it."""

    def __init__(
        self,
        mode: str | None,
        model: Model,
        capacity: Capacity,
        k: int,
        prompt: str,
        first: Observation,
        *,
        draft: int = 0,
        clock: Clock = time.perf_counter,
    ) -> None:
        """mode: one of MODES; None: the robot only acts, nothing is asked
        first: an observation like those to come, for what the model records on its device

        `remark` says why nothing could be recorded, "" when all is well.
        """
        self.mode = mode
        self._base_clock = clock
        self.clock = LaneClock(clock)
        self.timer = CallTimer(model, clock)
        share, batch = MODES[mode or "oxygen"]
        self.engine = Engine(model, capacity, share=share, batch=batch, draft=draft, clock=self.clock)
        self.remark = model.record(model.process(first))
        self.budget = Budget(steps=k, rows=capacity.max_rows)
        self.heard = Heard()
        self.finished: list[FinishedText] = []
        self._prompt = prompt
        self._asked: dict[int, tuple[int, int]] = {}

    def tick(self, number: int, observation: Observation, asked: Sequence[int]) -> TickSample:
        """Observe, act, ask for texts of `asked` tokens, advance."""
        engine = self.engine
        self.timer.calls.clear()
        tasks = [TextTask(kind="bench", prompt=self._prompt, max_tokens=n) for n in asked]
        if self.mode is None:
            tasks = []
        self.clock.run()
        started = self.clock()
        with engine.observe(observation) as frame:
            chunk = engine.act(frame)
            acted = self.clock()
            ids = [engine.ask(frame, task) for task in tasks]
        finished = engine.advance(self.budget)
        ended = self.clock()
        self.clock.stand()
        self.heard.chunks[number] = chunk
        self._asked.update((request, (number, place)) for place, request in enumerate(ids))
        self._hear(finished)
        inside = sum(end - start for _, start, end in self.timer.calls)
        return TickSample(ended - started, acted - started, ended - started - inside, engine.live)

    def trace(
        self, number: int, observation: Observation, asked: Sequence[int]
    ) -> list[tuple[str, float, float]]:
        """One more tick with waiting calls; (call, start, end) in seconds from its beginning."""
        self.timer.waits = True
        began = self._base_clock()
        self.tick(number, observation, asked)
        self.timer.waits = False
        return [(name, start - began, end - began) for name, start, end in self.timer.calls]

    def drain(self) -> None:
        """Run the texts under way to their ends, so that they can be compared."""
        self.clock.run()
        budget = Budget(steps=1, rows=self.budget.rows)
        while self.budget.steps > 0 and self.engine.live:
            self._hear(self.engine.advance(budget))
        self.clock.stand()
        self.engine.check_integrity()

    def _hear(self, finished: Sequence[FinishedText]) -> None:
        for text in finished:
            place = self._asked.pop(text.id)
            if text.finish_reason.is_complete:
                self.heard.texts[place] = text.tokens
                self.finished.append(text)
