# SPDX-License-Identifier: Apache-2.0
"""Which texts are asked for when, and the exact work of each mode.

Plans are arithmetic, checked against the engine's own counters after every run.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.models.interface import ROW_BUCKETS, Capacity

ARRIVALS = ("one", "bursts", "poisson", "random")
MAX_ROWS = ROW_BUCKETS[-1]

Shape = tuple[int, int]  # rows of one decode step, prefixes they read


@dataclass(frozen=True, slots=True)
class TickPlan:
    """The model's work in one tick besides the one denoise loop.

    completions:  prefixes that texts are asked about, see `Model.complete`
    """

    prefills: int
    steps: tuple[Shape, ...]
    completions: int = 0

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.steps)


@dataclass(frozen=True, slots=True)
class WorkPlan:
    """What a mode does with a schedule: tick by tick, and the most slots it takes."""

    ticks: tuple[TickPlan, ...]
    capacity: Capacity


def draw_schedule(
    arrivals: str, ticks: int, n: int, requests: int, *, burst_every: int = 10, seed: int = 0
) -> list[list[int]]:
    """Token limits of the texts asked for at each tick; on average `requests` texts of `n` tokens.

    one:      the same every tick
    bursts:   nothing for `burst_every` - 1 ticks, then all of theirs together
    poisson:  independent numbers with that mean
    random:   lengths drawn evenly from 1 .. 2n - 1
    """
    chance = np.random.default_rng(seed)
    if arrivals == "one":
        return [[n] * requests for _ in range(ticks)]
    if arrivals == "bursts":
        return [[n] * (requests * burst_every if t % burst_every == 0 else 0) for t in range(ticks)]
    if arrivals == "poisson":
        return [[n] * int(count) for count in chance.poisson(requests, ticks)]
    if arrivals == "random":
        return [chance.integers(1, 2 * n, requests).tolist() for _ in range(ticks)]
    raise ValueError(f'arrivals must be one of {", ".join(ARRIVALS)}, got "{arrivals}"')


def make_plan(
    mode: str, schedule: Sequence[Sequence[int]], k: int, suffix: int, *, draft: int = 0
) -> WorkPlan:
    """The work of `mode` over a schedule with k decode steps a tick and prompt suffixes of `suffix` tokens.

    Raises ValueError when more is in flight at once than one decode step has rows for.
    """
    share, batch = mode in ("shared", "oxygen"), mode in ("batched", "oxygen")
    longest = suffix + max((n for asked in schedule for n in asked), default=1) + draft
    if not batch:
        each = [[step for n in asked for step in ((suffix, 1), *[(1, 1)] * (n - 1))] for asked in schedule]
        ticks = [_plan_tick(share, len(asked), steps) for asked, steps in zip(schedule, each, strict=True)]
        return WorkPlan(tuple(ticks), Capacity(2, 1, longest, MAX_ROWS))
    return _plan_batched(share, schedule, k, suffix, longest)


def _plan_batched(
    share: bool, schedule: Sequence[Sequence[int]], k: int, suffix: int, longest: int
) -> WorkPlan:
    # Without decode steps nothing ends: slots for the texts of one tick; later ones are refused.
    slots = max(map(len, schedule), default=1) if k == 0 else None
    live: list[list[int]] = []  # [tick asked, tokens left, rows of its next step]
    peak_requests = peak_prefixes = 1
    ticks = []
    for tick, asked in enumerate(schedule):
        admitted = asked if slots is None else asked[: slots - len(live)]
        live += [[tick, n, suffix] for n in admitted]
        peak_requests = max(peak_requests, len(live))
        peak_prefixes = max(peak_prefixes, len({at for at, _, _ in live}) if share else len(live))
        steps = []
        for _ in range(k):
            running = [request for request in live if request[1] > 0]
            if not running:
                break
            rows = sum(request[2] for request in running)
            if rows > MAX_ROWS:
                newest = sum(request[2] for request in running if request[0] == tick)
                cure = (
                    f"ask for {MAX_ROWS // suffix} at once or fewer (requests, burst-every), or lower the "
                    "prompt suffix"
                    if newest > MAX_ROWS
                    else f"raise k above {k}, or lower N, requests per tick or the prompt suffix"
                )
                raise ValueError(
                    f"{len(running)} texts in flight need {rows} rows in one decode step (their newest ones "
                    f"{suffix} each), and a step has {MAX_ROWS} at most: {cure}"
                )
            steps.append((rows, len({at for at, _, _ in running}) if share else len(running)))
            for request in running:
                request[1:] = [request[1] - 1, 1]
        live = [request for request in live if request[1] > 0]
        ticks.append(_plan_tick(share, len(admitted), steps))
    return WorkPlan(tuple(ticks), Capacity(peak_prefixes + 1, peak_requests, longest, MAX_ROWS))


def _plan_tick(share: bool, asked: int, steps: Sequence[Shape]) -> TickPlan:
    if share:
        return TickPlan(1, tuple(steps), min(asked, 1))
    return TickPlan(1 + asked, tuple(steps), asked)


def fill_ticks(n: int, k: int, arrivals: str = "one", burst_every: int = 10) -> int:
    """Ticks until as many texts end as begin: the life of the longest, and one whole pattern of arrivals."""
    longest = 2 * n - 1 if arrivals == "random" else n
    life = math.ceil(longest / k) if k else 1
    return life + (burst_every if arrivals == "bursts" else 0)
