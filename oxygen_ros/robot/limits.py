# SPDX-License-Identifier: Apache-2.0
"""Joint limits over a chunk: a limited chunk commands no position and no speed beyond them.

Collisions, accelerations and efforts are not checked; the controller limits those. Components that are no
joints are only checked to be finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from math import inf, isnan
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.actions import ActionSpace, ComponentKind
from oxygen_ros.robot.arithmetic import subtract
from oxygen_ros.robot.chunk import Chunk, ChunkError

# Beyond a limit by less than this [rad, m or their rates] is rounding: set to the limit, not reported.
ROUNDING = 1e-9


class LimitViolation(ChunkError):
    """An action beyond a limit, or not finite; names joint or component, step, value and limit."""


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
        self._groups: dict[ActionSpace, tuple[_Group, ...]] = {}

    def apply(
        self, chunk: Chunk, current: NDArray[np.float64], current_ns: int | None = None
    ) -> LimitedChunk:
        """Check or clamp a chunk.

        Joint positions are held within [lower, upper], and each differs from the one before it by at most
        velocity * step. Velocities are held within the speed limit, and such that the position they lead to,
        summed up from `current`, stays within [lower, upper]. Joint deltas are limited as the positions
        current + delta. Where the joint has a step limit, no action moves it farther than that. Other
        components are left as they are.

        current:     float64 [J], the joints of the chunk's space in its order [rad or m] at `current_ns`
        current_ns:  when they stood there [ns, ROS clock]; None: at the chunk's stamp. Give the newest
                     joints and their time when publishing: steps due by then are past and only brought
                     into range, and the first one left must be reachable in the time left. Else a late
                     chunk, whose first steps are dropped, would ask for all their motion at once.

        Raises LimitViolation in refuse mode; in both modes for values that are not finite, and for a
        joint so far outside its limits that no permitted step leads back. Raises ChunkError when a joint
        has no limit, `current` has another shape, all steps are past, or `current_ns` is given for joint
        deltas, which count from the joints at the stamp.
        """
        groups, joints = self._find_groups(chunk.space), len(chunk.space.joints)
        if current.shape != (joints,):
            raise ChunkError(f"current positions are {list(current.shape)} for {joints} joints")
        _require_finite(chunk, current)
        first, durations = _time_steps(chunk, current_ns)
        seconds = durations[first:, None]
        values, clamped = chunk.values.copy(), dict[str, int]()
        for group in groups:
            if current_ns is not None and group.kind is ComponentKind.JOINT_DELTA:
                raise ChunkError(f"joint {group.names[0]!r} is a delta: limit it at the stamp of its chunk")
            is_velocity = group.kind is ComponentKind.JOINT_VELOCITY
            asked, here = chunk.values[:, group.columns], current[group.places].astype(np.float64)
            # How far each step may lead [H - first, n].
            reach = np.minimum(group.speed * seconds, group.step)
            _require_way_back(group, here, reach[0])
            wanted = group.find_targets(asked, here, durations)
            way = _walk(wanted[first:], here, group, reach)
            for key, count in self._judge(group, first, way, seconds).items():
                clamped[key] = clamped.get(key, 0) + count
            limited = wanted.copy() if is_velocity else group.bring_inside(wanted)
            limited[first:] = way.allowed - way.before if is_velocity else way.allowed
            if group.kind is not ComponentKind.JOINT_POSITION:
                # Values that need no change keep every bit: the way back from positions would round them.
                kept = np.abs(limited - wanted) <= ROUNDING
                back = limited / durations[:, None] if is_velocity else subtract(limited, here)
                limited = np.where(kept, asked, back)
            if is_velocity:
                limited = np.minimum(np.maximum(limited, -group.speed), group.speed)
            values[:, group.columns] = limited
        same = np.array_equal(values, chunk.values)
        return LimitedChunk(chunk if same else replace(chunk, values=values), clamped)

    def clip_positions(self, space: ActionSpace, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions [A] of a space of joint positions brought into [lower, upper]."""
        (group,) = self._find_groups(space)
        return group.bring_inside(positions)

    def _find_groups(self, space: ActionSpace) -> tuple[_Group, ...]:
        """The joint columns of a space by kind, with their limits; made once for each space."""
        if space not in self._groups:
            missing = [name for name in space.joints if name not in self.by_joint]
            if missing:
                raise ChunkError(
                    f"no limits for {missing}; give each joint its own, infinite ones to leave it free"
                )
            joint_kinds = [kind for kind in space.kinds if kind.is_joint]
            groups = []
            for kind in dict.fromkeys(joint_kinds):
                places = [place for place, other in enumerate(joint_kinds) if other is kind]
                names = tuple(space.joints[place] for place in places)
                bounds = np.array([astuple(self.by_joint[name]) for name in names], np.float64).T.copy()
                groups.append(_Group(kind, space.places(kind), places, names, *bounds))
            if len(groups) == 1 and len(joint_kinds) == space.size:
                # All columns are one group: views of them cost less than chosen ones.
                groups = [groups[0]._replace(columns=slice(None), places=slice(None))]
            self._groups[space] = tuple(groups)
        return self._groups[space]

    def _judge(self, group: _Group, first: int, way: _Way, seconds: NDArray[np.float64]) -> dict[str, int]:
        """Count the actions that were changed, or raise at the first in refuse mode."""
        misplaced = np.abs(way.target - way.inside) > ROUNDING
        hurried = np.abs(way.inside - way.allowed) > ROUNDING
        if not (misplaced.any() or hurried.any()):
            return {}
        if self.mode == "refuse":
            row = int(np.flatnonzero((misplaced | hurried).any(axis=1))[0])
            is_position = bool(misplaced[row].any())
            joint = int(np.flatnonzero(misplaced[row] if is_position else hurried[row])[0])
            words = _explain(way, row, joint, group, float(seconds[row, 0]), is_position)
            raise LimitViolation(f"joint {group.names[joint]!r}, step {first + row} of the chunk: {words}")
        by_step = hurried & (group.step < group.speed * seconds)
        kinds = {"position": misplaced, "velocity": hurried & ~by_step, "step": by_step}
        totals = {kind: changed.sum(axis=0) for kind, changed in kinds.items()}
        return {
            f"{name}.{kind}": int(total[joint])
            for joint, name in enumerate(group.names)
            for kind, total in totals.items()
            if total[joint]
        }


class _Group(NamedTuple):
    """The n joint columns of one kind, and their limits [n] each.

    columns: of the action
    places:  among the joints of the action space
    """

    kind: ComponentKind
    columns: list[int] | slice
    places: list[int] | slice
    names: tuple[str, ...]
    lower: NDArray[np.float64]
    upper: NDArray[np.float64]
    speed: NDArray[np.float64]
    step: NDArray[np.float64]

    def find_targets(
        self, asked: NDArray[np.float64], here: NDArray[np.float64], durations: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """What `_walk` takes [H, n]: the columns as positions; for velocities the displacement of each step.

        From here on positions lie on a straight line; see arithmetic.py for joints that turn freely.
        """
        if self.kind is ComponentKind.JOINT_VELOCITY:
            return asked * durations[:, None]
        return here + asked if self.kind is ComponentKind.JOINT_DELTA else asked

    def bring_inside(self, positions: NDArray[np.float64]) -> NDArray[np.float64]:
        """Positions [..., n] within [lower, upper]. Not np.clip: on short rows that costs ten times this."""
        inside: NDArray[np.float64] = np.minimum(np.maximum(positions, self.lower), self.upper)
        return inside


class _Way(NamedTuple):
    """Positions [H, n] at each step: asked for, brought inside, allowed; and where the step began."""

    target: NDArray[np.float64]
    inside: NDArray[np.float64]
    allowed: NDArray[np.float64]
    before: NDArray[np.float64]


def _walk(
    wanted: NDArray[np.float64], current: NDArray[np.float64], limit: _Group, reach: NDArray[np.float64]
) -> _Way:
    """Go through the steps from `current`, each within the limits and its reach [H, n].

    wanted: positions, or displacements for velocities [H, n]
    """
    is_velocity = limit.kind is ComponentKind.JOINT_VELOCITY
    # Most chunks need no slowing down: each step ends where it was asked to, and no loop is needed.
    if not is_velocity:
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
    if is_velocity:
        target, inside = np.empty_like(wanted), np.empty_like(wanted)
    allowed, before = np.empty_like(wanted), np.empty_like(wanted)
    lower, upper, previous = limit.lower, limit.upper, current
    for step, most in enumerate(reach):
        before[step], goal, here = previous, inside[step], allowed[step]
        if is_velocity:
            np.add(previous, wanted[step], out=target[step])
            np.minimum(np.maximum(target[step], lower), upper, out=goal)
        np.minimum(np.maximum(goal, previous - most), previous + most, out=here)
        # Position limits come last; `_require_way_back` made both agree up to rounding.
        np.minimum(np.maximum(here, lower), upper, out=here)
        previous = here
    return _Way(target, inside, allowed, before)


def _explain(way: _Way, row: int, joint: int, limit: _Group, seconds: float, is_position: bool) -> str:
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


def _require_way_back(group: _Group, here: NDArray[np.float64], reach: NDArray[np.float64]) -> None:
    lower, upper = group.lower, group.upper
    outside = np.maximum(lower - here, here - upper)
    for joint in np.flatnonzero(outside > reach + ROUNDING):
        raise LimitViolation(
            f"joint {group.names[joint]!r} stands at {here[joint]:.6g}, outside its limits "
            f"[{lower[joint]:.6g}, {upper[joint]:.6g}] by more than the first step at full speed "
            f"({reach[joint]:.6g}); move it back by hand, or correct the limits"
        )


def _require_finite(chunk: Chunk, current: NDArray[np.float64]) -> None:
    """Refuse NaN and infinity, of any column: no limit makes an action of them."""
    space = chunk.space
    bad = np.argwhere(~np.isfinite(chunk.values))
    if len(bad):
        step, column = (int(index) for index in bad[0])
        what = "joint" if space.kinds[column].is_joint else "component"
        raise LimitViolation(
            f"{what} {space.columns[column]!r}, step {step} of the chunk: value is "
            f"{chunk.values[step, column]}, which is not finite (limit: any finite value); "
            f"{len(bad)} of {chunk.values.size} values are so"
        )
    for joint in np.flatnonzero(~np.isfinite(current)):
        raise LimitViolation(
            f"joint {space.joints[joint]!r}: current position is {current[joint]}, which is not finite"
        )
