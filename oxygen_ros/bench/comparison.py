# SPDX-License-Identifier: Apache-2.0
"""One N and k: all modes tick in turn over the same observations and requests, components between them.

    round:  action only | isolated | ... | oxygen | prefill alone | denoise alone | decode alone ...

A machine that slows down slows all of them; ratios are taken within a round. `results` evaluates the samples.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace

from oxygen_ros.bench.components import Components, ComponentSamples
from oxygen_ros.bench.engine_run import EngineRun, TickSample
from oxygen_ros.bench.predict import Costs
from oxygen_ros.bench.setup import BenchSetup, BenchShared
from oxygen_ros.bench.timing import Progress, no_garbage_collection
from oxygen_ros.bench.workload import Shape, WorkPlan, draw_schedule, fill_ticks, make_plan
from oxygen_ros.engine import Budget
from oxygen_ros.engine.counters import Counters
from oxygen_ros.models.interface import ROW_BUCKETS, Capacity

# Distinct shapes of decode steps that are measured each; with more, the row buckets are measured.
_MOST_SHAPES = 6
# Ticks that a mode without requests in flight needs before it is measured.
_FIRST_TICKS = 2
# Ticks after the measured ones, of which the plot shows the shortest.
_TRACES = 3


@dataclass(slots=True)
class MeasuredRun:
    """An engine's run with what was measured of it.

    mode:   None: the robot only acts
    draft:  tokens of a speculated draft, 0 for none
    """

    dtype: str
    mode: str | None
    draft: int
    plan: WorkPlan
    run: EngineRun
    peak_bytes: int
    first_live: int = 0
    before: Counters = field(default_factory=Counters)
    ticks: list[TickSample] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    timeline: list[tuple[str, float, float]] = field(default_factory=list)
    counted: Counters = field(default_factory=Counters)
    finished: int = 0


def plan_comparison(
    setup: BenchSetup, n: int, k: int, *, draft: int = 0
) -> tuple[list[list[int]], dict[tuple[str, int], WorkPlan]]:
    """What is asked for at each tick, and the work of each mode, without and with drafts.

    Raises ValueError when more is in flight at once than one decode step has rows for.
    """

    def plan(mode: str, d: int) -> WorkPlan:
        try:
            return make_plan(mode, schedule, k, setup.suffix_tokens, draft=d)
        except ValueError as error:
            raise ValueError(f"N {n}, k {k}, {mode}: {error}") from None

    schedule = draw_schedule(
        setup.arrivals, _warm_up_ticks(setup, n, k) + setup.ticks + _TRACES, n, setup.requests,
        burst_every=setup.burst_every, seed=setup.seed,
    )  # fmt: skip
    return schedule, {
        (mode, d): plan(mode, d) for mode in dict.fromkeys(("isolated", *setup.modes)) for d in {0, draft}
    }


class Comparison:
    """N tokens a text, k decode steps a tick, all modes of a setup."""

    def __init__(self, shared: BenchShared, n: int, k: int, *, draft: int = 0) -> None:
        """draft: besides the plain runs, the same ones with speculation, over a static scene"""
        self.shared = shared
        self.n, self.k = n, k
        self.draft = draft
        self._scene = shared.still_scene if draft else shared.scene
        self._warm = _warm_up_ticks(shared.setup, n, k)
        self._schedule, self._plans = plan_comparison(shared.setup, n, k, draft=draft)
        self.traced_texts = 0
        self.runs: list[MeasuredRun] = []
        self.samples: dict[tuple[str, Capacity], ComponentSamples] = {}
        self.rounds = 0
        self.complete = False

    def measured_ticks(self, plan: WorkPlan) -> WorkPlan:
        """The part of a plan that was measured."""
        return replace(plan, ticks=plan.ticks[self._warm : self._warm + self.rounds])

    def measure(self, progress: Progress) -> None:
        """Interrupted, it keeps the rounds that were complete."""
        name = f"N {self.n}, k {self.k}"
        self._make_runs(lambda words: progress(f"{name}: warming up {words}"))
        progress(f"{name}: components")
        self._make_samples()
        with no_garbage_collection():
            for index in range(self.shared.setup.ticks):
                progress(f"{name}: tick {index + 1} of {self.shared.setup.ticks}")
                self._round(index)
        progress(f"{name}: the last texts")
        for measured in self.runs:
            self._trace(measured)
            if self.k:
                measured.run.drain()
        self.complete = True

    def clear(self) -> None:
        """Free the pools for the next comparison."""
        self.runs.clear()
        self.samples.clear()

    def costs(self, measured: MeasuredRun) -> Costs:
        """The components that explain a run, medians over the rounds."""
        whole = next(s for (dtype, _), s in self.samples.items() if dtype == measured.dtype and s.whole)
        return whole.costs(self.samples[measured.dtype, measured.plan.capacity].decode)

    def find(self, dtype: str, mode: str | None, draft: int = 0) -> MeasuredRun:
        return next(m for m in self.runs if (m.dtype, m.mode, m.draft) == (dtype, mode, draft))

    # -- inside ------------------------------------------------------------------------------

    def _make_runs(self, progress: Progress) -> None:
        memory = self.shared.memory
        gc.collect()
        memory.reset()
        base = memory.held()
        plans: list[tuple[str | None, int, WorkPlan]] = [(None, 0, WorkPlan((), Capacity(2, 1, 1, 1)))]
        plans += [(mode, draft, plan) for (mode, draft), plan in self._plans.items()]
        for dtype in self.shared.weights:
            for mode, draft, plan in plans:
                progress(f"{mode or 'action only'} in {dtype}")
                memory.reset()
                held = memory.held()
                budget = Budget(steps=self.k, rows=plan.capacity.max_rows)
                run = EngineRun(
                    self.shared, dtype, mode, plan.capacity, budget, scene=self._scene, draft=draft
                )
                in_flight = mode is not None and run.engine.batches
                for index in range(-self._warm if in_flight else -_FIRST_TICKS, 0):
                    run.tick(*self._inputs(index))
                # Without the memory of other runs.
                measured = MeasuredRun(dtype, mode, draft, plan, run, memory.peak() - (held - base))
                measured.first_live = run.engine.live
                measured.before = replace(run.engine.counters)
                run.finished.clear()
                self.runs.append(measured)

    def _inputs(self, index: int) -> tuple[int, list[int]]:
        """Arguments of a tick: its number, and token limits of the texts asked for."""
        return index, self._schedule[self._warm + index]

    def _make_samples(self) -> None:
        for dtype in self.shared.weights:
            shapes: dict[Capacity, dict[Shape, None]] = {}
            for measured in self.runs:
                if measured.dtype == dtype and measured.draft == 0 and measured.mode:
                    wanted = dict.fromkeys(_shapes(measured.plan))
                    shapes.setdefault(measured.plan.capacity, {}).update(wanted)
            for number, (capacity, wanted) in enumerate(shapes.items()):
                model, first = self.shared.model(dtype), self._scene.at(0)
                components = Components(model, capacity, first, self.shared.clock)
                self.samples[dtype, capacity] = ComponentSamples(components, wanted, whole=number == 0)
        for samples in self.samples.values():
            samples.warm_up()

    def _round(self, index: int) -> None:
        # Forwards and backwards in turn: no run always follows the same other.
        order = self.runs if index % 2 == 0 else self.runs[::-1]
        seen: list[tuple[MeasuredRun, TickSample, float | None]] = []
        for measured in order:
            self.shared.energy.begin()
            sample = measured.run.tick(*self._inputs(index))
            seen.append((measured, sample, self.shared.energy.end(sample.total)))
        for samples in self.samples.values():
            samples.sample()
        for measured, sample, joules in seen:
            measured.ticks.append(sample)
            if joules is not None:
                measured.joules.append(joules)
            measured.counted = _since(measured.before, measured.run.engine.counters)
            measured.finished = len(measured.run.finished)
        self.rounds = index + 1
        gc.collect()

    def _trace(self, measured: MeasuredRun) -> None:
        """The tick of the plot: the shortest of those that ask for most."""
        ticks = [self._inputs(self.rounds + number) for number in range(_TRACES)]
        self.traced_texts = max(len(asked) for _, asked in ticks)
        traces = [(measured.run.trace(*inputs), len(inputs[1])) for inputs in ticks]
        measured.timeline = min(
            (calls for calls, asked in traces if asked == self.traced_texts), key=lambda calls: calls[-1][2]
        )


def _warm_up_ticks(setup: BenchSetup, n: int, k: int) -> int:
    return max(fill_ticks(n, k, setup.arrivals, setup.burst_every) + 1, _FIRST_TICKS)


def _shapes(plan: WorkPlan) -> Iterable[Shape]:
    """The shapes of a plan's decode steps, or row buckets up to the largest where there are too many."""
    distinct = list(dict.fromkeys(shape for tick in plan.ticks for shape in tick.steps))
    if len(distinct) <= _MOST_SHAPES:
        return distinct
    rows, prefixes = max(distinct)
    return [(b, max(1, round(b * prefixes / rows))) for b in (*[b for b in ROW_BUCKETS if b < rows], rows)]


def _since(before: Counters, now: Counters) -> Counters:
    return Counters(**{f.name: getattr(now, f.name) - getattr(before, f.name) for f in fields(Counters)})
