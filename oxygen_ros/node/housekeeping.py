# SPDX-License-Identifier: Apache-2.0
"""Garbage collection between ticks, never inside one. No ROS.

Python collects cycles whenever enough objects were made, in whatever thread made the last one. Over a heap
with a model in it that takes tens of milliseconds. While a worker runs, objects that exist at its start are
frozen, automatic collection is off for the process, and the worker collects when it has time.
"""

from __future__ import annotations

import gc
import time
from typing import Self

# Container objects made and not freed: no collection below the first number; always one from the second on,
# so that memory stays bounded where no tick leaves a pause.
WORTH_IT = 2_000
TOO_MANY = 100_000


class Housekeeper:
    """One worker's collector, from the first tick to the last.

    collections:  made so far; `forced`: those of them without a long enough pause
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

    def __exit__(self, *error: object) -> None:
        gc.enable()
        gc.unfreeze()

    def rest(self, pause: float) -> float:
        """Collect in a pause of so many seconds if it is worth it; returns the rest of the pause."""
        made = gc.get_count()[0]
        if made < WORTH_IT:
            return pause
        # Twice the last one's time: the next may take longer.
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
