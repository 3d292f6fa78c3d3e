# SPDX-License-Identifier: Apache-2.0
"""When the next tick is due: by a period, by new images, or by the end of the chunk.

Here lives no waiting and no clock: times come in and go out as seconds on the clock that periods run on.
One thread, the worker, calls everything.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod


class Pace(ABC):
    """One trigger. `due` is when the coming tick is due, `skipped` counts wholly missed periods.

    period: seconds between ticks where the trigger sets them, else None
    """

    period: float | None = None

    def __init__(self) -> None:
        self.due = 0.0
        self.skipped = 0

    def start(self, now: float) -> None:
        """Begin: the first tick is due at once."""
        self.due = now

    @abstractmethod
    def begin(self, now: float, chunk_end: float) -> float:
        """A tick starts now, whose chunk will run out at `chunk_end`. Returns when the next one is due."""

    def late(self, now: float) -> float:
        """Seconds a tick that starts now has waited since it was due."""
        return max(now - self.due, 0.0)

    def pass_over(self, now: float) -> None:
        """No tick could start: nothing to see. Move on once a whole period has gone by."""
        return None

    def resume(self, now: float) -> None:
        """What a due tick waited for has come: it starts now, and the next one is counted from here."""
        return None

    def has_published(self) -> None:
        """The tick's chunk left."""
        return None


class PeriodPace(Pace):
    """Ticks on a grid. A late tick starts as soon as it can; only periods that passed wholly are skipped.

    Where ticks wait for their input, the grid begins anew with each that came. Kept, it would cut the time
    of the texts to what happens to be left of a period, with images slower than the period nothing, for
    ever, while the machine idles until the next image.
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


class ImagesPace(Pace):
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
            # A pause says nothing about the rate.
            self._interval += 0.1 * (min(now - self._last, 2 * self._interval) - self._interval)
        self._last = now
        self.due = now
        return now + self._interval


class ChunkEndPace(Pace):
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


def make_pace(trigger: str, period: float) -> Pace:
    """The pace of parameter `trigger`."""
    kinds: dict[str, type[PeriodPace | ImagesPace | ChunkEndPace]] = {
        "period": PeriodPace,
        "images": ImagesPace,
        "chunk_end": ChunkEndPace,
    }
    return kinds[trigger](period)
