# SPDX-License-Identifier: Apache-2.0
"""Counters and problems of one input stream: rate, age, and what was wrong with its messages."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, NamedTuple

from oxygen_ros.robot.joints import JointFault, summarize

Reason = Literal["silent", "stale", "unsynchronized", "unstamped", "rejected", "future"]

JOINTS = "joint_states"  # the stream that is no camera

_RATE_WINDOW = 64  # messages
_QUIET_NS = 1_000_000_000  # without a message for this long (and three periods) the rate is 0


class StreamFigures(NamedTuple):
    """A stream's figures when it was looked at. fresh: messages since the look before."""

    rate_hz: float
    age_ns: int | None
    messages: int
    fresh: int

    def __str__(self) -> str:
        age = "never stamped" if self.age_ns is None else f"age {self.age_ns / 1e9:.3f} s"
        return (
            f"rate {self.rate_hz:.1f} Hz, {age}, {self.messages} messages, {self.fresh} since the last look"
        )


@dataclass(frozen=True, slots=True)
class StreamProblem:
    """Why a stream gives no input now, or what was wrong with a message of it.

    stream:     camera name, or "joint_states"
    reason:     silent: nothing was received since the start. stale: the newest stamp is too old.
                unsynchronized: fresh, but no set of all cameras within the skew. unstamped: stamp zero.
                rejected: content refused. future: stamped further ahead than inputs may be old.
    cause:      what was wrong, where another module found it (an image that does not decode)
    joints:     the joints at fault and why
    offset_ns:  unstamped: the stamp. future: how far it is ahead of now. unsynchronized: the least distance
                to an image of `lead`
    limit_ns:   the largest offset (future, unsynchronized) or age (stale) permitted
    lead:       unsynchronized: the camera with the newest image
    behind_ns:  unsynchronized: newest image of `lead` less the newest of this stream
    figures:    of the stream when inputs were looked for; None: the problem is of one message
    """

    stream: str
    reason: Reason
    cause: str = ""
    joints: tuple[JointFault, ...] = ()
    offset_ns: int = 0
    limit_ns: int = 0
    lead: str = ""
    behind_ns: int = 0
    figures: StreamFigures | None = None

    @property
    def detail(self) -> str:
        """A sentence with the numbers and what would be right."""
        words = "; ".join(filter(None, (self.cause or self._explain(), summarize(self.joints))))
        return f"{words} ({self.figures})" if self.figures else words

    def __str__(self) -> str:
        return f"{self.stream}: {self.reason}: {self.detail}"

    def _explain(self) -> str:
        offset, limit = f"{self.offset_ns / 1e9:.3f} s", f"{self.limit_ns / 1e9:.3f} s"
        match self.reason:
            case "unstamped":
                return f"stamp is {self.offset_ns}; the publisher must fill header.stamp"
            case "future":
                return (
                    f"stamp is {offset} ahead of now (limit {limit}); are the clocks of the machines "
                    "synchronized, and is use_sim_time the same everywhere?"
                )
            case "unsynchronized":
                return (
                    f"skew to {self.lead!r} is {offset} at best (limit for all cameras together {limit}), "
                    f"its newest image is {self.behind_ns / 1e9:.3f} s behind"
                )
            case "silent" if not self.joints:
                return "no image received yet; is it published, and is its QoS compatible?"
            case "stale" if not self.joints:
                return f"newest image is older than {limit}"
        return ""


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
    """Counters of one stream. The synchronizer owns it; one thread."""

    __slots__ = ("count", "counted_before", "faulty", "last_ns", "name", "problem", "receipts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.clear()

    def clear(self) -> None:
        """Forget everything but the name."""
        self.count = 0
        self.counted_before = 0  # `count` at the last look: a frozen stream still counts
        self.last_ns: int | None = None  # stamp of the last message to arrive, not the largest
        self.faulty = False
        self.problem: StreamProblem | None = None
        self.receipts: deque[int] = deque(maxlen=_RATE_WINDOW)

    def receive(self, stamp_ns: int, received_ns: int) -> bool:
        """Count a message; False, with the problem kept, when it bears no stamp."""
        self.count += 1
        self.receipts.append(received_ns)
        self.faulty = False
        if stamp_ns <= 0:
            self.blame(StreamProblem(self.name, "unstamped", offset_ns=stamp_ns))
            return False
        self.last_ns = stamp_ns
        return True

    def blame(self, problem: StreamProblem) -> None:
        """Keep what was wrong with the last message."""
        self.problem = problem
        self.faulty = True

    def rate_hz(self, latest_receipt_ns: int) -> float:
        """Messages a second over the last ones. `latest_receipt_ns`: last receipt of any stream, used as the
        present: times of receipt may be on another clock than stamps."""
        if len(self.receipts) < 2:
            return 0.0
        span = self.receipts[-1] - self.receipts[0]
        if span <= 0:
            return 0.0
        period = span / (len(self.receipts) - 1)
        if latest_receipt_ns - self.receipts[-1] > max(_QUIET_NS, 3 * period):
            return 0.0
        return 1e9 / period

    def look(self, now_ns: int, latest_receipt_ns: int) -> StreamFigures:
        """The figures at `now_ns`, for a problem."""
        age_ns = None if self.last_ns is None else now_ns - self.last_ns
        fresh = self.count - self.counted_before
        return StreamFigures(self.rate_hz(latest_receipt_ns), age_ns, self.count, fresh)
