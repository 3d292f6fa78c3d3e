# SPDX-License-Identifier: Apache-2.0
"""What the engine is compared with: the same model and the same outputs, scheduled differently.

isolated   each text encodes the observation for itself and runs to its end inside its tick
shared     texts read the prefix that the actions read, but run to their ends inside the tick
batched    texts advance together across ticks, but each has a prefix of its own
oxygen     the engine: one prefix for all, texts together across ticks
"""

from __future__ import annotations

from typing import Any, ClassVar

from oxygen_ros.engine.budget import Budget, Meter
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.request import RequestState, TextRequest
from oxygen_ros.models.interface import Capacity, Model


class BatchedEngine(Engine):
    """Each text has a prefix of its own, made when it is admitted."""

    mode: ClassVar[str] = "batched"

    def _hold(self, request: TextRequest) -> None:
        return None  # the observation is enough: it is encoded again

    def _has_room(self, request: TextRequest) -> bool:
        live = len(self._scheduler.live)
        # One prefix slot stays for the next observation.
        return self.suffixes.free > 0 and self.prefixes.free > 0 and live + 1 < self.prefixes.size

    def _start(self, request: TextRequest) -> None:
        observation = request.encoded.observation
        request.encoded = self._encode(observation, self.model.process(observation))
        request.encoded.is_open = False  # no `with` block holds it: the request's end frees it
        request.holds = True
        super()._start(request)


class SharedEngine(Engine):
    """Texts run one after the other, each to its end, whatever the budget."""

    mode: ClassVar[str] = "shared"
    batches: ClassVar[bool] = False

    def _advance(self, budget: Budget, due: float | None) -> None:
        unbounded = Meter(Budget(), None, self.costs, self.clock)
        asked = sorted(self._waiting, key=lambda request: (-request.task.priority, request.id))
        for request in (*self._scheduler.live, *asked):  # live ones only after an error
            if request.state is RequestState.WAITING:
                self._start(request)
            if not request.is_forked:
                self._fork(request, unbounded)
            while plan := self._plan(budget, only=request):
                self._step(plan, max(budget.steps, 1), lambda _: True)
            self._retire()


class IsolatedEngine(SharedEngine, BatchedEngine):
    """Neither shared nor batched: `_advance` is SharedEngine's, its `_start` BatchedEngine's."""

    mode: ClassVar[str] = "isolated"


_ENGINES: dict[str, type[Engine]] = {
    engine.mode: engine for engine in (IsolatedEngine, SharedEngine, BatchedEngine, Engine)
}
MODES = tuple(_ENGINES)


def make_engine(mode: str, model: Model, capacity: Capacity, **options: Any) -> Engine:
    """The engine of a mode; options as in `Engine`. Raises ValueError for an unknown mode."""
    if mode not in _ENGINES:
        raise ValueError(f'mode must be one of {", ".join(MODES)}, got "{mode}"')
    return _ENGINES[mode](model, capacity, **options)
