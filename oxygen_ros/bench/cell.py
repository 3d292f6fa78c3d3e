# SPDX-License-Identifier: Apache-2.0
"""One N and k: all modes tick in turn over the same observations and requests, components between them.

    round:  action only | isolated | ... | oxygen | prefill alone | denoise alone | decode alone ...

A machine that slows down slows all of them; ratios are taken within a round. Here lives the order of
things; what is made of the samples is `results`.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from oxygen_ros.bench.components import Components, Samples
from oxygen_ros.bench.lane import Lane, TickSample
from oxygen_ros.bench.predict import Costs
from oxygen_ros.bench.robots import Scene, suffix_of
from oxygen_ros.bench.setup import Setup, Shared
from oxygen_ros.bench.workload import Plan, Shape, draw_schedule, fill_ticks, make_plan
from oxygen_ros.engine.counters import Counters
from oxygen_ros.models.interface import ROW_BUCKETS, Capacity
from oxygen_ros.observation import Observation

# Distinct shapes of decode steps that are measured one by one; of more, the row buckets are.
_MOST_SHAPES = 6
# Ticks that a mode without requests in flight needs before it is measured.
_FIRST_TICKS = 2

# Ticks after the measured ones that the picture's is the shortest of.
_TRACES = 3

Beat = Callable[[str], None]
"""Told what is being done, for a progress bar."""


@dataclass(frozen=True, slots=True)
class LaneName:
    """mode None: the robot only acts; draft: tokens of a speculated draft, 0 for none"""

    dtype: str
    mode: str | None
    draft: int = 0


@dataclass(slots=True)
class Track:
    """A lane with what was measured of it."""

    name: LaneName
    plan: Plan
    lane: Lane
    peak_bytes: int = 0
    first_live: int = 0
    before: Counters = field(default_factory=Counters)
    ticks: list[TickSample] = field(default_factory=list)
    joules: list[float] = field(default_factory=list)
    timeline: list[tuple[str, float, float]] = field(default_factory=list)
    counted: Counters = field(default_factory=Counters)
    finished: int = 0


def plan_cell(
    setup: Setup, n: int, k: int, *, draft: int = 0
) -> tuple[list[list[int]], dict[tuple[str, int], Plan]]:
    """What is asked for at each tick, and the work of each mode, without and with drafts.

    Raises ValueError when more is in flight at once than one decode step has rows for.
    """

    def plan(mode: str, d: int) -> Plan:
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


class Cell:
    """N tokens a text, k decode steps a tick, all modes of a setup."""

    def __init__(self, shared: Shared, n: int, k: int, *, draft: int = 0) -> None:
        """draft: besides the plain lanes, the same ones with speculation, over a scene that stands still"""
        self.shared = shared
        self.n, self.k = n, k
        self.draft = draft
        setup = shared.setup
        self.scene: Scene = shared.still_scene if draft else shared.scene
        self._warm = _warm_up_ticks(setup, n, k)
        self._prompt = suffix_of(setup.suffix_tokens)
        self.schedule, self._plans = plan_cell(setup, n, k, draft=draft)
        self.traced_texts = 0
        self.tracks: list[Track] = []
        self.samples: dict[tuple[str, Capacity], Samples] = {}
        self.rounds = 0
        self.complete = False

    def measured_ticks(self, plan: Plan) -> Plan:
        """The part of a plan that was measured."""
        return Plan(plan.ticks[self._warm : self._warm + self.rounds], plan.capacity)

    def run(self, beat: Beat) -> None:
        """Measure. Interrupted, it keeps the rounds that were complete."""
        self._make_tracks(beat)
        self._make_samples(beat)
        with quiet():
            for index in range(self.shared.setup.ticks):
                beat(f"N {self.n}, k {self.k}: tick {index + 1} of {self.shared.setup.ticks}")
                self._round(index)
        beat(f"N {self.n}, k {self.k}: the last texts")
        for track in self.tracks:
            self._trace(track)
            if self.k:
                track.lane.drain()
        self.complete = True

    def _trace(self, track: Track) -> None:
        """The tick of the picture: of those that ask for most, the one that the machine disturbed least."""
        ticks = [self._inputs(self.rounds + number) for number in range(_TRACES)]
        self.traced_texts = max(len(asked) for _, _, asked in ticks)
        traces = [(track.lane.trace(*inputs), len(inputs[2])) for inputs in ticks]
        track.timeline = min(
            (calls for calls, asked in traces if asked == self.traced_texts), key=lambda calls: calls[-1][2]
        )

    def costs(self, track: Track) -> Costs:
        """The components that explain a track, medians over the rounds."""
        whole = next(s for (dtype, _), s in self.samples.items() if dtype == track.name.dtype and s.whole)
        own = self.samples[track.name.dtype, track.plan.capacity]
        return Costs(
            _median(whole.prefill),
            _median(whole.denoise),
            {shape: _median(seconds) for shape, seconds in own.decode.items()},
        )

    # -- inside ------------------------------------------------------------------------------

    def _make_tracks(self, beat: Beat) -> None:
        memory = self.shared.memory
        gc.collect()
        memory.reset()
        base = memory.held()
        for dtype in self.shared.networks:
            names = [LaneName(dtype, None)]
            names += [LaneName(dtype, mode, draft) for mode, draft in self._plans]
            for name in names:
                beat(f"N {self.n}, k {self.k}: warming up {name.mode or 'action only'} in {dtype}")
                memory.reset()
                held = memory.held()
                plan = self._plans[name.mode, name.draft] if name.mode else self._action_plan()
                lane = Lane(
                    name.mode, self.shared.model(dtype), plan.capacity, self.k, self._prompt,
                    self.scene.at(0), draft=name.draft, clock=self.shared.clock,
                )  # fmt: skip
                track = Track(name, plan, lane)
                in_flight = name.mode is not None and lane.engine.batch
                for index in range(-self._warm if in_flight else -_FIRST_TICKS, 0):
                    lane.tick(*self._inputs(index))
                # What other lanes hold is not this one's.
                track.peak_bytes = memory.peak() - (held - base)
                track.first_live = lane.engine.live
                track.before = _copy(lane.engine.counters)
                lane.finished.clear()
                self.tracks.append(track)

    def _action_plan(self) -> Plan:
        return Plan((), Capacity(2, 1, 1, 1))

    def _inputs(self, index: int) -> tuple[int, Observation, list[int]]:
        return index, self.scene.at(index), self.schedule[self._warm + index]

    def _make_samples(self, beat: Beat) -> None:
        beat(f"N {self.n}, k {self.k}: components")
        for dtype in self.shared.networks:
            shapes: dict[Capacity, dict[Shape, None]] = {}
            for track in self.tracks:
                if track.name.dtype == dtype and track.name.draft == 0 and track.name.mode:
                    shapes.setdefault(track.plan.capacity, {}).update(dict.fromkeys(_shapes(track.plan)))
            for capacity, wanted in shapes.items():
                components = Components(
                    self.shared.model(dtype), capacity, self.scene.at(0), self.shared.clock
                )
                first = not any(known == dtype for known, _ in self.samples)
                self.samples[dtype, capacity] = Samples(components, wanted, whole=first)
        for samples in self.samples.values():
            samples.warm_up()

    def _round(self, index: int) -> None:
        # Forwards and backwards in turn: no lane always runs in the wake of the same other.
        order = self.tracks if index % 2 == 0 else self.tracks[::-1]
        seen: list[tuple[Track, TickSample, float | None]] = []
        for track in order:
            self.shared.energy.begin()
            sample = track.lane.tick(*self._inputs(index))
            seen.append((track, sample, self.shared.energy.end(sample.total)))
        for samples in self.samples.values():
            samples.sample()
        for track, sample, joules in seen:
            track.ticks.append(sample)
            if joules is not None:
                track.joules.append(joules)
            track.counted = _since(track.before, track.lane.engine.counters)
            track.finished = len(track.lane.finished)
        self.rounds = index + 1
        gc.collect()


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage collection inside ticks, for every mode alike: whoever is in here collects between them."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


def _warm_up_ticks(setup: Setup, n: int, k: int) -> int:
    return max(fill_ticks(n, k, setup.arrivals, setup.burst_every) + 1, _FIRST_TICKS)


def _shapes(plan: Plan) -> list[Shape]:
    """The shapes of a plan's decode steps, or row buckets up to the largest where there are too many."""
    distinct = list(dict.fromkeys(shape for tick in plan.ticks for shape in tick.steps))
    if len(distinct) <= _MOST_SHAPES:
        return distinct
    rows, frames = max(distinct)
    return [(b, max(1, round(b * frames / rows))) for b in (*[b for b in ROW_BUCKETS if b < rows], rows)]


def _median(seconds: list[float]) -> float:
    return sorted(seconds)[len(seconds) // 2]


def _copy(counters: Counters) -> Counters:
    return _since(Counters(), counters)


def _since(before: Counters, now: Counters) -> Counters:
    return Counters(**{name: getattr(now, name) - getattr(before, name) for name in Counters.__slots__})
