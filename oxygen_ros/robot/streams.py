# SPDX-License-Identifier: Apache-2.0
"""What is counted, and what is said, about one input stream: rate, age, the last thing that was wrong.

Here lives no message content and no decision about what is coherent (sampler.py).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

Reason = Literal["silent", "stale", "unsynchronised", "unstamped", "rejected", "future"]

JOINTS = "joint_states"  # the stream that is no camera

_RATE_WINDOW = 64  # messages
_QUIET_NS = 1_000_000_000  # without a message for this long (and three periods) the rate is 0


@dataclass(frozen=True, slots=True)
class StreamProblem:
    """Why a stream gives no input now, or what was wrong with a message of it.

    stream:  camera name, or "joint_states"
    reason:  silent: nothing was received since the start. stale: the newest stamp is too old.
             unsynchronised: fresh, but no set of all cameras within the skew. unstamped: stamp zero.
             rejected: content refused. future: stamped further ahead than inputs may be old.
    detail:  a sentence with the numbers (rate, age, skew) and what would be right
    """

    stream: str
    reason: Reason
    detail: str

    def __str__(self) -> str:
        return f"{self.stream}: {self.reason}: {self.detail}"


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """One stream's figures for diagnostics.

    rate_hz:  messages a second, from their times of receipt; 0.0 when quiet
    age_ns:   now less the last stamp; None before the first stamped message
    skew_ns:  newest image stamp of all cameras less this stream's last stamp; None when either is missing
    count:    messages received since the start or the last clear, bad ones included
    received_ns: when the last message was received; None before the first
    problem:  the last thing that was wrong, also when it has passed; None when nothing was
    faulty:   whether the last message itself was bad
    """

    stream: str
    rate_hz: float
    age_ns: int | None
    skew_ns: int | None
    count: int
    received_ns: int | None
    problem: StreamProblem | None
    faulty: bool


class Stream:
    """Counters of one stream. Owned by the sampler; one thread."""

    __slots__ = ("count", "counted_before", "faulty", "last_ns", "name", "problem", "receipts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.clear()

    def clear(self) -> None:
        """Forget everything but the name."""
        self.count = 0
        self.counted_before = 0  # `count` at the last look, to tell a frozen stream from a dead one
        self.last_ns: int | None = None  # stamp of the last message to arrive; not the largest, so it heals
        self.faulty = False
        self.problem: StreamProblem | None = None
        self.receipts: deque[int] = deque(maxlen=_RATE_WINDOW)

    def receive(self, stamp_ns: int, received_ns: int) -> bool:
        """Count a message; False, with the problem kept, when it bears no stamp."""
        self.count += 1
        self.receipts.append(received_ns)
        self.faulty = False
        if stamp_ns <= 0:
            self.blame("unstamped", f"stamp is {stamp_ns}; the publisher must fill header.stamp")
            return False
        self.last_ns = stamp_ns
        return True

    def blame(self, reason: Reason, detail: str) -> None:
        """Keep what was wrong with the last message."""
        self.problem = StreamProblem(self.name, reason, detail)
        self.faulty = True

    def rate_hz(self, latest_receipt_ns: int) -> float:
        """Messages a second over the last ones. `latest_receipt_ns`: last receipt of any stream,
        the nearest thing to a clock here: times of receipt may be on another clock than stamps."""
        if len(self.receipts) < 2:
            return 0.0
        span = self.receipts[-1] - self.receipts[0]
        if span <= 0:
            return 0.0
        period = span / (len(self.receipts) - 1)
        if latest_receipt_ns - self.receipts[-1] > max(_QUIET_NS, 3 * period):
            return 0.0
        return 1e9 / period

    def describe(self, now_ns: int, latest_receipt_ns: int) -> str:
        """The figures in words, for the end of a problem's detail."""
        age = "never stamped" if self.last_ns is None else f"age {(now_ns - self.last_ns) / 1e9:.3f} s"
        fresh = self.count - self.counted_before
        return (
            f"rate {self.rate_hz(latest_receipt_ns):.1f} Hz, {age}, "
            f"{self.count} messages, {fresh} since the last look"
        )
