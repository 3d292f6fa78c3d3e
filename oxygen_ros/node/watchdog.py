# SPDX-License-Identifier: Apache-2.0
"""How long the worker has not returned, on the steady clock.

A tick that does not return cannot be ended from within its process: the executor reports it and later ends
the process. All methods run in the executor's thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from oxygen_ros.node import diagnostics as level
from oxygen_ros.node.diagnostics import Diagnostics

# Longest time one look may add [s]: the steady clock runs on while a process is stopped or a machine sleeps.
LONGEST_LOOK = 2.0


class Watchdog:
    """Watches the times at which one worker's turns begin."""

    def __init__(
        self, diagnostics: Diagnostics, stuck: float, give_up: float, end_process: Callable[[str], object]
    ) -> None:
        """stuck, give_up: seconds after which it is reported, and the process ended (0: never)"""
        self._diagnostics = diagnostics
        self._limits = stuck, give_up
        self._end_process = end_process
        self._sign: float | None = None
        self._looked = 0.0
        self._stuck = 0.0

    def look(self, last_sign: float) -> None:
        """last_sign: when the worker's last turn began [s, steady clock]"""
        seconds = self.measure(last_sign, time.monotonic())
        stuck, give_up = self._limits
        if seconds > stuck:
            words = f"the worker is stuck: a tick has not returned for {seconds:.0f} s"
            if give_up > 0:
                words += f"; after {give_up:g} s the process ends"
            self._diagnostics.report("control", level.ERROR, words)
            for part in ("inputs", "text"):
                self._diagnostics.report(part, level.STALE, "unknown: the worker is stuck", is_logged=True)
        if 0 < give_up < seconds:
            self._end_process(f"a tick has not returned for {seconds:.0f} s and cannot be ended")

    def measure(self, last_sign: float, now: float) -> float:
        """Seconds the worker is known to have been inside one turn. now: of the clock of `last_sign` [s]"""
        if last_sign != self._sign:
            # The time since the sign was not all watched.
            self._stuck = min(max(now - last_sign, 0.0), LONGEST_LOOK)
            self._sign = last_sign
        else:
            self._stuck += min(max(now - self._looked, 0.0), LONGEST_LOOK)
        self._looked = now
        return self._stuck
