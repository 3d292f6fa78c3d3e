# SPDX-License-Identifier: Apache-2.0
"""One action chunk and its place in time: when each action is due, which have passed, what can be commanded.

The observation was made at `stamp_ns`, and action i is the state to be *reached* at stamp + (i + 1) * step.
Policies are trained on pairs (observation at t, command issued at t and held until t + step), so the first
action is reached one step after the observation. `time_from_start` of a trajectory's first point is one step,
never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.actions import ActionSpace, ComponentKind


class ChunkError(ValueError):
    """A chunk that cannot be executed, or a timing that cannot work; the message has the numbers."""


def explain_uncommandable(space: ActionSpace) -> str:
    """Why a joint trajectory cannot command an action space, naming the first component at fault; else ""."""
    for component in space.components:
        if component.kind is not ComponentKind.JOINT_POSITION:
            return f"a trajectory needs joint positions; component {component.name!r} is a {component.kind}"
    return ""


@dataclass(frozen=True, slots=True, eq=False)
class Chunk:
    """H actions of A numbers from one observation.

    stamp_ns:  time of the observation [ns, ROS clock]
    step:      seconds between two actions
    space:     what the A numbers are, and in which units and frames
    values:    float64 [H, A]

    Raises ChunkError when the shape or the step does not fit. Values may be non-finite here; `Limits.apply`
    refuses those.
    """

    stamp_ns: int
    step: float
    space: ActionSpace
    values: NDArray[np.float64]

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or 0 in self.values.shape or self.values.shape[1] != self.space.size:
            raise ChunkError(
                f"values are {list(self.values.shape)} for actions of {self.space.size} numbers; "
                "expected [H, A] with H and A at least 1"
            )
        if not isfinite(self.step) or self.step < 1e-6:
            raise ChunkError(f"step is {self.step} s; it must be finite and at least a microsecond")

    @property
    def horizon(self) -> int:
        """H."""
        return int(self.values.shape[0])

    @property
    def covers_s(self) -> float:
        """Seconds from the observation to the last action: H * step."""
        return self.horizon * self.step

    @property
    def offsets_ns(self) -> NDArray[np.int64]:
        """int64 [H]: when each action is due, counted from the observation [ns]; strictly increasing."""
        due = np.rint(np.arange(1, self.horizon + 1) * (self.step * 1e9))
        offsets: NDArray[np.int64] = due.astype(np.int64)
        return offsets

    @property
    def valid_until_ns(self) -> int:
        """When the last action is due [ns, ROS clock]."""
        return self.stamp_ns + int(self.offsets_ns[-1])

    def first_valid(self, now_ns: int) -> int:
        """How many actions are past at `now_ns` (due then or before), 0..H: the index of the first to
        execute. Executing past ones would make the arm step back at every new chunk."""
        return int(np.searchsorted(self.offsets_ns, now_ns - self.stamp_ns, side="right"))

    def trajectory(self, now_ns: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """The actions not yet past, for a JointTrajectory whose header stamp is `stamp_ns`.

        A trajectory controller takes a stamp in the past as the start of the time axis and continues from its
        present state to the first point. So the stamp is the time of the observation, `time_from_start`
        counts from it, and past points are left out: no step back, none repeated.

        Returns time_from_start int64 [n] [ns], strictly increasing and above now_ns - stamp_ns, and
        positions float64 [n, A] (a view), n >= 1.
        Raises ChunkError when nothing is left (latency of H * step or more), or when a component is no joint
        position (see `explain_uncommandable`).
        """
        if problem := explain_uncommandable(self.space):
            raise ChunkError(problem)
        first = self.first_valid(now_ns)
        if first >= self.horizon:
            raise ChunkError(
                f"nothing of the chunk is left: it is {(now_ns - self.stamp_ns) / 1e9:.3f} s old and covers "
                f"{self.covers_s:.3f} s ({self.horizon} actions of {self.step:g} s); inference is too slow"
            )
        return self.offsets_ns[first:], self.values[first:]


def check_timing(period_s: float, latency_p99_s: float, horizon: int, step: float) -> None:
    """Check that a chunk lasts until the next one is there: period + p99 latency <= horizon * step.

    period_s:       seconds between two ticks
    latency_p99_s:  99th percentile of observation to publication [s], measured after warm-up
    horizon, step:  H actions, `step` seconds apart

    Raises ChunkError with both sides of the inequality, and for values that are not finite and positive.
    """
    for name, value in (("period", period_s), ("horizon", horizon), ("step", step)):
        if not isfinite(value) or value <= 0:
            raise ChunkError(f"{name} is {value}; it must be finite and positive")
    if not isfinite(latency_p99_s) or latency_p99_s < 0:
        raise ChunkError(f"latency is {latency_p99_s} s; it must be finite and not negative")
    need, have = period_s + latency_p99_s, horizon * step
    if need > have + 1e-9:
        raise ChunkError(
            f"period + p99 latency is {period_s:.4g} + {latency_p99_s:.4g} = {need:.4g} s, but a chunk "
            f"covers {horizon} x {step:g} = {have:.4g} s: the arm would stop between chunks; shorten the "
            "period or make inference faster"
        )
