# SPDX-License-Identifier: Apache-2.0
"""How a new chunk's trajectory is joined to the one the controller follows, within the speed limits.

Here lives the memory of what was sent last, and nothing else: limits are in limits.py, the time axis in
chunk.py. One thread, the worker, calls everything.

Why the limits over the chunk are not enough: they are counted from the observation, and the trajectory
leaves later. Its first points are past and left out, and of the first one left only a part of its step
remains; asked as it stands, the controller would have to make up for the missing time at several times
the permitted speed. So the way from where the controller is *now* is limited once more.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.limits import Limits


class Joiner:
    """Makes the points of trajectories that a controller can follow from where it is.

    slowed: trajectories whose way was changed here
    """

    def __init__(self, limits: Limits) -> None:
        """limits: of all joints commanded. A join is always clamped: to refuse it would stop the arm for
        nothing but the time that inference took."""
        self.slowed = 0
        self._limits = Limits(limits.by_joint, "clamp")
        self._times: NDArray[np.int64] | None = None
        self._points: NDArray[np.float64] = np.empty((0, 0))

    def forget(self) -> None:
        """The controller was told something else meanwhile, or nothing: go by the joints observed."""
        self._times = None

    def join(
        self, chunk: Chunk, observed: NDArray[np.float64], now_ns: int
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """What is left of a chunk, reachable from the present.

        chunk:     positions within the limits, counted from its observation
        observed:  float64 [A], the joints in that observation [rad or m]
        now_ns:    the present [ns, ROS clock]

        The way starts where the last trajectory has the controller now, not at the measured joints: an
        arm follows its reference late, and a way from the measured ones would take the reference back.
        Returns time_from_start int64 [n] and positions float64 [n, A] as `Chunk.trajectory` does.
        Raises ChunkError when nothing of the chunk is left, or when it holds no positions.
        """
        if chunk.representation != "position":
            raise ChunkError(
                f"a trajectory needs positions; this chunk holds {chunk.representation!r} values"
            )
        reference = self._find_reference(now_ns, chunk.stamp_ns, observed)
        start = self._limits.clip_positions(chunk.joint_names, reference)
        limited = self._limits.apply(chunk, start, now_ns)
        offsets, positions = limited.chunk.trajectory(now_ns)
        self.slowed += bool(limited.clamped)
        self._times = np.concatenate([[now_ns], offsets + chunk.stamp_ns])
        self._points = np.vstack([start, positions])
        return offsets, positions

    def _find_reference(
        self, now_ns: int, seen_ns: int, observed: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Where the last trajectory has the joints now.

        The observed ones when there is none, or when it was over before they were seen: the arm may have
        been moved since. One that ended between observation and now has the joints at its end.
        """
        times = self._times
        if times is None or now_ns < times[0] or times[-1] < seen_ns:
            return observed
        if times[-1] < now_ns:
            end: NDArray[np.float64] = self._points[-1]
            return end
        after = min(int(np.searchsorted(times, now_ns, side="right")), len(times) - 1)
        part = (now_ns - int(times[after - 1])) / int(times[after] - times[after - 1])
        before, to = self._points[after - 1], self._points[after]
        reference: NDArray[np.float64] = before + part * (to - before)
        return reference
