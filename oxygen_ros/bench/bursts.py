# SPDX-License-Identifier: Apache-2.0
"""Ticks in real time under bursts and Poisson arrivals: how many start late, and what text gets done.

`oxygen_bench --deadline`. A tick is late when it starts more than a tenth of the period after it was due, and
so is every period that was missed wholly. Here lives the run; its table and picture are `bursts_report`.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from oxygen_ros.bench.cell import Beat, quiet
from oxygen_ros.bench.components import Components
from oxygen_ros.bench.robots import suffix_of
from oxygen_ros.bench.setup import Shared
from oxygen_ros.bench.workload import MAX_ROWS, draw_schedule
from oxygen_ros.engine import Budget, Engine, FinishedText, FinishReason, TextTask
from oxygen_ros.models.interface import Capacity

LATE = 0.1  # of the period
BUDGETS = ("deadline", "fixed")
# Paced like the others and not counted: the engine learns what its decode steps take.
WARM_UP = 100
# A text that has not ended after so many times its shortest life expires.
_PATIENCE = 4
# A collection over what one tick left takes well below this; none is begun with less time left [s].
_TIME_FOR_GARBAGE = 0.002


@dataclass(slots=True)
class BurstRun:
    """One pattern of arrivals under one kind of budget.

    lateness:  of each started tick, seconds after it was due
    live:      texts under way after it
    missed:    periods in which no tick started
    """

    arrivals: str
    budget: str
    period: float
    lateness: list[float] = field(default_factory=list)
    live: list[int] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    missed: int = 0
    texts: list[FinishedText] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """The JSON's entry; empty before the first counted tick."""
        if not self.lateness:
            return {}
        ticks = len(self.lateness) + self.missed
        late = sum(after > LATE * self.period for after in self.lateness) + self.missed
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
            "lateness_ms": {
                "p50": float(np.percentile(self.lateness, 50)) * 1e3,
                "p99": float(np.percentile(self.lateness, 99)) * 1e3,
                "max": max(self.lateness) * 1e3,
            },
            "steps_per_tick": sum(self.steps) / len(self.steps),
            "most_in_flight": max(self.live),
            "texts": len(ended),
            "tokens": sum(len(text.tokens) for text in ended),
            "refused": reasons.count(FinishReason.REJECTED),
            "expired": reasons.count(FinishReason.AGE),
            "request_to_text_ms": float(np.median([text.seconds for text in ended])) * 1e3 if ended else None,
        }


def find_period(shared: Shared, dtype: str) -> float:
    """Twice what acting takes here: half of each period is left for text."""
    components = Components(shared.model(dtype), Capacity(2, 1, 1, 1), shared.scene.at(0))
    seconds = [components.prefill() + components.denoise() for _ in range(9)]
    return 2 * sorted(seconds[1:])[4]


def run_bursts(
    shared: Shared, arrivals: str, budget: str, period: float, margin: float, run: BurstRun, beat: Beat
) -> None:
    """Tick in real time; `run` holds what was seen, also when this is stopped in between."""
    setup = shared.setup
    n, k = setup.n[0], max(setup.k[0], 1)
    schedule = draw_schedule(
        arrivals, WARM_UP + setup.ticks, n, setup.requests, burst_every=setup.burst_every, seed=setup.seed
    )
    model = shared.model(setup.dtypes[0])
    engine = Engine(model, _slots(schedule, n, k, setup.suffix_tokens), seed=setup.seed)
    model.record(model.process(shared.scene.at(0)))
    granted = Budget(steps=k, rows=MAX_ROWS, mode=budget, margin=margin)
    task = TextTask(
        kind="bench",
        prompt=suffix_of(setup.suffix_tokens),
        max_tokens=n,
        max_age=_PATIENCE * math.ceil(n / k),
    )
    with quiet():
        due = time.monotonic() + period
        for tick, asked in enumerate(schedule):
            if tick % 100 == 0:
                beat(f"{arrivals}, {budget}: tick {tick} of {len(schedule)}")
            time.sleep(max(0.0, due - time.monotonic()))
            started = time.monotonic()
            missed = int((started - due) / period)
            after = started - due - missed * period
            due += (missed + 1) * period
            with engine.observe(shared.scene.at(tick)) as frame:
                engine.act(frame)
                for _ in asked:
                    engine.ask(frame, task)
            texts = engine.advance(granted, due)
            if tick >= WARM_UP:
                run.missed += missed
                run.lateness.append(after)
                run.live.append(engine.live)
                run.steps.append(engine.phases.used_steps)
                run.texts += texts
            if due - time.monotonic() > _TIME_FOR_GARBAGE:
                gc.collect()
    engine.check_integrity()


def _slots(schedule: Sequence[Sequence[int]], n: int, k: int, suffix: int) -> Capacity:
    """Slots as if every tick granted k steps, up to the rows of one step: beyond, texts are refused."""
    life = math.ceil(n / k)
    flying = [sum(map(len, schedule[max(0, t - life + 1) : t + 1])) for t in range(len(schedule))]
    texts = min(max(flying), MAX_ROWS)
    return Capacity(min(texts, life) + 1, texts, suffix + n, MAX_ROWS)
