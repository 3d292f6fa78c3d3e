# SPDX-License-Identifier: Apache-2.0
"""The memory of the last chunk, and what a new one takes from it: a guide, a blend, a trajectory.

The guide is applied by each model's `denoise`. One thread calls everything, the node's worker or a replay. No
clock is read: what is left of a chunk follows from the stamps of the two observations, and the delay is a set
number of steps, so that a recording gives the same chunks again.

A trajectory is limited after its chunk was: the chunk's limits count from the observation, and the trajectory
is sent later, without its past points and with only a part of the first step left. The controller would have
to catch up at several times the permitted speed. So the way from where the controller is *now* is limited.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.actions import ActionSpace, ComponentKind
from oxygen_ros.observation import Leftover
from oxygen_ros.robot.arithmetic import interpolate, subtract
from oxygen_ros.robot.chunk import Chunk, ChunkError, explain_uncommandable
from oxygen_ros.robot.joining.rule import JoinRule
from oxygen_ros.robot.limits import Limits


@dataclass(frozen=True, slots=True, eq=False)
class Trajectory:
    """The part of a chunk that a controller is sent, and where its way to the first point begins.

    stamp_ns:   time of the chunk's observation [ns, ROS clock]
    offsets:    int64 [n], when each point is due, counted from the stamp [ns]
    positions:  float64 [n, A], the points [rad or m]
    start_ns:   the present, when the trajectory was made [ns, ROS clock]
    start:      float64 [A], where the controller is then [rad or m]
    """

    stamp_ns: int
    offsets: NDArray[np.int64]
    positions: NDArray[np.float64]
    start_ns: int
    start: NDArray[np.float64]

    def find_reference(self, now_ns: int, seen_ns: int) -> NDArray[np.float64] | None:
        """Where the controller has the joints at `now_ns`: float64 [A].

        None before the trajectory was made, and when it ended before `seen_ns`, the time of the new
        observation: the arm may have been moved since. One that ended after that has the joints at its end.
        """
        end_ns = self.stamp_ns + int(self.offsets[-1])
        if now_ns < self.start_ns or end_ns < seen_ns:
            return None
        if end_ns < now_ns:
            end: NDArray[np.float64] = self.positions[-1]
            return end
        times = np.concatenate([[self.start_ns], self.offsets + self.stamp_ns])
        points = np.vstack([self.start, self.positions])
        after = min(int(np.searchsorted(times, now_ns, side="right")), len(times) - 1)
        share = (now_ns - int(times[after - 1])) / int(times[after] - times[after - 1])
        before, to = points[after - 1], points[after]
        reference: NDArray[np.float64] = interpolate(before, to, share)
        return reference


class ChunkJoiner:
    """The last chunk that was published, the trajectory sent of it, and what a new chunk takes from both.

    There is no last chunk at first, after `forget`, when it has run out, when its observation is the later
    one, and when the joints are not where it has them. A new chunk is then unchanged in every mode.

    rule:        what a new chunk takes
    trajectory:  the last one remembered, which the controller follows; None: the next way starts at the
                 observed joints
    strayed:     how often the joints were elsewhere, where there was something to join
    slowed:      trajectories that were slowed down where they join the one before
    """

    def __init__(self, rule: JoinRule, limits: Limits, columns: Sequence[int] | None = None) -> None:
        """limits:  of all joints commanded. Trajectories are always clamped to them: to refuse one would stop
                    the arm only because inference took time
        columns: place of each joint of the actions among an observation's joints; None: they are the same
        """
        self.rule = rule
        self.trajectory: Trajectory | None = None
        self.strayed = 0
        self.slowed = 0
        self._limits = Limits(limits.by_joint, "clamp")
        self._columns = slice(None) if columns is None else list(columns)
        self._last: Chunk | None = None

    def remember(self, chunk: Chunk, trajectory: Trajectory | None = None) -> None:
        """A chunk was published, within the limits: this will have been executed until the next one is there.

        trajectory: what the controller was sent of it; None: nothing
        """
        self._last, self.trajectory = chunk, trajectory

    def forget(self, still_followed: bool = False) -> None:
        """Let no chunk join the last one: it will not have been executed, or is of another task or time.

        still_followed: the controller follows the last trajectory until the next one (new instruction,
                        error). Else it has another command (hold), or none
        """
        self._last = None
        if not still_followed:
            self.trajectory = None

    def find_leftover(
        self, stamp_ns: int, joints: NDArray[np.float64], horizon: int, step: float
    ) -> Leftover | None:
        """What the denoiser is to be guided towards for a new observation; None: nothing.

        Call it once for each observation, in every mode, before `blend`: it decides whether there is a last
        chunk to join.

        stamp_ns:       time of the observation [ns, ROS clock]
        joints:         float64 [J], the observation's joints [rad or m]
        horizon, step:  of the new chunk, step in seconds

        Raises ChunkError when the rule cannot join the last chunk (see `JoinRule.explain_unjoinable`).
        """
        last = self._last
        if last is None or self.rule.mode == "replace":
            return None
        self._require_joinable(last)
        if self._has_strayed(last, stamp_ns, joints):
            self.strayed += 1
            self._last = None
            return None
        if self.rule.mode != "rtc":
            return None
        rest = find_rest(last, stamp_ns, horizon, step)
        if not len(rest):
            return None
        # Beyond what is left the weights are zero; the last row keeps the values plausible.
        fill = np.broadcast_to(rest[-1], (horizon - len(rest), rest.shape[1]))
        weights = self.rule.weigh(len(rest), horizon)
        return Leftover(np.concatenate([rest, fill]), weights, self.rule.max_weight)

    def blend(self, chunk: Chunk) -> Chunk:
        """The new chunk with what is left of the last mixed in; the same object in the other modes.

        A value that is not finite stays so, for the limits to refuse it. Chunks of different action spaces
        are not mixed. Raises ChunkError when the rule cannot join the chunk.
        """
        last = self._last
        if self.rule.mode != "blend" or last is None or last.space != chunk.space:
            return chunk
        self._require_joinable(chunk)
        rest = find_rest(last, chunk.stamp_ns, chunk.horizon, chunk.step)
        count = len(rest)
        if not count:
            return chunk
        weights = self.rule.weigh(count, chunk.horizon)[:count, None]
        values = chunk.values.copy()
        # Interpolated from the new chunk's side, equal chunks give exactly themselves.
        values[:count] = interpolate(values[:count], rest, weights)
        return replace(chunk, values=values)

    def join(self, chunk: Chunk, observed: NDArray[np.float64], now_ns: int) -> Trajectory:
        """What is left of a chunk, reachable from the present. Give it to `remember` once it is sent.

        chunk:     joint positions within the limits, counted from its observation
        observed:  float64 [A], the joints in that observation [rad or m]
        now_ns:    the present [ns, ROS clock]

        The way starts where the last trajectory has the controller now, not at the measured joints: an arm
        follows its reference late, and a way from the measured ones would take the reference back.
        Raises ChunkError when nothing of the chunk is left, or when not all of it are joint positions.
        """
        if problem := explain_uncommandable(chunk.space):
            raise ChunkError(problem)
        sent = self.trajectory
        reference = None if sent is None else sent.find_reference(now_ns, chunk.stamp_ns)
        start = self._limits.clip_positions(chunk.space, observed if reference is None else reference)
        limited = self._limits.apply(chunk, start, now_ns)
        offsets, positions = limited.chunk.trajectory(now_ns)
        self.slowed += bool(limited.clamped)
        return Trajectory(chunk.stamp_ns, offsets, positions, now_ns, start)

    def _require_joinable(self, chunk: Chunk) -> None:
        if problem := self.rule.explain_unjoinable(chunk.space):
            raise ChunkError(problem)

    def _has_strayed(self, last: Chunk, stamp_ns: int, joints: NDArray[np.float64]) -> bool:
        """Whether a joint is not where the last chunk has it at the time of the observation.

        Only joint positions can be compared with the observed joints. Before the first action is due the
        joint is still on its way there.
        """
        since = stamp_ns - last.stamp_ns
        due = last.offsets_ns
        columns, places = _find_positions(last.space)
        if not columns or not due[0] <= since <= due[-1]:
            return False
        observed = joints[self._columns][places]
        after = max(int(np.searchsorted(due, since)), 1)
        share = (since - due[after - 1]) / (due[after] - due[after - 1]) if len(due) > 1 else 0.0
        before, to = last.values[after - 1, columns], last.values[min(after, len(due) - 1), columns]
        away = subtract(interpolate(before, to, share), observed)
        return bool(np.abs(away).max() > self.rule.tolerance)


def find_rest(last: Chunk, stamp_ns: int, horizon: int, step: float) -> NDArray[np.float64]:
    """What `last` has for the first actions of a chunk observed at `stamp_ns`: float64 [n, A].

    The new chunk's action i is due at stamp + (i + 1) * step. When the period is no multiple of the step,
    that lies between two actions of the last chunk, and so does the value.
    n <= horizon; it is 0 when the last chunk was over, or when its observation is not the earlier one.
    """
    if stamp_ns <= last.stamp_ns:
        return np.empty((0, last.values.shape[1]))
    due = np.rint(np.arange(1, horizon + 1) * (step * 1e9)).astype(np.int64) + (stamp_ns - last.stamp_ns)
    has = last.offsets_ns
    due = due[due <= has[-1]]
    # The first action due is after the last chunk's first: its observation is the earlier one.
    after = np.searchsorted(has, due).clip(1, max(last.horizon - 1, 1))
    if last.horizon == 1:
        return last.values[np.zeros(len(due), np.int64)]
    share = ((due - has[after - 1]) / (has[after] - has[after - 1]))[:, None]
    return interpolate(last.values[after - 1], last.values[after], share)


@lru_cache
def _find_positions(space: ActionSpace) -> tuple[list[int], list[int]]:
    """The columns that are joint positions, and the places of these joints among `space.joints`."""
    position = ComponentKind.JOINT_POSITION
    joints = [kind for kind in space.kinds if kind.is_joint]
    return space.places(position), [place for place, kind in enumerate(joints) if kind is position]
