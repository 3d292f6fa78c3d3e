# SPDX-License-Identifier: Apache-2.0
"""Joint limits over a chunk: what leaves here never commands a position or a speed beyond them.

Here lives no collision checking, and no acceleration or effort limit: those are the controller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import isnan
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.robot.chunk import Chunk, ChunkError

# Beyond a limit by less than this [rad, m or their rates] is rounding: set to the limit, not reported.
ROUNDING = 1e-9


class LimitViolation(ChunkError):
    """An action beyond a limit, or not finite; names joint, step, value and limit."""


@dataclass(frozen=True, slots=True)
class JointLimit:
    """Limits of one joint: positions [rad or m], largest speed [rad/s or m/s]; infinite means none."""

    lower: float
    upper: float
    velocity: float

    def __post_init__(self) -> None:
        if isnan(self.lower) or isnan(self.upper) or not self.lower <= self.upper:
            raise ValueError(f"limits [{self.lower}, {self.upper}]: the lower one must not exceed the upper")
        if not self.velocity > 0:
            raise ValueError(f"velocity limit is {self.velocity}; it must be positive")


@dataclass(frozen=True, slots=True)
class LimitedChunk:
    """A chunk within the limits.

    chunk:    the one given (the same object when nothing had to change) or its clamped copy
    clamped:  "<joint>.position" or "<joint>.velocity" -> number of actions changed; {} when none
    """

    chunk: Chunk
    clamped: dict[str, int]


class Limits:
    """Limits by joint name, and what to do with a chunk that exceeds them.

    by_joint:  joint -> JointLimit; every joint of a chunk needs one
    mode:      "clamp" brings values to the limits and counts; "refuse" raises at the first
    """

    def __init__(self, by_joint: Mapping[str, JointLimit], mode: Literal["clamp", "refuse"]) -> None:
        if mode not in ("clamp", "refuse"):
            raise ValueError(f"mode is {mode!r}; it must be 'clamp' or 'refuse'")
        self.by_joint = dict(by_joint)
        self.mode = mode

    def apply(
        self, chunk: Chunk, current: NDArray[np.float64], current_ns: int | None = None
    ) -> LimitedChunk:
        """Check or clamp a chunk.

        Positions are held within [lower, upper], and each differs from the one before it by at most
        velocity * step. Velocities are held within the speed limit, and such that the position they lead
        to, summed up from `current`, stays within [lower, upper].

        current:     float64 [A], the chunk's joints [rad or m] at `current_ns`
        current_ns:  when they stood there [ns, ROS clock]; None: at the chunk's stamp. Give the newest
                     joints and their time when publishing: steps due by then are past and only brought
                     into range, and the first one left must be reachable in the time left. Else a late
                     chunk, whose first steps are dropped, would ask for all their motion at once.

        Raises LimitViolation in refuse mode; in both modes for values that are not finite, and for a
        joint so far outside its limits that no permitted step leads back. Raises ChunkError when a joint
        has no limit, `current` has another shape, or all steps are past.
        """
        lower, upper, speed = self._columns(chunk)
        if current.shape != lower.shape:
            raise ChunkError(f"current positions are {list(current.shape)} for {len(lower)} joints")
        _require_finite(chunk, current)
        first, durations = _time_steps(chunk, current_ns)
        self._require_way_back(chunk, current, lower, upper, speed * durations[first])
        # Velocities are treated as the displacements of one step each, and divided again at the end.
        is_position = chunk.representation == "position"
        wanted = chunk.values if is_position else chunk.values * durations[:, None]
        limited = np.clip(wanted, lower, upper) if is_position else wanted.copy()
        counts: dict[str, int] = {}
        previous = current.astype(np.float64)
        for step in range(first, chunk.horizon):
            reach = speed * durations[step]
            target = wanted[step] if is_position else previous + wanted[step]
            inside = np.clip(target, lower, upper)
            # The last word is the position's; `_require_way_back` made the two agree up to rounding.
            allowed = np.clip(np.clip(inside, previous - reach, previous + reach), lower, upper)
            self._report(chunk, step, "position", target, inside, counts)
            self._report(chunk, step, "velocity", inside, allowed, counts, (previous, durations[step]))
            limited[step] = allowed if is_position else allowed - previous
            previous = allowed
        if not is_position:
            # Values that need no change keep every bit: dividing the displacement again would round them.
            kept = np.abs(limited - wanted) <= ROUNDING
            limited = np.clip(np.where(kept, chunk.values, limited / durations[:, None]), -speed, speed)
        same = np.array_equal(limited, chunk.values)
        return LimitedChunk(chunk if same else replace(chunk, values=limited), counts)

    def clip_positions(self, joints: Sequence[str], positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions [A] of joints brought into [lower, upper]."""
        lower = [self.by_joint[name].lower for name in joints]
        upper = [self.by_joint[name].upper for name in joints]
        return np.clip(positions, lower, upper)

    def _columns(self, chunk: Chunk) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """Lower, upper and speed limits [A] in the order of the chunk's joints."""
        missing = [name for name in chunk.joint_names if name not in self.by_joint]
        if missing:
            raise ChunkError(
                f"no limits for {missing}; give each joint its own, infinite ones to leave it free"
            )
        limits = [self.by_joint[name] for name in chunk.joint_names]
        lower, upper, speed = np.array(
            [(limit.lower, limit.upper, limit.velocity) for limit in limits], np.float64
        ).T
        return lower, upper, speed

    def _require_way_back(
        self,
        chunk: Chunk,
        current: NDArray[np.float64],
        lower: NDArray[np.float64],
        upper: NDArray[np.float64],
        reach: NDArray[np.float64],
    ) -> None:
        outside = np.maximum(lower - current, current - upper)
        for joint in np.flatnonzero(outside > reach + ROUNDING):
            raise LimitViolation(
                f"joint {chunk.joint_names[joint]!r} stands at {current[joint]:.6g}, outside its limits "
                f"[{lower[joint]:.6g}, {upper[joint]:.6g}] by more than the first step at full speed "
                f"({reach[joint]:.6g}); move it back by hand, or correct the limits"
            )

    def _report(
        self,
        chunk: Chunk,
        step: int,
        kind: str,
        wanted: NDArray[np.float64],
        allowed: NDArray[np.float64],
        counts: dict[str, int],
        came_from: tuple[NDArray[np.float64], float] | None = None,
    ) -> None:
        """Count the joints whose value was changed, or raise at the first in refuse mode.

        came_from: for speeds, the positions before [A] and the seconds since
        """
        for joint in np.flatnonzero(np.abs(wanted - allowed) > ROUNDING):
            name = chunk.joint_names[joint]
            if self.mode == "refuse":
                limit = self.by_joint[name]
                if came_from is None:
                    words = f"position {wanted[joint]:.6g}, outside [{limit.lower:.6g}, {limit.upper:.6g}]"
                else:
                    before, seconds = came_from[0][joint], came_from[1]
                    words = (
                        f"speed {(wanted[joint] - before) / seconds:.6g} (position {wanted[joint]:.6g} after "
                        f"{before:.6g} in {seconds:.4g} s), beyond {limit.velocity:.6g}"
                    )
                raise LimitViolation(f"joint {name!r}, step {step} of the chunk: {words}")
            key = f"{name}.{kind}"
            counts[key] = counts.get(key, 0) + 1


def _time_steps(chunk: Chunk, current_ns: int | None) -> tuple[int, NDArray[np.float64]]:
    """Index of the first step after `current_ns`, and seconds each step has [H]: that one what is left."""
    durations = np.full(chunk.horizon, chunk.step)
    if current_ns is None:
        return 0, durations
    first = chunk.first_valid(current_ns)
    if first >= chunk.horizon:
        raise ChunkError(
            f"nothing of the chunk is left: it is {(current_ns - chunk.stamp_ns) / 1e9:.3f} s old and covers "
            f"{chunk.covers_s:.3f} s"
        )
    durations[first] = (chunk.stamp_ns + int(chunk.offsets_ns[first]) - current_ns) / 1e9
    return first, durations


def _require_finite(chunk: Chunk, current: NDArray[np.float64]) -> None:
    """Refuse NaN and infinity: no limit makes an action of them."""
    bad = np.argwhere(~np.isfinite(chunk.values))
    if len(bad):
        step, joint = (int(index) for index in bad[0])
        raise LimitViolation(
            f"joint {chunk.joint_names[joint]!r}, step {step} of the chunk: value is "
            f"{chunk.values[step, joint]}, which is not finite (limit: any finite value); "
            f"{len(bad)} of {chunk.values.size} values are so"
        )
    for joint in np.flatnonzero(~np.isfinite(current)):
        raise LimitViolation(
            f"joint {chunk.joint_names[joint]!r}: current position is {current[joint]}, which is not finite"
        )
