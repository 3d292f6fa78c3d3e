# SPDX-License-Identifier: Apache-2.0
"""How much text a tick may advance, and what its steps are expected to cost."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from oxygen_ros.models.interface import ROW_BUCKETS


def bucket_of(rows: int) -> int:
    """Smallest bucket that holds `rows`: steps of one bucket run as one size, so they cost the same.

    Raises ValueError for more rows than the largest holds.
    """
    if not 1 <= rows <= ROW_BUCKETS[-1]:
        raise ValueError(f"rows of one decode step must be 1..{ROW_BUCKETS[-1]}, got {rows}")
    return ROW_BUCKETS[bisect_left(ROW_BUCKETS, rows)]


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
        if not 1 <= self.rows <= ROW_BUCKETS[-1]:
            raise ValueError(f"budget rows must be 1..{ROW_BUCKETS[-1]}, got {self.rows}")
        if self.mode not in ("fixed", "deadline"):
            raise ValueError(f'budget mode must be "fixed" or "deadline", got "{self.mode}"')
        if self.margin < 0:
            raise ValueError(f"budget margin must not be negative, got {self.margin} s")


class Cost:
    """Running estimate of the seconds one kind of work takes.

    The second largest of the last times: one slow step does not stop the text, a slow phase does.
    Refused work is not measured, so each refusal lowers the estimate a little; else one slow phase
    would stop the text for good.
    """

    WINDOW = 16
    EASE = 0.998

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=self.WINDOW)
        self._ease = 1.0

    def record(self, seconds: float) -> None:
        # Earlier times stay lowered: a slow phase is waited out once, not once for each place of the window.
        eased = [old * self._ease for old in self._seconds]
        self._seconds.clear()
        self._seconds.extend([*eased, seconds])
        self._ease = 1.0

    def refuse(self) -> None:
        """Note that work was refused for its predicted cost."""
        self._ease *= self.EASE

    def predict(self) -> float:
        """Seconds; 0 while nothing was measured."""
        if not self._seconds:
            return 0.0
        seconds = sorted(self._seconds)
        return (seconds[-2] if len(seconds) > 1 else seconds[-1]) * self._ease


class TextCosts:
    """Estimates of decode steps by row bucket, of completing a prefix and of forking a suffix slot."""

    def __init__(self) -> None:
        self.complete = Cost()
        self.fork = Cost()
        self._steps: dict[int, Cost] = {}

    def record(self, rows: int, seconds: float) -> None:
        """A decode step of `rows` rows took so long."""
        self._steps.setdefault(bucket_of(rows), Cost()).record(seconds)

    def refuse(self, rows: int) -> None:
        """Note that a decode step was refused for its predicted cost."""
        bucket = self._nearest(bucket_of(rows))
        if bucket is not None:
            self._steps[bucket].refuse()

    def predict(self, rows: int) -> float:
        """Seconds of a decode step of `rows` rows; 0 while nothing was measured.

        An unmeasured bucket takes the next larger one's time, else the largest measured one's in
        proportion to its rows: never too optimistic.
        """
        wanted = bucket_of(rows)
        bucket = self._nearest(wanted)
        if bucket is None:
            return 0.0
        return self._steps[bucket].predict() * max(1.0, wanted / bucket)

    def _nearest(self, bucket: int) -> int | None:
        return min((b for b in self._steps if b >= bucket), default=max(self._steps, default=None))


class Meter:
    """One tick's budget and what is used of it."""

    def __init__(
        self, budget: Budget, due: float | None, costs: TextCosts, clock: Callable[[], float]
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
        """Whether no step is left."""
        return self.used >= self.budget.steps

    def allows(self, cost: Cost) -> bool:
        """Whether work that is no decode step (completing a prefix, forking) may start now."""
        if self.due is None:
            return True
        slack = self.due - self._clock()
        if self.budget.mode == "deadline" and 0 < slack < cost.predict() + self.budget.margin:
            cost.refuse()
            return False
        return slack > 0

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

        ahead: steps that are still queued on the device
        """
        if self.due is None:
            return True
        slack = self.due - self._clock() - ahead * self._cost
        if self.budget.mode == "fixed":
            return slack > 0
        return slack > 0 and slack - self.budget.margin >= self._cost
