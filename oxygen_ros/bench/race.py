# SPDX-License-Identifier: Apache-2.0
"""Works that run in turn, so that whatever slows the machine slows them alike; and two ways to do one.

Here lives the taking of times for comparisons of single calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import torch

from oxygen_ros.bench.lane import synchroniser

Work = Callable[[], object]


class Race:
    """Named works and their seconds, round by round.

    On a CPU with one torch thread the seconds are those the thread computed: what other programs take does
    not count. Else they are those of the clock on the wall.
    """

    def __init__(self, device: torch.device) -> None:
        self._wait = synchroniser(device)
        alone = device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.thread_time if alone else time.perf_counter
        self.clock = "thread" if alone else "wall"
        self._works: dict[str, Work] = {}
        self._seconds: dict[str, list[float]] = {}

    def add(self, name: str, work: Work) -> None:
        self._works[name] = work
        self._seconds[name] = []

    @torch.inference_mode()
    def run(self, rounds: int, beat: Callable[[str], None] = lambda _: None) -> None:
        """One round that is not counted, then `rounds`, forwards and backwards in turn."""
        for number in range(-1, rounds):
            beat(f"round {number + 1} of {rounds}")
            names = list(self._works)
            for name in names if number % 2 else reversed(names):
                self._wait()
                started = self._clock()
                self._works[name]()
                self._wait()
                if number >= 0:
                    self._seconds[name].append(self._clock() - started)

    def ms(self, name: str) -> float:
        """The median [ms]."""
        seconds = sorted(self._seconds[name])
        return seconds[len(seconds) // 2] * 1e3

    def ratio(self, name: str, other: str) -> float:
        """The median over the rounds of one work's time over another's."""
        pairs = zip(self._seconds[name], self._seconds[other], strict=True)
        ratios = sorted(a / b for a, b in pairs)
        return ratios[len(ratios) // 2]

    def sums(self, groups: Mapping[str, tuple[str, ...]]) -> None:
        """Works made of others: their seconds are added round by round."""
        for name, parts in groups.items():
            self._seconds[name] = [sum(row) for row in zip(*(self._seconds[p] for p in parts), strict=True)]
