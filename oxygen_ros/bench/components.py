# SPDX-License-Identifier: Apache-2.0
"""The components of a tick, each run alone: one prefill, one denoise loop, one decode step of R rows.

Here live single calls into a model with pools of its own, of the same size as those of the lane they
explain. `floor` has the linear layers alone; what follows from the times is `predict`.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch

from oxygen_ros.bench.lane import Clock, synchroniser
from oxygen_ros.bench.workload import Shape
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.models.interface import Capacity, Model, Rows
from oxygen_ros.observation import Observation

# A lone step finds caches cold that a tick's later steps find warm; a mean evens out what one step meets.
_IN_A_ROW = 4


class Components:
    """A model and its pools, filled with one observation; every method returns seconds."""

    def __init__(
        self, model: Model, capacity: Capacity, observation: Observation, clock: Clock = time.perf_counter
    ) -> None:
        model.allocate(capacity)
        self.model = model
        self._clock = clock
        self.capacity = capacity
        self._wait = synchroniser(model.device)
        self._rows = Rows(capacity.max_rows, model.device)
        self._observation = observation
        inputs = model.process(observation)
        model.record(inputs)
        for slot in range(capacity.frames):
            self._prefix = model.encode(inputs, slot)

    def prefill(self) -> float:
        """What `Engine.observe` does with the model: host side and forward pass."""
        self._wait()
        started = self._clock()
        self.model.encode(self.model.process(self._observation), 0)
        self._wait()
        return self._clock() - started

    def denoise(self) -> float:
        """What `Engine.act` does with the model, noise and the way back to robot units included."""
        spec = self.model.spec
        started = self._clock()
        noise = draw_noise(0, self._observation.stamp, (spec.horizon, spec.action_dim))
        actions = self.model.denoise(0, torch.from_numpy(noise).to(self.model.device), None)
        self.model.unprocess(actions, self._observation)
        return self._clock() - started

    def decode(self, shape: Shape) -> float:
        """One decode step and the choice of its tokens; texts stand at ages spread over their length."""
        self._fill(shape)
        self._wait()
        started = self._clock()
        self.model.extend(self._rows).argmax(-1).tolist()
        return self._clock() - started

    def fits(self, shape: Shape) -> bool:
        rows, frames = shape
        return rows <= self.capacity.max_rows and frames <= self.capacity.frames

    def _fill(self, shape: Shape) -> None:
        """Rows as in a steady tick: one a text, oldest first; those beyond the slots are the newest's."""
        count, frames = shape
        texts = max(min(count, self.capacity.suffixes), 1)
        extra = count - texts
        last = self.capacity.suffix_tokens - 1
        columns = []
        spans: list[tuple[int, int, int]] = []
        for row in range(count):
            text = min(row, texts - 1)
            frame = text * frames // texts
            if row >= texts:
                place = row - texts + 1
            elif extra and text == texts - 1:
                place = 0
            else:  # a lone text stands in the middle of its life
                place = last // 2 if texts == 1 else last - text * last // texts
            columns.append((4, self._prefix.next_position + place, frame, text, place, 0, row))
            if spans and spans[-1][0] == frame:
                spans[-1] = (frame, spans[-1][1], row + 1)
            else:
                spans.append((frame, row, row + 1))
        self._rows.block[:, :count] = torch.tensor(columns, dtype=torch.int64).T
        self._rows.count = self._rows.wanted = count
        if extra:  # only the last row of a prompt is answered
            self._rows.wanted = texts
            self._rows.wants_logits[texts - 1] = count - 1
        self._rows.longest = max(place for _, _, _, _, place, _, _ in columns) + 1
        self._rows.frame_spans = spans


class Samples:
    """Seconds of each component over the rounds of a run; the median is the component's."""

    def __init__(self, components: Components, shapes: Iterable[Shape], *, whole: bool) -> None:
        """whole: prefill and denoise too, not only decode steps"""
        self.components = components
        self.whole = whole
        self.prefill: list[float] = []
        self.denoise: list[float] = []
        self.decode: dict[Shape, list[float]] = {shape: [] for shape in shapes if components.fits(shape)}

    def warm_up(self) -> None:
        """First calls are slower; they are not counted."""
        self.sample()
        self.prefill.clear()
        self.denoise.clear()
        for seconds in self.decode.values():
            seconds.clear()

    def sample(self) -> None:
        """Each component once; decode steps a few times in a row, as ticks have them, and their mean."""
        if self.whole:
            self.prefill.append(self.components.prefill())
            self.denoise.append(self.components.denoise())
        for shape, seconds in self.decode.items():
            seconds.append(sum(self.components.decode(shape) for _ in range(_IN_A_ROW)) / _IN_A_ROW)
