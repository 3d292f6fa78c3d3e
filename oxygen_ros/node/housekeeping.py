# SPDX-License-Identifier: Apache-2.0
"""Garbage collection between ticks, never inside one. No ROS.

Python collects cycles whenever enough objects were made, in whatever thread made the last one. Over a heap
with a model in it that takes tens of milliseconds. While a worker runs, what lives at its start is set aside
(it stays for good), automatic collection is off for the process, and the worker collects when it has time.
"""

from __future__ import annotations

import gc
import time
from types import TracebackType
from typing import Self

# Container objects made and not freed: below the first a collection is not worth it; from the second on it
# is made whatever the time, so that memory stays bounded where no tick leaves a pause.
WORTH_IT = 2_000
TOO_MANY = 100_000


class Housekeeper:
    """One worker's collector, from the first tick to the last.

    collections:  made so far; `forced`: of these, without a pause that was long enough
    """

    def __init__(self) -> None:
        self.collections = 0
        self.forced = 0
        self._cost = 0.0

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._collect()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        gc.enable()
        gc.unfreeze()

    def rest(self, pause: float) -> float:
        """Use a pause of so many seconds, or none of it; returns what is left of it."""
        made = gc.get_count()[0]
        if made < WORTH_IT:
            return pause
        # Twice the last one's time: the next may find more.
        has_time = pause > 2 * self._cost
        if not has_time and made < TOO_MANY:
            return pause
        self.forced += not has_time
        return pause - self._collect()

    def _collect(self) -> float:
        started = time.perf_counter()
        gc.collect()
        self._cost = time.perf_counter() - started
        self.collections += 1
        return self._cost
