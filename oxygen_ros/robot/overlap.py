# SPDX-License-Identifier: Apache-2.0
"""How a new chunk agrees with what is left of the one before it: not at all, by weights, or by a guide.

Here lives the memory of the last chunk, the weights and the blend. How a guide pulls the denoiser is each
model's `denoise`; what the controller follows is join.py; limits are in limits.py. One thread, the worker
(or whoever replays), calls everything.

Nothing in here looks at a clock: what is left is told by the stamps of the two observations, and the delay is
a set number of steps. So a recording gives the same chunks again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import e, inf, isfinite
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.observation import Observation, Previous
from oxygen_ros.robot.chunk import Chunk

Mode = Literal["replace", "blend", "rtc"]
Schedule = Literal["exp", "linear", "ones", "zeros"]
MODES: tuple[Mode, ...] = ("replace", "blend", "rtc")
SCHEDULES: tuple[Schedule, ...] = ("exp", "linear", "ones", "zeros")


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
    tolerance:   how far a joint may be from where the chunk before has it [rad or m]; farther, and that
                 chunk is not being executed: nobody commands, or something is in the way

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
        """In words, with what was left to be measured or taken from the model. step: seconds."""
        if self.mode == "replace":
            return "replace"
        reach = "all that is left" if self.overlap is None else f"{self.overlap * step:g} s"
        words = (
            f"{self.mode}, delay {self.delay} steps ({self.delay * step:g} s), over {reach}, {self.schedule}"
        )
        return words + (f", weight up to {self.max_weight:g}" if self.mode == "rtc" else "")


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


def find_remains(previous: Chunk, stamp_ns: int, horizon: int, step: float) -> NDArray[np.float64]:
    """What `previous` has for the first actions of a chunk observed at `stamp_ns`: float64 [n, A].

    The new chunk's action i is due at stamp + (i + 1) * step; where that lies between two actions of the
    previous chunk, as it does when the period is no multiple of the step, the value lies between them too.
    n <= horizon; it is 0 when the previous chunk was over, or when it is the younger one.
    """
    if stamp_ns <= previous.stamp_ns:
        return np.empty((0, previous.values.shape[1]))
    due = np.rint(np.arange(1, horizon + 1) * (step * 1e9)).astype(np.int64) + (stamp_ns - previous.stamp_ns)
    has = previous.offsets_ns
    due = due[due <= has[-1]]
    # The first action due is after the previous chunk's first: its observation is the younger one.
    after = np.searchsorted(has, due).clip(1, max(previous.horizon - 1, 1))
    if previous.horizon == 1:
        return previous.values[np.zeros(len(due), np.int64)]
    part = ((due - has[after - 1]) / (has[after] - has[after - 1]))[:, None]
    before, to = previous.values[after - 1], previous.values[after]
    remains: NDArray[np.float64] = before + part * (to - before)
    return remains


class Overlap:
    """The last chunk that went out, and what a new one takes from it.

    There is none at first, after `forget` (a hold, another instruction, a clock that went back, an error,
    activation), when it has run out, when it was made from a later observation than the new one, and where
    the joints are not where it has them. Then the new chunk stands for itself, whatever the mode.

    strayed: how often the joints were elsewhere, where there was something to join
    """

    def __init__(self, rule: JoinRule, columns: Sequence[int] | None = None) -> None:
        """columns: of the actions' joints in an observation's; None: they are the same"""
        self.rule = rule
        self.strayed = 0
        self._columns = slice(None) if columns is None else list(columns)
        self._last: Chunk | None = None

    def forget(self) -> None:
        """What went out last will not have been executed, or belongs to another task or time."""
        self._last = None

    def remember(self, chunk: Chunk) -> None:
        """This one went out, within the limits: what will have been executed until the next is there."""
        self._last = chunk

    def find_previous(self, observation: Observation, horizon: int, step: float) -> Previous | None:
        """What the denoiser is to be guided towards for a new observation; None: nothing.

        Called once for each observation, before `blend`: from here on the last chunk is one to join, or none.
        """
        last = self._last
        if last is None or self.rule.mode == "replace":
            return None
        if self._has_strayed(last, observation):
            self.strayed += 1
            self._last = None
            return None
        if self.rule.mode != "rtc":
            return None
        remains = find_remains(last, observation.stamp, horizon, step)
        if not len(remains):
            return None
        # Beyond what is left the weights are zero; the last row keeps the values plausible.
        fill = np.broadcast_to(remains[-1], (horizon - len(remains), remains.shape[1]))
        weights = self._weigh(len(remains), horizon)
        return Previous(np.concatenate([remains, fill]), weights, self.rule.max_weight)

    def blend(self, chunk: Chunk) -> Chunk:
        """The new chunk with what is left of the last mixed in; the same object in the other modes.

        A value that is not finite stays so, for the limits to refuse it.
        """
        last = self._last
        if self.rule.mode != "blend" or last is None or last.joint_names != chunk.joint_names:
            return chunk
        if last.representation != chunk.representation:
            return chunk
        remains = find_remains(last, chunk.stamp_ns, chunk.horizon, chunk.step)
        count = len(remains)
        if not count:
            return chunk
        weights = self._weigh(count, chunk.horizon)[:count, None]
        values = chunk.values.copy()
        # In this form equal chunks give exactly themselves.
        values[:count] += weights * (remains - values[:count])
        return replace(chunk, values=values)

    def _has_strayed(self, last: Chunk, observation: Observation) -> bool:
        """Whether the joints are not where the last chunk has them at the time of the observation."""
        since = observation.stamp - last.stamp_ns
        due = last.offsets_ns
        # Of velocities nobody can tell; before the first action is due it is on its way there.
        if last.representation != "position" or not due[0] <= since <= due[-1]:
            return False
        observed = observation.joints[self._columns]
        after = max(int(np.searchsorted(due, since)), 1)
        part = (since - due[after - 1]) / (due[after] - due[after - 1]) if len(due) > 1 else 0.0
        before, to = last.values[after - 1], last.values[min(after, len(due) - 1)]
        return bool(np.abs(before + part * (to - before) - observed).max() > self.rule.tolerance)

    def _weigh(self, remaining: int, horizon: int) -> NDArray[np.float64]:
        rule = self.rule
        until = remaining if rule.overlap is None else min(rule.delay + rule.overlap, remaining)
        return weigh(rule.schedule, rule.delay, until, horizon)
