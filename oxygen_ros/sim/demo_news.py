# SPDX-License-Identifier: Apache-2.0
"""What the demo knows of the running robot, from its topics: the state behind the terminal view.

Here lives the digest of messages; no ROS node and no drawing. The demo's main thread owns it.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

SHORT = 100  # characters of one complaint


@dataclass(slots=True)
class Text:
    """A finished text, as /oxygen/text told it."""

    kind: str
    text: str
    reason: str
    tick_asked: int
    tick_finished: int
    seconds: float

    @property
    def shown(self) -> str:
        """The text, or why there is none."""
        return self.text or f"({self.reason})"


@dataclass(slots=True)
class News:
    """The newest of everything, and short histories for rates."""

    instruction: str = ""
    tick: Any = None
    texts: deque[Text] = field(default_factory=lambda: deque(maxlen=6))
    latest: dict[str, Text] = field(default_factory=dict)
    truth: dict[str, Any] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    chunks: int = 0
    ticks: int = 0
    finished: int = 0
    # Of all ticks; a long demo keeps the last ten minutes.
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=6000))
    _tick_times: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    def hear(self, topic: str, message: Any) -> None:
        """Take in a message of one of the topics the view shows."""
        match topic.rsplit("/", 1)[-1]:
            case "tick":
                self.tick = message
                self.ticks += 1
                self._tick_times.append(time.monotonic())
                self.latencies.append(message.process + message.prefill + message.denoise + message.publish)
            case "text":
                text = Text(
                    message.kind,
                    " ".join(message.text.split()),
                    message.finish_reason,
                    message.tick_asked,
                    message.tick_finished,
                    message.seconds,
                )
                self.texts.append(text)
                self.latest[message.kind] = text
                self.finished += 1
            case "action_chunk":
                self.chunks += 1
            case "state":
                self.truth = json.loads(message.data)
            case "instruction":
                self.instruction = message.data
            case "diagnostics":
                self._hear_diagnostics(message)

    def _hear_diagnostics(self, message: Any) -> None:
        for status in message.status:
            if status.level == b"\x00":
                self.complaints.pop(status.name, None)
            else:
                self.complaints[status.name] = status.message

    @property
    def configure_failed(self) -> str:
        """Why the node did not get as far as a first tick, in its own words; "" unless it says so."""
        return next((c for c in self.complaints.values() if c.startswith("configure failed")), "")

    @property
    def rate(self) -> float:
        """Ticks a second over the last ticks [Hz]; 0 before there were two."""
        times = self._tick_times
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0

    def summary(self) -> str:
        """What the node complains of, each once and short; the log and /diagnostics have it whole."""
        shown = dict.fromkeys(textwrap.shorten(c.split(";")[0], SHORT) for c in self.complaints.values())
        return "; ".join(shown)

    def latency(self, quantile: float) -> float:
        """Seconds from the start of a tick to its chunk's publication; `quantile` in 0..1."""
        ordered = sorted(self.latencies)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] if ordered else 0.0
