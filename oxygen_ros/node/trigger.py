# SPDX-License-Identifier: Apache-2.0
"""When the next tick is due: by a period, by new images, or by the end of the chunk. No ROS, no clock.

Times are seconds on the clock that periods run on. One thread, the worker, calls everything.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod


class Trigger(ABC):
    """What starts ticks. due: of the next one; skipped: wholly missed periods so far; period: seconds between
    ticks where the trigger sets them, else None."""

    period: float | None = None

    def __init__(self) -> None:
        self.due = 0.0
        self.skipped = 0

    def start(self, now: float) -> None:
        """The first tick is due at once."""
        self.due = now

    @abstractmethod
    def begin(self, now: float, chunk_end: float) -> float:
        """A tick starts now, whose chunk will run out at `chunk_end`. Returns when the next one is due."""

    def late(self, now: float) -> float:
        """Seconds a tick that starts now has waited since it was due."""
        return max(now - self.due, 0.0)

    def pass_over(self, now: float) -> None:  # noqa: B027 - nothing to do is the usual case
        """No tick could start for want of input. Move on once a whole period has passed."""

    def resume(self, now: float) -> None:  # noqa: B027
        """The input of a due tick has come: it starts now, and the next one counts from here."""

    def has_published(self) -> None:  # noqa: B027
        """The tick's chunk left."""


class PeriodTrigger(Trigger):
    """Ticks on a grid. A late tick starts as soon as it can; only periods that passed wholly are skipped.

    When ticks wait for their input, the grid restarts with each input. Else texts would get only what happens
    to be left of a period: nothing with images slower than the period, while the machine is idle.
    """

    def __init__(self, period: float) -> None:
        super().__init__()
        self.period: float = period

    def begin(self, now: float, chunk_end: float) -> float:
        self.skipped += self._advance(now)
        return self.due

    def pass_over(self, now: float) -> None:
        if now >= self.due + self.period:
            self._advance(now - self.period)

    def resume(self, now: float) -> None:
        self.due = now

    def _advance(self, now: float) -> int:
        """Set `due` to the grid time after the last one not after `now`; returns the grid times left out."""
        # Rounding must not turn a tick that starts right on time into one that starts a period early.
        late = max(math.floor((now - self.due) / self.period + 1e-9), 0)
        self.due += (late + 1) * self.period
        return late


class ImagesTrigger(Trigger):
    """Each new set of images is a tick; the next one is expected after the usual time between them."""

    def __init__(self, expected: float) -> None:
        """expected: seconds between sets until they were seen"""
        super().__init__()
        self._interval = expected
        self._last: float | None = None

    def start(self, now: float) -> None:
        super().start(now)
        self._last = None

    def late(self, now: float) -> float:
        return 0.0

    def begin(self, now: float, chunk_end: float) -> float:
        if self._last is not None:
            # A pause is no measure of the rate.
            self._interval += 0.1 * (min(now - self._last, 2 * self._interval) - self._interval)
        self._last = now
        self.due = now
        return now + self._interval


class ChunkEndTrigger(Trigger):
    """The next tick is due when the chunk under way runs out."""

    def __init__(self, retry: float) -> None:
        """retry: seconds to the next tick after one without a chunk"""
        super().__init__()
        self.retry = retry
        self._chunk_end = 0.0

    def begin(self, now: float, chunk_end: float) -> float:
        self.due = now + self.retry
        self._chunk_end = chunk_end
        return chunk_end

    def has_published(self) -> None:
        self.due = self._chunk_end


# By the value of parameter `trigger`; made with the period.
TRIGGERS: dict[str, type[PeriodTrigger | ImagesTrigger | ChunkEndTrigger]] = {
    "period": PeriodTrigger,
    "images": ImagesTrigger,
    "chunk_end": ChunkEndTrigger,
}
