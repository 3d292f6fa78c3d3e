# SPDX-License-Identifier: Apache-2.0
"""Simulated time against the wall clock. Plain arithmetic on times given from outside; no clock is read here.

The rule: physics is never skipped, pictures are. After something slow the owed physics steps are
caught up with, but never more than a short burst of them; what is beyond that is lost wall time,
which is counted, so that a machine that is too slow runs slower instead of falling ever further behind.
"""

from __future__ import annotations


class Pacer:
    """How many steps are owed at a moment of the monotonic clock."""

    def __init__(self, period: float, factor: float, burst: float) -> None:
        """`period` simulated seconds a step, `factor` of them in a wall second, `burst` wall seconds."""
        self._wall_period = period / factor
        self._burst = burst
        self._next: float | None = None
        self.lost = 0.0
        """Wall seconds given up because the machine was too slow, in all."""

    def owed(self, now: float) -> int:
        """Steps to do now; they count as done. The first call starts the clock and owes one."""
        if self._next is None:
            self._next = now
        behind = now - self._next
        if behind < 0.0:
            return 0
        if behind > self._burst:
            self.lost += behind - self._burst
            self._next += behind - self._burst
            behind = self._burst
        steps = int(behind / self._wall_period) + 1
        self._next += steps * self._wall_period
        return steps

    def wait(self, now: float) -> float:
        """Wall seconds until the next step is owed; 0 when one already is."""
        return 0.0 if self._next is None else max(0.0, self._next - now)


class Periodic:
    """Something done on a fixed grid of simulated time; occasions missed are counted, not made up for."""

    def __init__(self, rate: float) -> None:
        """`rate` [Hz]; 0 means never."""
        self._rate = rate
        self._occasion = 0
        self.missed = 0

    def due(self, time: float) -> bool:
        """Whether to do it at `time` [s]; at most once for each occasion of the grid."""
        if self._rate <= 0.0:
            return False
        # Half a microsecond forgives the rounding of times that are sums of control periods.
        occasion = int((time + 5e-7) * self._rate) + 1
        if occasion <= self._occasion:
            return False
        self.missed += occasion - self._occasion - 1
        self._occasion = occasion
        return True
