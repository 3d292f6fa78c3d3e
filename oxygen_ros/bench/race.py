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
        self._seconds: list[dict[str, float]] = []  # of each complete round

    def add(self, name: str, work: Work) -> None:
        self._works[name] = work

    @torch.inference_mode()
    def run(self, rounds: int, beat: Callable[[str], None] = lambda _: None) -> None:
        """One round that is not counted, then `rounds`, forwards and backwards in turn.

        Interrupted, it keeps the rounds that were complete.
        """
        for number in range(-1, rounds):
            beat(f"round {number + 1} of {rounds}")
            names = list(self._works)
            seconds: dict[str, float] = {}
            for name in names if number % 2 else reversed(names):
                self._wait()
                started = self._clock()
                self._works[name]()
                self._wait()
                seconds[name] = self._clock() - started
            if number >= 0:
                self._seconds.append(seconds)

    @property
    def rounds(self) -> int:
        """Complete ones."""
        return len(self._seconds)

    def ms(self, name: str) -> float:
        """The median [ms]."""
        seconds = sorted(row[name] for row in self._seconds)
        return seconds[len(seconds) // 2] * 1e3

    def ratio(self, name: str, other: str) -> float:
        """The median over the rounds of one work's time over another's."""
        ratios = sorted(row[name] / row[other] for row in self._seconds)
        return ratios[len(ratios) // 2]

    def sums(self, groups: Mapping[str, tuple[str, ...]]) -> None:
        """Works made of others: their seconds are added round by round."""
        for name, parts in groups.items():
            for row in self._seconds:
                row[name] = sum(row[part] for part in parts)
