# SPDX-License-Identifier: Apache-2.0
"""The components of a tick, each run alone: one prefill, one denoise loop, one decode step of R rows.

Single calls into a model with pools of its own, of the same size as those of the run they explain; and the
table of them at every row bucket beside their floors and the device's limits, measured once per dtype.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch

from oxygen_ros.bench.device import measure_limits
from oxygen_ros.bench.floors import Product, count_flops, make_run, weight_bytes
from oxygen_ros.bench.predict import Costs
from oxygen_ros.bench.setup import BenchShared
from oxygen_ros.bench.timing import Clock, make_wait, median, time_repeats
from oxygen_ros.bench.workload import MAX_ROWS, Shape
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.models.interface import ROW_BUCKETS, Capacity, Model, Rows
from oxygen_ros.models.loading import DTYPES
from oxygen_ros.observation import Observation

# A single step has cold caches, a tick's later steps have warm ones: the mean of several is taken.
_IN_A_ROW = 4


def fill_rows(rows: Rows, columns: Sequence[tuple[int, ...]], wanted: Sequence[int] | None = None) -> None:
    """Make a step of rows (token, position, prefix slot, suffix slot, place to write at).

    wanted: rows whose logits are wanted; default all
    """
    count = len(columns)
    wanted = range(count) if wanted is None else wanted
    rows.block[:5, :count] = torch.tensor(columns, dtype=torch.int64).T.to(rows.block.device)
    rows.adapter[:count] = 0
    rows.wants_logits[: len(wanted)] = torch.tensor(wanted)
    rows.count, rows.wanted = count, len(wanted)
    rows.longest = max(column[4] for column in columns) + 1
    rows.prefix_spans = _spans([column[2] for column in columns])
    rows.suffix_spans = _spans([column[3] for column in columns])


def _spans(slots: Sequence[int]) -> list[tuple[int, int, int]]:
    spans: list[tuple[int, int, int]] = []
    for row, slot in enumerate(slots):
        first = spans.pop()[1] if spans and spans[-1][0] == slot else row
        spans.append((slot, first, row + 1))
    return spans


def fill_steady_rows(
    rows: Rows, shape: Shape, position: int, *, texts: int, tokens: int
) -> list[tuple[int, int]]:
    """Rows as in a steady tick: one a text, oldest first; those beyond the texts are the newest one's prompt.

    position: of the first token after the prefix; texts: at most so many; tokens: of a suffix slot

    Returns (prefix slot, suffix slot) of each text.
    """
    count, prefixes = shape
    texts = max(min(count, texts), 1)
    extra, last = count - texts, tokens - 1
    columns = []
    for row in range(count):
        text = min(row, texts - 1)
        if row >= texts:
            place = row - texts + 1
        elif extra and text == texts - 1:
            place = 0
        else:  # a single text is in the middle of its life
            place = last // 2 if texts == 1 else last - text * last // texts
        columns.append((4, position + place, text * prefixes // texts, text, place))
    # Only the last row of a prompt needs logits.
    fill_rows(rows, columns, [*range(texts - 1), count - 1])
    return [column[2:4] for column in columns[:texts]]


class Components:
    """A model and its pools, filled with one observation; every method returns seconds.

    completion: seconds of `Model.complete` after the newest prefill
    """

    def __init__(
        self, model: Model, capacity: Capacity, observation: Observation, clock: Clock = time.perf_counter
    ) -> None:
        model.allocate(capacity)
        self.model = model
        self.capacity = capacity
        self.completion = 0.0
        self._clock = clock
        self._wait = make_wait(model.device)
        self._rows = Rows(capacity.max_rows, model.device)
        self._observation = observation
        inputs = model.process(observation)
        model.prepare(inputs)
        for slot in range(capacity.prefixes):
            self._prefix = model.encode(inputs, slot)
            model.complete(slot)

    def prefill(self) -> float:
        """What `Engine.observe` does with the model: host side and forward pass."""
        self._wait()
        started = self._clock()
        self.model.encode(self.model.process(self._observation), 0)
        self._wait()
        encoded = self._clock()
        self.model.complete(0)
        self._wait()
        self.completion = self._clock() - encoded
        return encoded - started

    def denoise(self) -> float:
        """What `Engine.act` does with the model, noise and the way back to robot units included."""
        expert = self.model.spec.experts[0]
        started = self._clock()
        noise = draw_noise(0, self._observation.stamp, (expert.horizon, expert.width))
        actions = self.model.denoise(0, torch.from_numpy(noise).to(self.model.device), None)
        self.model.unprocess(actions, self._observation)
        return self._clock() - started

    def decode(self, shape: Shape) -> float:
        """One decode step and the choice of its tokens; texts have ages spread over their length."""
        texts = fill_steady_rows(
            self._rows, shape, self._prefix.next_position,
            texts=self.capacity.suffixes, tokens=self.capacity.suffix_tokens,
        )  # fmt: skip
        for prefix, suffix in texts:
            self.model.fork(prefix, suffix)
        self._wait()
        started = self._clock()
        self.model.extend(self._rows).argmax(-1).tolist()
        return self._clock() - started

    def fits(self, shape: Shape) -> bool:
        rows, prefixes = shape
        return rows <= self.capacity.max_rows and prefixes <= self.capacity.prefixes


class ComponentSamples:
    """Seconds of each component over the rounds of a run; the median is the component's."""

    def __init__(self, components: Components, shapes: Iterable[Shape], *, whole: bool) -> None:
        """whole: prefill and denoise too, not only decode steps"""
        self.whole = whole
        self.decode: dict[Shape, list[float]] = {shape: [] for shape in shapes if components.fits(shape)}
        self._components = components
        self._calls: list[tuple[float, float, float]] = []  # prefill, denoise, completion

    def warm_up(self) -> None:
        """First calls are slower; they are not counted."""
        self.sample()
        self._calls.clear()
        for seconds in self.decode.values():
            seconds.clear()

    def sample(self) -> None:
        """Each component once; decode steps a few times in a row, as ticks have them, and their mean."""
        own = self._components
        if self.whole:
            prefill, denoise = own.prefill(), own.denoise()
            self._calls.append((prefill, denoise, own.completion))
        for shape, seconds in self.decode.items():
            seconds.append(sum(own.decode(shape) for _ in range(_IN_A_ROW)) / _IN_A_ROW)

    def costs(self, decode: dict[Shape, list[float]]) -> Costs:
        """Medians over the rounds, with the decode steps of pools of another size."""
        prefill, denoise, completion = map(median, zip(*self._calls, strict=True))
        return Costs(prefill, denoise, {shape: median(own) for shape, own in decode.items()}, completion)


def measure_components(shared: BenchShared, dtype: str, *, repeats: int = 3) -> tuple[dict[str, Any], Costs]:
    """The JSON's `components` entry of one dtype, and the costs a k is recommended from.

    Decode steps have one row a text, `requests` texts a prefix, as in steady ticks. Floors are null for a
    family that has none.
    """
    setup, scene, clock = shared.setup, shared.scene, shared.clock
    per_prefix = setup.requests
    prefixes = max(2, -(-MAX_ROWS // per_prefix))
    capacity = Capacity(prefixes, MAX_ROWS, setup.suffix_tokens + max(setup.n), MAX_ROWS)
    components = Components(shared.model(dtype), capacity, scene.at(0), clock)

    def typical(work: Callable[[], float]) -> float:
        work()  # the first call is slower
        return median([work() for _ in range(repeats)])

    shapes = {rows: (rows, max(1, rows // per_prefix)) for rows in ROW_BUCKETS}
    costs = Costs(
        typical(components.prefill),
        typical(components.denoise),
        {shape: typical(partial(components.decode, shape)) for shape in shapes.values()},
        components.completion,
    )
    limits = measure_limits(shared.device, DTYPES[dtype], clock)
    floors = shared.preset.floors(shared.weights[dtype], scene.prefix_tokens)

    def part(seconds: float, products: Sequence[Product] | None) -> dict[str, float | None]:
        if products is None:
            names = ("linear_layers_ms", "over_linear_layers", "fraction_of_gemm", "fraction_of_bandwidth")
            return {"ms": seconds * 1e3, **dict.fromkeys(names)}
        with torch.inference_mode():
            floor = median(time_repeats(make_run(products), make_wait(shared.device), clock, repeats))
        return {
            "ms": seconds * 1e3,
            "linear_layers_ms": floor * 1e3,
            "over_linear_layers": seconds / floor,
            "fraction_of_gemm": count_flops(products) / seconds / limits["gemm_flops_per_s"],
            "fraction_of_bandwidth": weight_bytes(products) / seconds / limits["read_bytes_per_s"],
        }

    return {
        "dtype": dtype,
        "limits": limits,
        "prefix_tokens": scene.prefix_tokens,
        "prefill": part(costs.prefill, floors.prefill if floors else None),
        "denoise": part(costs.denoise, floors.denoise if floors else None),
        "decode": {
            str(rows): part(costs.decode[shape], floors.decode(rows) if floors else None)
            for rows, shape in shapes.items()
        },
    }, costs
