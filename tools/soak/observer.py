# SPDX-License-Identifier: Apache-2.0
"""The node's chunks, ticks and diagnostics, each with the time of its publication.

`expectations` and `summary` judge it. Times are the middleware's own stamps of publication [ns, wall clock],
so that a slow observer changes no figure.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.srv import ChangeState, GetState
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import String

from oxygen_ros.msg import ActionChunk, TickStats

_RELIABLE = QoSProfile(depth=200, reliability=ReliabilityPolicy.RELIABLE)
_LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
_BEST_EFFORT = QoSProfile(depth=200, reliability=ReliabilityPolicy.BEST_EFFORT)
KEPT = 2000  # messages of a kind


@dataclass(frozen=True, slots=True)
class HeardChunk:
    """stamp_ns: of its observation; sent_ns: when it was published; is_finite: all its values."""

    tick: int
    stamp_ns: int
    sent_ns: int
    is_finite: bool


@dataclass(frozen=True, slots=True)
class HeardStatus:
    """One part of /diagnostics. words: its message; values: those that are counts, or tell what is past."""

    sent_ns: int
    part: str
    is_ok: bool
    words: str
    values: str


class Observer(Node):
    """Listens to a node named `oxygen`. One thread, inside `spin`."""

    def __init__(self) -> None:
        super().__init__("soak_observer")
        self.chunks: deque[HeardChunk] = deque(maxlen=KEPT)
        self.ticks: deque[TickStats] = deque(maxlen=KEPT)
        self.statuses: deque[HeardStatus] = deque(maxlen=4 * KEPT)
        self.chunk_count = 0
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)
        self.create_subscription(ActionChunk, "/oxygen/action_chunk", self._hear_chunk, _RELIABLE)
        self.create_subscription(TickStats, "/oxygen/tick", self._hear_tick, _BEST_EFFORT)
        self.create_subscription(DiagnosticArray, "/diagnostics", self._hear_diagnostics, _RELIABLE)
        self.questions = self.create_publisher(String, "/oxygen/question", QoSProfile(depth=1000))
        self.instructions = self.create_publisher(String, "/oxygen/instruction", _LATCHED)

    def spin(self, seconds: float) -> None:
        """Handle what comes within `seconds`."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self._executor.spin_once(timeout_sec=left)

    def change_state(self, label: str, node: str = "oxygen", timeout: float = 60.0) -> bool | None:
        """Make a transition; whether it succeeded, or None when no answer came in time."""
        request = ChangeState.Request()
        request.transition.label = label
        answer = self.call(ChangeState, f"/{node}/change_state", request, timeout)
        return None if answer is None else bool(answer.success)

    def get_state(self, node: str = "oxygen", timeout: float = 5.0) -> str:
        """The lifecycle state, or "" when no answer came in time."""
        answer = self.call(GetState, f"/{node}/get_state", GetState.Request(), timeout)
        return "" if answer is None else str(answer.current_state.label)

    def call(
        self, kind: Any, name: str, request: Any, timeout: float, stop: Callable[[], bool] = lambda: False
    ) -> Any:
        """A service's answer; None when none came in time."""
        client = self.create_client(kind, name)
        until = time.monotonic() + timeout
        try:
            while not client.service_is_ready():
                if time.monotonic() > until or stop():
                    return None
                self.spin(0.02)
            future = client.call_async(request)
            while not future.done():
                if time.monotonic() > until or stop():
                    return None
                self.spin(0.02)
            return future.result()
        finally:
            self.destroy_client(client)

    def close(self) -> None:
        self._executor.shutdown()
        self.destroy_node()

    def _hear_chunk(self, message: ActionChunk, info: Any) -> None:
        stamp = message.header.stamp
        self.chunk_count += 1
        self.chunks.append(
            HeardChunk(
                message.tick,
                stamp.sec * 1_000_000_000 + stamp.nanosec,
                info["source_timestamp"],
                all(math.isfinite(value) for value in message.values),
            )
        )

    def _hear_tick(self, message: TickStats) -> None:
        self.ticks.append(message)

    def _hear_diagnostics(self, message: DiagnosticArray, info: Any) -> None:
        for status in message.status:
            part = status.name.partition(": ")[2]
            is_ok = status.level == DiagnosticStatus.OK
            values = "; ".join(f"{pair.key}: {pair.value}" for pair in status.values)
            self.statuses.append(HeardStatus(info["source_timestamp"], part, is_ok, status.message, values))


def start_ros() -> None:
    """rclpy without its signal handlers: the program handles Ctrl-C."""
    rclpy.init(args=[], signal_handler_options=rclpy.signals.SignalHandlerOptions.NO)
