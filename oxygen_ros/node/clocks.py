# SPDX-License-Identifier: Apache-2.0
"""ROS time, sim time and the steady clock, and the jumps of the first two.

Stamps are compared on the ROS clock. Periods run on sim time under use_sim_time, else on the steady clock,
which cannot be set. Watchdogs always run on the steady clock, so that a stopped /clock is noticed. The jump
callbacks run in the executor's thread and only set numbers; the worker reads them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from rclpy.clock import ClockChange, JumpThreshold, ROSClock, TimeJump
from rclpy.duration import Duration
from rclpy.node import Node

# A smaller backward step is the ROS clock being slewed, not a new run [s].
SMALLEST_JUMP = 0.05
# Without an advance for this long the simulation's clock counts as stopped [s].
SILENCE = 1.0
# A larger forward step of sim time is a leap: no period in it counts as missed [s].
LEAP = 1.0


class Clocks:
    """The node's clocks."""

    def __init__(self, node: Node, wake: Callable[[], None]) -> None:
        """wake: called when sim time moved or a clock jumped"""
        clock = node.get_clock()
        assert isinstance(clock, ROSClock)  # what rclpy gives every node
        self._clock = clock
        self._wake = wake
        self._jumps = self._leaps = 0
        self._seen = (0, 0)
        self._last_advance = time.monotonic()
        # (steady, sim) of the last advances, for the speed of the simulation.
        self._advances: deque[tuple[float, float]] = deque(maxlen=64)
        back = Duration(nanoseconds=-int(SMALLEST_JUMP * 1e9))
        ahead = Duration(nanoseconds=1)
        threshold = JumpThreshold(min_forward=ahead, min_backward=back, on_clock_change=True)
        self._handle = clock.create_jump_callback(threshold, post_callback=self._on_jump)

    @property
    def is_sim(self) -> bool:
        return bool(self._clock.ros_time_is_active)

    def now_ns(self) -> int:
        """ROS time [ns]; 0 under use_sim_time before the first /clock."""
        return int(self._clock.now().nanoseconds)

    def now(self) -> float:
        """Seconds on the clock that periods run on: sim time, else the steady clock."""
        return self.now_ns() / 1e9 if self.is_sim else time.monotonic()

    def steady(self, due: float) -> float:
        """When `due`, on the clock of `now`, is expected on the steady clock [s]."""
        if not self.is_sim:
            return due
        return time.monotonic() + (due - self.now()) / self._rate()

    def silence(self) -> float:
        """Seconds (steady) since /clock advanced, when more than SILENCE; else 0."""
        if not self.is_sim:
            return 0.0
        quiet = time.monotonic() - self._last_advance
        return quiet if quiet > SILENCE else 0.0

    def take_jumps(self) -> tuple[bool, bool]:
        """Whether time went back since the last call, and whether sim time leapt. Called by the worker."""
        seen, self._seen = self._seen, (self._jumps, self._leaps)
        return self._seen[0] != seen[0], self._seen[1] != seen[1]

    def _on_jump(self, jump: TimeJump) -> None:
        is_backward = jump.delta.nanoseconds < 0
        is_change = jump.clock_change in (ClockChange.ROS_TIME_ACTIVATED, ClockChange.ROS_TIME_DEACTIVATED)
        if is_backward or is_change:
            self._jumps += 1
            self._advances.clear()
        elif jump.delta.nanoseconds > LEAP * 1e9:
            self._leaps += 1
            self._advances.clear()
        self._last_advance = time.monotonic()
        self._advances.append((self._last_advance, self.now_ns() / 1e9))
        self._wake()

    def _rate(self) -> float:
        """Simulated seconds per second, 1.0 while unknown; bounded below, so that a wait ends."""
        advances = list(self._advances)
        if len(advances) < 2:
            return 1.0
        (steady_0, sim_0), (steady_1, sim_1) = advances[0], advances[-1]
        return max((sim_1 - sim_0) / max(steady_1 - steady_0, 1e-6), 0.01)
