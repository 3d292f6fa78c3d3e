# SPDX-License-Identifier: Apache-2.0
"""The figures of a soak, and whether they are good enough.

The bounds and the summary line; plain Python.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

REPORT_WITHIN = 1.0  # s from a fault's first message to /diagnostics naming it
RECOVER_WITHIN = 2.0  # s from a fault's end to the next chunk
MOST_GROWTH = 0.01  # of the memory at the end of the first minute
SETTLED_AFTER = 60.0  # s in which memory may grow
LEAST_JUDGED = 60.0  # s of memory figures below which a slope is not judged


@dataclass(frozen=True, slots=True)
class FaultResult:
    """What became of one fault. Seconds; None where it did not happen in the time it was waited for."""

    name: str
    at: float
    reported_after: float | None
    recovered_after: float | None
    said: str = ""

    def __str__(self) -> str:
        def tell(seconds: float | None) -> str:
            return "never" if seconds is None else f"{seconds:.2f} s"

        return (
            f"[{self.at:6.1f} s] {self.name}: reported after {tell(self.reported_after)}, "
            f"recovered {tell(self.recovered_after)} after its end"
        )


@dataclass(slots=True)
class Summary:
    """Figures of a run.

    memory:  (seconds since the start, bytes) of the node's resident memory
    waited:  seconds the node's threads were ready to run and had no CPU, because of other programs
    """

    seed: int
    seconds: float = 0.0
    ticks: int = 0
    skipped: int = 0
    chunks: int = 0
    judged: int = 0
    outcomes: list[FaultResult] = field(default_factory=list)
    bad_chunks: list[str] = field(default_factory=list)
    memory: list[tuple[float, int]] = field(default_factory=list)
    slots_leaked: int = 0
    waited: float = 0.0
    failures: list[str] = field(default_factory=list)

    def find_growth(self) -> float | None:
        """Growth of memory from the end of the first minute to the end of the run, as a part of what it was
        then: a least-squares line, so that one spike is no leak. None when the run is too short."""
        settled = [(at, size) for at, size in self.memory if at >= SETTLED_AFTER]
        if len(settled) < 2 or settled[-1][0] - settled[0][0] < LEAST_JUDGED:
            return None
        slope, start = fit_line(settled)
        return slope * (settled[-1][0] - settled[0][0]) / start

    def find_breaches(self) -> list[str]:
        """Every broken bound, as a sentence; [] for a good run."""
        found = list(self.failures)
        for outcome in self.outcomes:
            where = f"fault {outcome.name} at {outcome.at:.1f} s"
            if outcome.reported_after is None:
                found.append(f"{where}: not reported; /diagnostics said: {outcome.said or 'nothing'}")
            elif outcome.reported_after > REPORT_WITHIN:
                found.append(f"{where}: reported after {outcome.reported_after:.2f} s")
            if outcome.recovered_after is None:
                found.append(f"{where}: no chunk came after it")
            elif outcome.recovered_after > RECOVER_WITHIN:
                found.append(f"{where}: recovered after {outcome.recovered_after:.2f} s")
        found += [f"chunk from bad input: {words}" for words in self.bad_chunks]
        if self.slots_leaked:
            found.append(f"{self.slots_leaked} slots leaked")
        growth = self.find_growth()
        if growth is not None and growth >= MOST_GROWTH:
            found.append(
                f"memory grew by {growth:.2%} after the first minute; less than {MOST_GROWTH:.0%} is right"
            )
        if not self.outcomes:
            found.append("no fault was injected: the run was too short")
        if not self.chunks:
            found.append("no chunk was published")
        return found

    def summarize(self) -> str:
        """One line."""
        reported = [o.reported_after for o in self.outcomes if o.reported_after is not None]
        recovered = [o.recovered_after for o in self.outcomes if o.recovered_after is not None]
        growth = self.find_growth()
        memory = "too short to judge" if growth is None else f"{growth:+.2%}"
        breaches = len(self.find_breaches())
        return (
            f"soak: {self.seconds / 60:.1f} min, seed {self.seed}: {self.ticks} ticks, "
            f"{self.skipped} missed; "
            f"{len(self.outcomes)} faults injected, {len(reported)} reported (slowest {worst(reported)}), "
            f"{len(recovered)} recovered (slowest {worst(recovered)}); "
            f"{len(self.bad_chunks)} of {self.judged} chunks from bad input; "
            f"{self.slots_leaked} slots leaked; memory {memory}; waited {self.waited:.0f} s for a CPU: "
            + ("PASS" if not breaches else f"FAIL, {breaches} breaches")
        )


def fit_line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """Least squares: (slope, value at the first point)."""
    mean_x = sum(x for x, _ in points) / len(points)
    mean_y = sum(y for _, y in points) / len(points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    return slope, mean_y + slope * (points[0][0] - mean_x)


def worst(values: Sequence[float]) -> str:
    return f"{max(values):.2f} s" if values else "none"
