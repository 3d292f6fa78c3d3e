# SPDX-License-Identifier: Apache-2.0
"""How much text a tick may advance, and what a decode step is expected to cost.

Here lives the permission for one more step. What the step holds is `scheduler`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from oxygen_ros.models.interface import ROW_BUCKETS as BUCKETS


def bucket_of(rows: int) -> int:
    """Smallest bucket that holds `rows`: steps of one bucket run as one size, so they cost the same.

    Raises ValueError for more rows than the largest holds.
    """
    if not 1 <= rows <= BUCKETS[-1]:
        raise ValueError(f"rows of one decode step must be 1..{BUCKETS[-1]}, got {rows}")
    return BUCKETS[bisect_left(BUCKETS, rows)]


@dataclass(frozen=True, slots=True)
class Budget:
    """At most `steps` decode steps of at most `rows` rows a tick.

    mode "fixed":     only the count bounds it
    mode "deadline":  besides, a step runs only if it is predicted to end `margin` seconds before
                      the next tick is due

    In both modes no step starts once the next tick is due: actions do not wait for text.
    """

    steps: int = 4
    rows: int = 64
    mode: str = "fixed"
    margin: float = 0.005

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ValueError(f"budget steps must be 0 or more, got {self.steps}")
        if not 1 <= self.rows <= BUCKETS[-1]:
            raise ValueError(f"budget rows must be 1..{BUCKETS[-1]}, got {self.rows}")
        if self.mode not in ("fixed", "deadline"):
            raise ValueError(f'budget mode must be "fixed" or "deadline", got "{self.mode}"')
        if self.margin < 0:
            raise ValueError(f"budget margin must not be negative, got {self.margin} s")


class StepCosts:
    """Running estimate of a decode step's seconds per row bucket.

    The second largest of the last steps: a single hiccup does not silence the text, a slow phase
    does. A refused step is never measured, so each refusal eases what was measured a little; else
    one slow phase would silence the text for ever.
    """

    WINDOW = 16
    EASE = 0.998

    def __init__(self) -> None:
        self._seconds: dict[int, deque[float]] = {}
        self._ease: dict[int, float] = {}

    def record(self, rows: int, seconds: float) -> None:
        bucket = bucket_of(rows)
        window = self._seconds.setdefault(bucket, deque(maxlen=self.WINDOW))
        # What was measured before the refusals stays eased: a slow phase is waited out once, not
        # once for every place of the window.
        eased = [old * self._ease.get(bucket, 1.0) for old in window]
        window.clear()
        window.extend([*eased, seconds])
        self._ease[bucket] = 1.0

    def refuse(self, rows: int) -> None:
        """Note that a step was refused for its predicted cost."""
        bucket = self._nearest(bucket_of(rows))
        if bucket is not None:
            self._ease[bucket] *= self.EASE

    def predict(self, rows: int) -> float:
        """Seconds of a step of `rows` rows; 0 while nothing was measured.

        An unmeasured bucket takes the next larger one's time, else the largest measured one's in
        proportion to its rows: never too optimistic.
        """
        wanted = bucket_of(rows)
        bucket = self._nearest(wanted)
        if bucket is None:
            return 0.0
        seconds = sorted(self._seconds[bucket])
        high = seconds[-2] if len(seconds) > 1 else seconds[-1]
        return high * self._ease[bucket] * max(1.0, wanted / bucket)

    def _nearest(self, bucket: int) -> int | None:
        return min((b for b in self._seconds if b >= bucket), default=max(self._seconds, default=None))


class Meter:
    """One tick's budget while it is spent."""

    def __init__(
        self, budget: Budget, due: float | None, costs: StepCosts, clock: Callable[[], float]
    ) -> None:
        """due: when the next tick is due on `clock` [s]; None when no tick will come by itself."""
        if budget.mode == "deadline" and due is None:
            raise ValueError('a "deadline" budget needs to know when the next tick is due')
        self.budget = budget
        self.due = due
        self.used = 0
        self._cost = 0.0
        self._costs = costs
        self._clock = clock

    @property
    def is_spent(self) -> bool:
        """Whether no step is left, however much time is."""
        return self.used >= self.budget.steps

    def grants(self, rows: int) -> int:
        """How many more steps of `rows` rows may start now."""
        left = self.budget.steps - self.used
        if self.due is None or left <= 0:
            return max(left, 0)
        slack = self.due - self._clock()
        if slack <= 0:
            return 0
        self._cost = self._costs.predict(rows)
        if self.budget.mode == "fixed":
            return left
        slack -= self.budget.margin
        if slack < self._cost:
            self._costs.refuse(rows)
            return 0
        return left if self._cost == 0 else min(left, int(slack / self._cost))

    def may_go_on(self, ahead: int = 0) -> bool:
        """Whether one more step like the last granted ones may be given to the device now.

        ahead: steps that it still has to do before
        """
        if self.due is None:
            return True
        slack = self.due - self._clock() - ahead * self._cost
        if self.budget.mode == "fixed":
            return slack > 0
        return slack > 0 and slack - self.budget.margin >= self._cost

    def spend(self, steps: int) -> None:
        self.used += steps
