# SPDX-License-Identifier: Apache-2.0
"""Joint trajectories followed in time, each new one spliced into the old. numpy only; no ROS, no robot.

The rules are those ros2_controllers documents for `joint_trajectory_controller` ("Trajectory
replacement"): points whose time has passed are dropped; a trajectory with none left is refused and
the old one goes on; the old one is followed until the new one's start (its stamp, or now if that has
passed), then the way leads in a straight line to the first point that is left (from now on, where
that point is due at the start itself: there is never a jump). Between points that have positions
only, that controller interpolates linearly, and so does this.

Not thread-safe: one thread owns an executor.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


class TrajectoryRefused(ValueError):
    """The trajectory is not followed; with the reason. The earlier one goes on."""


class TrajectoryExecutor:
    """Follows joint trajectories for a fixed list of joints."""

    def __init__(self, joint_names: Sequence[str], positions: ArrayLike) -> None:
        """`positions` [J] are held until the first trajectory."""
        self._names = tuple(joint_names)
        if len(set(self._names)) != len(self._names):
            raise ValueError(f"joint names repeat: {', '.join(self._names)}")
        self.hold(positions)

    @property
    def joint_names(self) -> tuple[str, ...]:
        """The joints, in the order of `target`."""
        return self._names

    def hold(self, positions: ArrayLike) -> None:
        """Forget every trajectory and stay at `positions` [J]."""
        held = np.asarray(positions, dtype=np.float64)
        if held.shape != (len(self._names),):
            raise ValueError(
                f"positions have shape {held.shape}; {len(self._names)} joints need [{len(self._names)}]"
            )
        if not np.isfinite(held).all():
            raise ValueError(f"positions to hold are not finite: {held.tolist()}")
        self._times: NDArray[np.int64] = np.zeros(1, np.int64)
        self._points: NDArray[np.float64] = held.reshape(1, -1).copy()

    def accept(
        self,
        joint_names: Sequence[str],
        stamp_ns: int,
        times_ns: ArrayLike,
        positions: ArrayLike,
        now_ns: int,
    ) -> None:
        """Follow a new trajectory.

        joint_names:  names of the columns, each of the executor's joints once, in any order
        stamp_ns:     when the trajectory starts; 0 means now
        times_ns:     [N] of the points since the start, strictly increasing, not negative
        positions:    [N, J] in the order of `joint_names`
        now_ns:       the present, on the same clock as `stamp_ns`

        Raises TrajectoryRefused and changes nothing when the trajectory cannot be followed.
        """
        columns = self._columns(joint_names)
        offsets, points = self._checked(times_ns, positions, len(joint_names))
        start = int(stamp_ns) if stamp_ns else int(now_ns)
        times = offsets + start
        left = times > now_ns
        if not left.any():
            late = (now_ns - int(times[-1])) / 1e9
            raise TrajectoryRefused(f"all {len(times)} points are past; the last one by {late:.3f} s")
        first = int(times[left][0])
        splice = max(start, int(now_ns))
        if splice >= first:  # the first point is due at the start itself: the way to it begins now
            splice = int(now_ns)
        between = (self._times > now_ns) & (self._times < splice)
        ends = np.unique(np.array([int(now_ns), splice]))
        old_times = np.concatenate([ends[:1], self._times[between], ends[1:]])
        old_points = np.stack([self.target(int(t)) for t in old_times])
        self._times = np.concatenate([old_times, times[left]])
        self._points = np.concatenate([old_points, points[left][:, columns]])

    def target(self, now_ns: int) -> NDArray[np.float64]:
        """Where the joints [J] should be: linear between points, the last point after the end."""
        after = int(np.searchsorted(self._times, now_ns, side="right"))
        first: NDArray[np.float64] = self._points[max(after - 1, 0)]
        if after in (0, len(self._times)):
            return first.copy()
        begin, end = self._times[after - 1], self._times[after]
        part = float(now_ns - begin) / float(end - begin)
        last: NDArray[np.float64] = self._points[after]
        return first + (last - first) * part

    def finished(self, now_ns: int) -> bool:
        """Whether nothing but holding the last point is left."""
        return bool(now_ns >= self._times[-1])

    def _columns(self, joint_names: Sequence[str]) -> list[int]:
        given = list(joint_names)
        unknown = [name for name in given if name not in self._names]
        if unknown:
            raise TrajectoryRefused(
                f"unknown joint {', '.join(unknown)}; the joints are {', '.join(self._names)}"
            )
        missing = [name for name in self._names if name not in given]
        if missing:
            raise TrajectoryRefused(f"joint {', '.join(missing)} is missing; every joint must be given")
        if len(given) != len(self._names):
            twice = sorted({name for name in given if given.count(name) > 1})
            raise TrajectoryRefused(f"joint {', '.join(twice)} is given more than once")
        return [given.index(name) for name in self._names]

    def _checked(
        self, times_ns: ArrayLike, positions: ArrayLike, joints: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        times = np.asarray(times_ns, dtype=np.int64).reshape(-1)
        if len(times) == 0:
            raise TrajectoryRefused("it has no points")
        try:
            points = np.asarray(positions, dtype=np.float64)
        except ValueError as error:
            raise TrajectoryRefused(f"its points do not all have {joints} positions") from error
        if points.shape != (len(times), joints):
            raise TrajectoryRefused(
                f"positions have shape {points.shape}; {len(times)} times and {joints} joints need "
                f"({len(times)}, {joints})"
            )
        if times[0] < 0:
            raise TrajectoryRefused(f"the first point is {-times[0] / 1e9:.3f} s before the start")
        steps = np.diff(times)
        if (steps <= 0).any():
            bad = int(np.flatnonzero(steps <= 0)[0])
            raise TrajectoryRefused(
                f"times must increase: point {bad + 1} is at {times[bad + 1] / 1e9:.3f} s, point {bad} at "
                f"{times[bad] / 1e9:.3f} s"
            )
        if not np.isfinite(points).all():
            row, column = (int(i) for i in np.argwhere(~np.isfinite(points))[0])
            raise TrajectoryRefused(f"position {column} of point {row} is {points[row, column]}")
        return times, points
