# SPDX-License-Identifier: Apache-2.0
"""Joint states by name, merged over messages and sampled at one instant.

The buffer keeps a short history per joint. The synchronizer decides which instant is wanted, and how old is
too old. All methods are called from one thread, the worker.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.robot.arithmetic import interpolate

# Bounds the memory whatever the rate: 8 s of one joint at 500 Hz.
MAX_READINGS = 4096
OTHERS_KEPT = 8  # names of unknown joints, for messages

FaultReason = Literal["silent", "stale", "rejected"]


@dataclass(frozen=True, slots=True)
class JointFault:
    """Why a joint has no value at an instant, or what was wrong with a message of joints.

    joint:   its name; "" for the message as a whole
    reason:  silent: never received. stale: no reading near enough. rejected: its reading there was refused
    detail:  the message's part after the joint's name
    """

    joint: str
    reason: FaultReason
    detail: str

    def __str__(self) -> str:
        return summarize([self])


class _Track:
    """Readings of one joint in the order of their stamps; a rejected reading is a NaN in its place."""

    __slots__ = ("lower", "name", "rejection", "stamps", "upper", "values")

    def __init__(self, name: str, lower: float, upper: float) -> None:
        self.name = name
        self.lower = lower
        self.upper = upper
        self.stamps: list[int] = []
        self.values: list[float] = []
        self.rejection: JointFault | None = None  # of the last rejected reading

    def insert(self, stamp_ns: int, value: float, history_ns: int) -> None:
        """Put a reading in its place; a second one with the same stamp replaces the first."""
        stamps, values = self.stamps, self.values
        if not stamps or stamp_ns > stamps[-1]:
            stamps.append(stamp_ns)
            values.append(value)
            if stamps[0] < stamp_ns - history_ns or len(stamps) > MAX_READINGS:
                drop = max(bisect_left(stamps, stamp_ns - history_ns), len(stamps) - MAX_READINGS)
                del stamps[:drop], values[:drop]
            return
        if stamp_ns < stamps[-1] - history_ns:
            return
        at = bisect_left(stamps, stamp_ns)
        if stamps[at] == stamp_ns:
            values[at] = value
        elif at > 0 or len(stamps) < MAX_READINGS:
            stamps.insert(at, stamp_ns)
            values.insert(at, value)
            if len(stamps) > MAX_READINGS:
                del stamps[0], values[0]

    def around(self, stamp_ns: int, oldest: int, newest: int) -> tuple[int, int]:
        """Indices of the neighbors (at or before, after) within oldest..newest; -1 for none."""
        stamps = self.stamps
        after = bisect_right(stamps, stamp_ns)
        before = after - 1
        if before >= 0 and stamps[before] < oldest:
            before = -1
        if after >= len(stamps) or stamps[after] > newest:
            after = -1
        return before, after

    def value_at(self, stamp_ns: int, oldest: int, newest: int) -> float:
        """Interpolated or nearest reading; NaN when there is none or a neighbor was rejected."""
        before, after = self.around(stamp_ns, oldest, newest)
        if before < 0 and after < 0:
            return nan
        stamps, values = self.stamps, self.values
        if after < 0 or (before >= 0 and stamps[before] == stamp_ns):
            return values[before]
        if before < 0:
            return values[after]
        share = (stamp_ns - stamps[before]) / (stamps[after] - stamps[before])
        return interpolate(values[before], values[after], share)


class JointBuffer:
    """The last readings of the joints a model uses.

    names:       joints in the order of the state vector [J]
    ranges:      joint -> (lowest, highest) believable position [rad or m], bounds included; a reading
                 outside is a failed one. Joints without an entry are not range-checked. Wider than the
                 joint's limits by the noise of its encoder.
    history_ns:  how far back readings are kept [ns]

    Raises ValueError for a duplicate name, a range of an unknown joint or in the wrong order,
    or a history which is not positive.
    """

    def __init__(
        self, names: Sequence[str], ranges: Mapping[str, tuple[float, float]] | None, history_ns: int
    ) -> None:
        if history_ns <= 0:
            raise ValueError(f"history_ns is {history_ns}; it must be positive")
        ranges = ranges or {}
        for name, (lower, upper) in ranges.items():
            if name not in names:
                raise ValueError(f"range for joint {name!r}, which is not among {list(names)}")
            if not lower < upper:
                raise ValueError(f"range of joint {name!r} is [{lower}, {upper}]; lowest must come first")
        self.names = tuple(names)
        self.history_ns = history_ns
        unlimited = (-float("inf"), float("inf"))
        self._tracks = {name: _Track(name, *ranges.get(name, unlimited)) for name in self.names}
        # Other names in messages, shown when a joint of ours never comes.
        self._others: dict[str, None] = {}
        if len(self._tracks) != len(self.names):
            raise ValueError(f"joint names must differ, got {list(names)}")

    @property
    def newest_ns(self) -> int | None:
        """Stamp of the newest reading of any used joint [ns], rejected ones included."""
        return max((track.stamps[-1] for track in self._tracks.values() if track.stamps), default=None)

    def add(
        self, stamp_ns: int, names: Sequence[str], positions: Sequence[float] | NDArray[np.float64]
    ) -> list[JointFault]:
        """Merge one JointState; any subset of the joints, in any order, beside any others.

        stamp_ns:   its header's stamp [ns]
        names:      its joints; unknown ones are ignored, whatever their value
        positions:  [rad or m], one for each name

        Returns what was rejected and why; [] when nothing was. A rejected reading blanks its joint around its
        stamp: `sample` there gives None rather than an older value. A message that names none of the joints
        is ignored.
        """
        tracks = self._tracks
        refusal = ""
        if len(names) != len(positions):
            refusal = f"{len(names)} names but {len(positions)} positions: each name needs one position"
        elif stamp_ns <= 0:
            refusal = f"stamp is {stamp_ns}: the publisher must fill header.stamp"
        if refusal:
            is_ours = any(name in tracks for name in names)
            return [JointFault("", "rejected", refusal)] if is_ours else []
        if isinstance(positions, np.ndarray):
            positions = positions.tolist()  # Python floats: the loop below is twice as fast on them
        rejections: list[JointFault] = []
        history_ns = self.history_ns
        for name, value in zip(names, positions, strict=True):
            track = tracks.get(name)
            if track is None:
                if len(self._others) < OTHERS_KEPT:
                    self._others[name] = None
                continue
            # Written so that NaN fails it; infinite bounds let no infinity pass.
            if not (track.lower <= value <= track.upper and isfinite(value)):
                track.rejection = _explain_value(track, value)
                rejections.append(track.rejection)
                value = nan
            track.insert(stamp_ns, value, history_ns)
        return rejections

    def sample(
        self, stamp_ns: int, max_age_ns: int, within: tuple[int, int] | None = None
    ) -> NDArray[np.float64] | None:
        """Positions of all joints at one instant.

        Between two readings that are both at most `max_age_ns` from the instant: linear interpolation;
        with one such reading, that one; with none, or where a neighbor was rejected: no sample.

        stamp_ns:    the instant [ns]
        max_age_ns:  largest distance of a reading from the instant [ns]
        within:      (oldest, newest) stamps [ns] a reading may have, besides

        Returns float64 [J] in the order of `names`, or None (`find_faults` says why).
        """
        oldest, newest = _window(stamp_ns, max_age_ns, within)
        sampled = np.array(
            [track.value_at(stamp_ns, oldest, newest) for track in self._tracks.values()], np.float64
        )
        return sampled if bool(np.isfinite(sampled).all()) else None

    def find_faults(
        self, stamp_ns: int, max_age_ns: int, within: tuple[int, int] | None = None
    ) -> list[JointFault]:
        """Why `sample` with the same arguments gives None: a fault for each joint without a value there."""
        oldest, newest = _window(stamp_ns, max_age_ns, within)
        faults = []
        for name, track in self._tracks.items():
            if isfinite(track.value_at(stamp_ns, oldest, newest)):
                continue
            if not track.stamps:
                carried = f" (messages carry {', '.join(self._others)})" if self._others else ""
                faults.append(JointFault(name, "silent", f": never received{carried}"))
            elif track.rejection and max(track.around(stamp_ns, oldest, newest)) >= 0:
                faults.append(track.rejection)
            else:
                distance = min((stamp_ns - stamp for stamp in track.stamps), key=abs)
                side = "older" if distance >= 0 else "newer"
                detail = (
                    f": nearest reading is {abs(distance) / 1e9:.3f} s {side} than the instant wanted "
                    f"(limit {max_age_ns / 1e9:.3f} s)"
                )
                faults.append(JointFault(name, "stale", detail))
        return faults

    def discard_after(self, stamp_ns: int) -> int:
        """Forget readings stamped later; returns how many. For stamps that lie in the future.

        Such a reading may have displaced the joint's history already: the joint is then missing until
        its next reading, which is the safe side.
        """
        discarded = 0
        for track in self._tracks.values():
            keep = bisect_right(track.stamps, stamp_ns)
            discarded += len(track.stamps) - keep
            del track.stamps[keep:], track.values[keep:]
        return discarded

    def clear(self) -> None:
        """Forget all readings: after a backward clock jump, or when a bag starts again."""
        for track in self._tracks.values():
            track.stamps.clear()
            track.values.clear()
            track.rejection = None


def summarize(faults: Iterable[JointFault]) -> str:
    """Faults in one sentence: joints with the same fault are named together."""
    joints: dict[str, list[str]] = {}
    for fault in dict.fromkeys(faults):
        joints.setdefault(fault.detail, []).extend([repr(fault.joint)] if fault.joint else [])
    return "; ".join(
        f"joint{'s' if len(names) > 1 else ''} {', '.join(names)}{detail}" if names else detail
        for detail, names in joints.items()
    )


def _window(stamp_ns: int, max_age_ns: int, within: tuple[int, int] | None) -> tuple[int, int]:
    oldest, newest = stamp_ns - max_age_ns, stamp_ns + max_age_ns
    if within is None:
        return oldest, newest
    return max(oldest, within[0]), min(newest, within[1])


def _explain_value(track: _Track, value: float) -> JointFault:
    outside = f", outside its range [{track.lower:.6g}, {track.upper:.6g}]"
    words = f" reads {value:.6g}{outside}" if isfinite(value) else f" reads {value}"
    return JointFault(track.name, "rejected", f"{words}; a failed read?")
