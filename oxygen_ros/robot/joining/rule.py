# SPDX-License-Identifier: Apache-2.0
"""What a new chunk takes from the one before it: nothing, a weighted mean, or a guide for the denoiser."""

from __future__ import annotations

from dataclasses import dataclass
from math import e, inf, isfinite
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.actions import ActionSpace, ComponentKind

Mode = Literal["replace", "blend", "rtc"]
Schedule = Literal["exp", "linear", "ones", "zeros"]
MODES: tuple[Mode, ...] = ("replace", "blend", "rtc")
SCHEDULES: tuple[Schedule, ...] = ("exp", "linear", "ones", "zeros")
# Deltas of two chunks count from different observations; rotations do not interpolate number by number.
_UNJOINABLE = (
    ComponentKind.JOINT_DELTA,
    ComponentKind.CARTESIAN_DELTA,
    ComponentKind.ROTATION,
    ComponentKind.ROTATION_DELTA,
)


@dataclass(frozen=True, slots=True)
class JoinRule:
    """What a new chunk takes from the one before.

    mode:        "replace": nothing. "blend": the weighted mean of both. "rtc": the denoiser is guided
                 towards the one before (real-time chunking)
    delay:       steps counted from the observation that will have been executed before the new chunk is
                 there; weight 1
    overlap:     steps after those over which the weight falls to 0; None: all that are left
    schedule:    how it falls, see `weigh`
    max_weight:  upper bound of the guidance weight of a denoise step (rtc)
    tolerance:   how far a joint may be from where the chunk before has it [rad or m]. Farther than that, the
                 chunk is not being executed: commands are off, or something is in the way

    Raises ValueError for values that make no sense.
    """

    mode: Mode = "replace"
    delay: int = 0
    overlap: int | None = None
    schedule: Schedule = "exp"
    max_weight: float = 10.0
    tolerance: float = inf

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise ValueError(f"mode is {self.mode!r}; it must be one of {', '.join(MODES)}")
        if self.schedule not in SCHEDULES:
            raise ValueError(f"schedule is {self.schedule!r}; it must be one of {', '.join(SCHEDULES)}")
        if self.delay < 0:
            raise ValueError(f"delay is {self.delay} steps; it must not be negative")
        if self.overlap is not None and self.overlap < 0:
            raise ValueError(f"overlap is {self.overlap} steps; it must not be negative")
        if not isfinite(self.max_weight) or self.max_weight < 0:
            raise ValueError(f"max_weight is {self.max_weight}; it must be finite and not negative")
        if not self.tolerance > 0:
            raise ValueError(f"tolerance is {self.tolerance}; it must be positive")

    def describe(self, step: float) -> str:
        """The rule in one line, for diagnostics. step: seconds."""
        if self.mode == "replace":
            return "replace"
        reach = "all that is left" if self.overlap is None else f"{self.overlap * step:g} s"
        words = (
            f"{self.mode}, delay {self.delay} steps ({self.delay * step:g} s), over {reach}, {self.schedule}"
        )
        return words + (f", weight up to {self.max_weight:g}" if self.mode == "rtc" else "")

    def explain_unjoinable(self, space: ActionSpace) -> str:
        """Why this rule cannot join chunks of an action space, by the first component at fault; else ""."""
        if self.mode != "replace":
            for component in space.components:
                if component.kind in _UNJOINABLE:
                    return (
                        f"chunks cannot be joined by {self.mode!r}: component {component.name!r} is a "
                        f"{component.kind}, and rotations and deltas do not interpolate; use 'replace'"
                    )
        return ""

    def weigh(self, remaining: int, horizon: int) -> NDArray[np.float64]:
        """How much each of `horizon` actions is held to the chunk before, which has `remaining` left: [H]."""
        until = remaining if self.overlap is None else min(self.delay + self.overlap, remaining)
        return weigh(self.schedule, self.delay, until, horizon)


def weigh(schedule: Schedule, delay: int, until: int, horizon: int) -> NDArray[np.float64]:
    """How much each of `horizon` actions is held to the chunk before, in 0..1.

    1 for the first `delay` actions (at most `until`), 0 from `until` on. Between them, action i has
    f = (until - i) / (until - delay + 1): "linear" gives f, "exp" f (e^f - 1) / (e - 1), which falls faster
    (Black et al. 2025, "Real-Time Execution of Action Chunking Flow Policies", eq. 5, `until` being H - s);
    "ones" gives 1 and "zeros" 0.
    """
    start = min(delay, until)
    index = np.arange(horizon)
    fall = np.clip((until - index) / (until - start + 1), 0.0, 1.0)
    if schedule == "exp":
        fall *= np.expm1(fall) / (e - 1)
    elif schedule != "linear":
        fall[:] = schedule == "ones"
    weights: NDArray[np.float64] = np.where(index < start, 1.0, np.where(index < until, fall, 0.0))
    return weights
