# SPDX-License-Identifier: Apache-2.0
"""Joint limits over a chunk: what leaves here never commands a position or a speed beyond them.

Here lives no collision checking, and no acceleration or effort limit: those are the controller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isnan
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.robot.chunk import Chunk, ChunkError

# Beyond a limit by less than this [rad, m or their rates] is rounding: set to the limit, not reported.
ROUNDING = 1e-9


class LimitViolation(ChunkError):
    """An action beyond a limit, or not finite; names joint, step, value and limit."""


@dataclass(frozen=True, slots=True)
class JointLimit:
    """Limits of one joint; infinite means none.

    lower, upper:  positions [rad or m]
    velocity:      largest speed [rad/s or m/s]
    step:          largest change from one action to the next, however long that takes [rad or m]
    """

    lower: float
    upper: float
    velocity: float
    step: float = inf

    def __post_init__(self) -> None:
        if isnan(self.lower) or isnan(self.upper) or not self.lower <= self.upper:
            raise ValueError(f"limits [{self.lower}, {self.upper}]: the lower one must not exceed the upper")
        if not self.velocity > 0:
            raise ValueError(f"velocity limit is {self.velocity}; it must be positive")
        if not self.step > 0:
            raise ValueError(f"step limit is {self.step}; it must be positive")


@dataclass(frozen=True, slots=True)
class LimitedChunk:
    """A chunk within the limits.

    chunk:    the one given (the same object when nothing had to change) or its clamped copy
    clamped:  "<joint>.position", "<joint>.velocity" or "<joint>.step" -> number of actions changed
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
        self._columns: dict[tuple[str, ...], _Columns] = {}

    def apply(
        self, chunk: Chunk, current: NDArray[np.float64], current_ns: int | None = None
    ) -> LimitedChunk:
        """Check or clamp a chunk.

        Positions are held within [lower, upper], and each differs from the one before it by at most
        velocity * step. Velocities are held within the speed limit, and such that the position they lead
        to, summed up from `current`, stays within [lower, upper]. Where the joint has a step limit, no
        action moves it farther than that.

        current:     float64 [A], the chunk's joints [rad or m] at `current_ns`
        current_ns:  when they stood there [ns, ROS clock]; None: at the chunk's stamp. Give the newest
                     joints and their time when publishing: steps due by then are past and only brought
                     into range, and the first one left must be reachable in the time left. Else a late
                     chunk, whose first steps are dropped, would ask for all their motion at once.

        Raises LimitViolation in refuse mode; in both modes for values that are not finite, and for a
        joint so far outside its limits that no permitted step leads back. Raises ChunkError when a joint
        has no limit, `current` has another shape, or all steps are past.
        """
        limit = self._find_columns(chunk.joint_names)
        if current.shape != limit.lower.shape:
            raise ChunkError(f"current positions are {list(current.shape)} for {len(limit.lower)} joints")
        _require_finite(chunk, current)
        first, durations = _time_steps(chunk, current_ns)
        seconds = durations[first:, None]
        # How far each step may lead [H - first, A].
        reach = np.minimum(limit.speed * seconds, limit.step)
        self._require_way_back(chunk, current, limit, reach[0])
        # Velocities are treated as the displacements of one step each, and divided again at the end.
        is_position = chunk.representation == "position"
        wanted = chunk.values if is_position else chunk.values * durations[:, None]
        way = _walk(wanted[first:], current.astype(np.float64), limit, reach, is_position)
        counts = self._judge(chunk, first, way, limit, seconds)
        limited = limit.bring_inside(wanted) if is_position else wanted.copy()
        limited[first:] = way.allowed if is_position else way.allowed - way.before
        if not is_position:
            # Values that need no change keep every bit: dividing the displacement again would round them.
            kept = np.abs(limited - wanted) <= ROUNDING
            limited = np.where(kept, chunk.values, limited / durations[:, None])
            limited = np.minimum(np.maximum(limited, -limit.speed), limit.speed)
        same = np.array_equal(limited, chunk.values)
        return LimitedChunk(chunk if same else replace(chunk, values=limited), counts)

    def clip_positions(self, joints: Sequence[str], positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions [A] of joints brought into [lower, upper]."""
        return self._find_columns(tuple(joints)).bring_inside(positions)

    def _find_columns(self, joints: tuple[str, ...]) -> _Columns:
        """Limits in the order of a chunk's joints; made once for each order."""
        if joints not in self._columns:
            missing = [name for name in joints if name not in self.by_joint]
            if missing:
                raise ChunkError(
                    f"no limits for {missing}; give each joint its own, infinite ones to leave it free"
                )
            limits = [self.by_joint[name] for name in joints]
            rows = [(limit.lower, limit.upper, limit.velocity, limit.step) for limit in limits]
            self._columns[joints] = _Columns(*np.array(rows, np.float64).T.copy())
        return self._columns[joints]

    def _require_way_back(
        self, chunk: Chunk, current: NDArray[np.float64], limit: _Columns, reach: NDArray[np.float64]
    ) -> None:
        lower, upper = limit.lower, limit.upper
        outside = np.maximum(lower - current, current - upper)
        for joint in np.flatnonzero(outside > reach + ROUNDING):
            raise LimitViolation(
                f"joint {chunk.joint_names[joint]!r} stands at {current[joint]:.6g}, outside its limits "
                f"[{lower[joint]:.6g}, {upper[joint]:.6g}] by more than the first step at full speed "
                f"({reach[joint]:.6g}); move it back by hand, or correct the limits"
            )

    def _judge(
        self, chunk: Chunk, first: int, way: _Way, limit: _Columns, seconds: NDArray[np.float64]
    ) -> dict[str, int]:
        """Count the actions that were changed, or raise at the first in refuse mode."""
        misplaced = np.abs(way.target - way.inside) > ROUNDING
        hurried = np.abs(way.inside - way.allowed) > ROUNDING
        if not (misplaced.any() or hurried.any()):
            return {}
        if self.mode == "refuse":
            row = int(np.flatnonzero((misplaced | hurried).any(axis=1))[0])
            is_position = bool(misplaced[row].any())
            joint = int(np.flatnonzero(misplaced[row] if is_position else hurried[row])[0])
            words = _explain(way, row, joint, limit, float(seconds[row, 0]), is_position)
            raise LimitViolation(
                f"joint {chunk.joint_names[joint]!r}, step {first + row} of the chunk: {words}"
            )
        by_step = hurried & (limit.step < limit.speed * seconds)
        kinds = {"position": misplaced, "velocity": hurried & ~by_step, "step": by_step}
        totals = {kind: changed.sum(axis=0) for kind, changed in kinds.items()}
        return {
            f"{name}.{kind}": int(total[joint])
            for joint, name in enumerate(chunk.joint_names)
            for kind, total in totals.items()
            if total[joint]
        }


class _Columns(NamedTuple):
    """Limits [A] each, in the order of a chunk's joints."""

    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    speed: NDArray[np.float64]
    step: NDArray[np.float64]

    def bring_inside(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions [..., A] within [lower, upper]. Not np.clip: on short rows that costs ten times this."""
        inside: NDArray[np.float64] = np.minimum(np.maximum(positions, self.lower), self.upper)
        return inside


class _Way(NamedTuple):
    """Positions [n, A] at each step: asked for, brought inside, allowed; and where the step began."""

    target: NDArray[np.float64]
    inside: NDArray[np.float64]
    allowed: NDArray[np.float64]
    before: NDArray[np.float64]


def _walk(
    wanted: NDArray[np.float64],
    current: NDArray[np.float64],
    limit: _Columns,
    reach: NDArray[np.float64],
    is_position: bool,
) -> _Way:
    """Go through the steps from `current`, each within the limits and its reach [n, A].

    wanted: positions, or displacements [n, A]
    """
    # Most chunks need no slowing down: each step ends where it was asked to, and no loop is needed.
    if is_position:
        target, inside = wanted, limit.bring_inside(wanted)
        before = np.vstack([current, inside[:-1]])
        is_free = True
    else:
        ends = np.add.accumulate(np.vstack([current, wanted]))
        target, before = ends[1:], ends[:-1]
        inside = limit.bring_inside(target)
        is_free = np.array_equal(target, inside)
    if is_free and ((inside >= before - reach) & (inside <= before + reach)).all():
        return _Way(target, inside, inside, before)
    if not is_position:
        target, inside = np.empty_like(wanted), np.empty_like(wanted)
    allowed, before = np.empty_like(wanted), np.empty_like(wanted)
    lower, upper, previous = limit.lower, limit.upper, current
    for step, most in enumerate(reach):
        before[step], goal, here = previous, inside[step], allowed[step]
        if not is_position:
            np.add(previous, wanted[step], out=target[step])
            np.minimum(np.maximum(target[step], lower), upper, out=goal)
        np.minimum(np.maximum(goal, previous - most), previous + most, out=here)
        # The last word is the position's; `_require_way_back` made the two agree up to rounding.
        np.minimum(np.maximum(here, lower), upper, out=here)
        previous = here
    return _Way(target, inside, allowed, before)


def _explain(way: _Way, row: int, joint: int, limit: _Columns, seconds: float, is_position: bool) -> str:
    """What is wrong with a step, and by which limit."""
    target, inside, before = way.target[row, joint], way.inside[row, joint], way.before[row, joint]
    if is_position:
        return f"position {target:.6g}, outside [{limit.lower[joint]:.6g}, {limit.upper[joint]:.6g}]"
    if limit.step[joint] < limit.speed[joint] * seconds:
        return (
            f"change {inside - before:.6g} (position {inside:.6g} after {before:.6g}), "
            f"beyond {limit.step[joint]:.6g} a step"
        )
    return (
        f"speed {(inside - before) / seconds:.6g} (position {inside:.6g} after {before:.6g} in "
        f"{seconds:.4g} s), beyond {limit.speed[joint]:.6g}"
    )


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
