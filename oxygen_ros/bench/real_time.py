# SPDX-License-Identifier: Apache-2.0
"""Ticks in real time under bursts and Poisson arrivals: how many start late, why, and how much text is done.

`oxygen_bench --deadline`. A tick is late when it starts more than a tenth of the period after it was due, and
so is every period that was missed wholly. Runs alternate in blocks of ticks, so that other load on
the machine affects all of them. One run only acts: its lateness is that of this machine without any text.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen_ros.bench.components import Components
from oxygen_ros.bench.engine_run import EngineRun
from oxygen_ros.bench.setup import BenchShared
from oxygen_ros.bench.timing import Progress, no_garbage_collection, spread
from oxygen_ros.bench.workload import MAX_ROWS, draw_schedule
from oxygen_ros.engine import Budget, FinishedText, FinishReason
from oxygen_ros.models.interface import Capacity

LATE = 0.1  # of the period
# None: the robot only acts, no text is asked for.
BUDGETS = (None, "deadline", "fixed")
# Ticks of one run in a row.
BLOCK = 100
# What delayed the tick before; "waking": nothing, the machine woke late from sleep.
CAUSES = ("acting", "text", "garbage", "waking")
# Not counted: the engine measures its decode steps.
WARM_UP = 100
# Ticks whose slowest sets the period.
_PERIOD_TICKS = 300
# A text that has not ended after so many times its shortest life expires.
_PATIENCE = 4
# No collection starts with less time left [s]: it mostly takes well below a millisecond.
_TIME_FOR_GARBAGE = 0.01


@dataclass(slots=True)
class RealTimeRun:
    """One pattern of arrivals under one kind of budget.

    budget:    None: the robot only acts
    lateness:  of each started tick, seconds after it was due
    live:      texts under way after it
    missed:    periods in which no tick started
    causes:    of `CAUSES`, late ticks and missed periods
    """

    arrivals: str
    budget: str | None
    period: float
    lateness: list[float] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    missed: int = 0
    causes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(CAUSES, 0))
    texts: list[FinishedText] = field(default_factory=list)

    def start(self, late: float, missed: int, cause: str) -> None:
        """A tick starts `late` [s] after it was due, after `missed` periods without one."""
        self.lateness.append(late)
        self.missed += missed
        self.causes[cause] += missed + (late > LATE * self.period)

    def figures(self) -> dict[str, Any]:
        """The JSON's entry; empty before the first counted tick."""
        if not self.lateness:
            return {}
        ticks = len(self.lateness) + self.missed
        late = sum(self.causes.values())
        ended = [text for text in self.texts if text.finish_reason.is_complete]
        reasons = [text.finish_reason for text in self.texts]
        return {
            "arrivals": self.arrivals,
            "budget": self.budget,
            "period_ms": self.period * 1e3,
            "ticks": ticks,
            "late": late,
            "late_share": late / ticks,
            "missed": self.missed,
            "causes": self.causes,
            "lateness_ms": spread(self.lateness),
            "steps_per_tick": sum(self.steps) / len(self.steps),
            "most_in_flight": max(self.live),
            "texts": len(ended),
            "tokens": sum(len(text.tokens) for text in ended),
            "refused": reasons.count(FinishReason.REJECTED),
            "expired": reasons.count(FinishReason.AGE),
            "request_to_text_ms": float(np.median([text.seconds for text in ended])) * 1e3 if ended else None,
        }


def find_period(shared: BenchShared, dtype: str, progress: Progress) -> float:
    """A period [s] that acting alone keeps here: a quarter more than the slowest of some ticks.

    They are spaced like the measured ones: after a rest a tick may take longer.
    """
    components = Components(shared.model(dtype), Capacity(2, 1, 1, 1), shared.scene.at(0))
    seconds: list[float] = []
    with no_garbage_collection():
        for tick in range(_PERIOD_TICKS):
            progress(f"what acting takes: tick {tick} of {_PERIOD_TICKS}")
            started = time.monotonic()
            components.prefill()
            components.denoise()
            seconds.append(time.monotonic() - started)
            time.sleep(seconds[-1])
    return 1.25 * max(seconds)


def measure_real_time(
    shared: BenchShared, runs: Sequence[RealTimeRun], margin: float, progress: Progress
) -> None:
    """Tick in real time, in turns; `runs` have the figures, also when this is stopped."""
    engines = [_RealTimeEngine(shared, run, margin) for run in runs]
    total = WARM_UP + shared.setup.ticks
    with no_garbage_collection():
        for first in range(0, total, BLOCK):
            for one in engines:
                progress(f"{one.seen.arrivals}, {one.seen.budget or 'acting only'}: tick {first} of {total}")
                one.work(range(first, min(first + BLOCK, total)))
    for one in engines:
        one.run.engine.check_integrity()


class _RealTimeEngine:
    """An engine that ticks in real time in its turns; its clock stops in between."""

    def __init__(self, shared: BenchShared, seen: RealTimeRun, margin: float) -> None:
        setup, k = shared.setup, shared.setup.k[0]
        self.seen = seen
        self._schedule = draw_schedule(
            seen.arrivals, WARM_UP + setup.ticks, setup.n[0], setup.requests,
            burst_every=setup.burst_every, seed=setup.seed,
        )  # fmt: skip
        slots = _plan_slots(self._schedule, k, setup.suffix_tokens)
        budget = Budget(steps=k, rows=MAX_ROWS, mode=seen.budget or "fixed", margin=margin)
        self.run = EngineRun(
            shared, setup.dtypes[0], "oxygen" if seen.budget else None, slots, budget,
            patience=_PATIENCE, clock=time.monotonic, seed=setup.seed,
        )  # fmt: skip
        self._due = seen.period
        self._cause = "waking"

    def work(self, ticks: range) -> None:
        """One turn."""
        with self.run.clock.running():
            for tick in ticks:
                self._tick(tick)

    def _tick(self, tick: int) -> None:
        run, seen, now = self.run, self.seen, self.run.clock
        time.sleep(max(0.0, self._due - now()))
        late = now() - self._due
        missed = int(late / seen.period)
        self._due += (missed + 1) * seen.period
        started = now()
        sample = run.tick_until(self._due, tick, self._schedule[tick])
        ended = now()
        if tick >= WARM_UP:
            seen.start(late - missed * seen.period, missed, self._cause)
            seen.live.append(sample.live)
            seen.steps.append(run.engine.phases.used_steps)
            seen.texts += sample.ended
        run.forget_outputs()
        if self._due - ended > _TIME_FOR_GARBAGE:
            gc.collect()
        ends = {"acting": started + sample.action, "text": ended, "garbage": now()}
        self._cause = next((what for what, at in ends.items() if at > self._due), "waking")


def _plan_slots(schedule: Sequence[Sequence[int]], k: int, suffix: int) -> Capacity:
    """Slots as if every tick granted k steps, up to the rows of one step; more texts are refused."""
    flying = [0] * len(schedule)
    for tick, asked in enumerate(schedule):
        for tokens in asked:
            for later in range(tick, min(tick + math.ceil(tokens / k), len(schedule))):
                flying[later] += 1
    longest = max((n for asked in schedule for n in asked), default=1)
    texts = min(max(*flying, 1), MAX_ROWS)
    return Capacity(min(texts, math.ceil(longest / k)) + 1, texts, suffix + longest, MAX_ROWS)
