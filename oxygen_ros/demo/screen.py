# SPDX-License-Identifier: Apache-2.0
"""The demo in a terminal: a live page where there is one, a line a second where there is none.

`News` sums up the messages on the topics, `View` shows it. No ROS node. The demo's main thread owns both.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections import deque
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

PHASES = (
    ("process", "cyan"),
    ("prefill", "blue"),
    ("denoise", "magenta"),
    ("publish", "white"),
    ("text", "green"),
)
BAR = 46
SHORT = 100  # characters of one warning


@dataclass(slots=True)
class EndedText:
    """A finished text from /oxygen/text."""

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
    texts: deque[EndedText] = field(default_factory=lambda: deque(maxlen=6))
    latest: dict[str, EndedText] = field(default_factory=dict)
    truth: dict[str, Any] = field(default_factory=dict)
    complaints: dict[str, str] = field(default_factory=dict)
    chunks: int = 0
    ticks: int = 0
    finished: int = 0
    # Of all ticks; of a long demo the last ten minutes.
    latencies: deque[float] = field(default_factory=lambda: deque(maxlen=6000))
    _tick_times: deque[float] = field(default_factory=lambda: deque(maxlen=50))

    def hear(self, topic: str, message: Any) -> None:
        """Add a message of a shown topic."""
        match topic.rsplit("/", 1)[-1]:
            case "tick":
                self.tick = message
                self.ticks += 1
                self._tick_times.append(time.monotonic())
                self.latencies.append(message.process + message.prefill + message.denoise + message.publish)
            case "text":
                text = EndedText(
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
        """Why the node did not reach its first tick, from /diagnostics; "" where it has no reason."""
        return next((c for c in self.complaints.values() if c.startswith("configure failed")), "")

    @property
    def rate(self) -> float:
        """Ticks a second over the last ticks [Hz]; 0 before there were two."""
        times = self._tick_times
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0

    def summary(self) -> str:
        """The node's warnings, each once and short; the log and /diagnostics have them whole."""
        shown = dict.fromkeys(textwrap.shorten(c.split(";")[0], SHORT) for c in self.complaints.values())
        return "; ".join(shown)

    def latency(self, quantile: float) -> float:
        """Seconds from the start of a tick to its chunk's publication; `quantile` in 0..1."""
        ordered = sorted(self.latencies)
        return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)] if ordered else 0.0


class View:
    """Shows News until closed; the demo's main thread calls `update`."""

    PLAIN_EVERY = 1.0

    def __init__(self, console: Console, period: float, note: str) -> None:
        """period: of the control loop [s], for the scale of the bars
        note:      one sentence about the run
        """
        self._console = console
        self._period = period
        self._note = note
        self._live = (
            Live(console=console, refresh_per_second=4, transient=False) if console.is_terminal else None
        )
        self._next_line = 0.0
        self._started = time.monotonic()
        self._shown_texts = 0

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.__enter__()
        else:
            self._console.print(self._note, highlight=False, soft_wrap=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.__exit__(kind, error, trace)

    def update(self, news: News, state: str) -> None:
        """Show the news. state: of the demo ("starting", "running", ...)"""
        if self._live is not None:
            self._live.update(self._page(news, state))
        elif time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + self.PLAIN_EVERY
            self._console.print(self._line(news, state), highlight=False, markup=False, soft_wrap=True)

    def _line(self, news: News, state: str) -> str:
        seconds = time.monotonic() - self._started
        if news.tick is None:
            waits = news.summary()
            return f"[{seconds:5.1f} s] {state}{': ' + waits if waits else ''}"
        tick = news.tick
        text = f"tick {tick.tick:4d} {news.rate:4.1f} Hz"
        text += f" | chunk after {1e3 * news.latency(0.5):4.0f} ms (median)"
        text += f" | texts: {tick.requests_live} under way, {news.finished} ended"
        if news.truth:
            text += f" | arm: {_phase(news.truth)}"
        if news.finished > self._shown_texts:
            self._shown_texts = news.finished
            last = news.texts[-1]
            text += f" | {last.kind}: {last.shown[:40]}"
        if news.complaints:
            text += f" | {news.summary()}"
        return f"[{seconds:5.1f} s] {text}"

    def _page(self, news: News, state: str) -> Panel:
        parts: list[Any] = [Text(self._note, style="yellow")]
        if news.instruction:
            parts.append(Text.assemble(("told:  ", "bold"), news.instruction))
        if news.truth:
            parts.append(Text.assemble(("arm:   ", "bold"), _phase(news.truth)))
        if news.tick is not None:
            parts += [Text(), self._bars(news.tick), Text(), self._numbers(news)]
        parts += [Text(), self._texts(news)]
        if news.complaints:
            parts.append(Text(news.summary(), style="red"))
        seconds = time.monotonic() - self._started
        return Panel(Group(*parts), title=f"oxygen_ros  {state}  {seconds:.0f} s", subtitle="Ctrl-C ends")

    def _bars(self, tick: Any) -> Table:
        table = Table.grid(padding=(0, 1))
        table.add_row("", Text(f"one tick, a line is {1e3 * self._period:.0f} ms", style="dim"), "")
        start = 0.0
        for phase, color in PHASES:
            seconds = getattr(tick, phase)
            first = min(round(BAR * start / self._period), BAR)
            length = max(min(round(BAR * seconds / self._period), BAR - first), 1)
            bar = Text(" " * first) + Text("█" * length, style=color)
            bar.pad_right(max(BAR - first - length, 0), "·")
            table.add_row(phase, bar, f"{1e3 * seconds:6.1f} ms")
            start += seconds
        return table

    def _numbers(self, news: News) -> Table:
        tick = news.tick
        table = Table.grid(padding=(0, 3))
        table.add_row(
            f"tick {tick.tick} at {news.rate:.1f} Hz",
            f"{tick.prefills} prefills",
            f"chunk after {1e3 * news.latency(0.5):.0f} ms (p99 {1e3 * news.latency(0.99):.0f})",
            f"{tick.ticks_skipped} skipped",
        )
        table.add_row(
            f"{tick.requests_live} texts under way",
            f"{tick.used_steps} of {tick.granted_steps} steps, {tick.rows} rows",
            f"prefixes {tick.prefix_slots_used}/{tick.prefix_slots_total}, "
            f"suffixes {tick.suffix_slots_used}/{tick.suffix_slots_total}",
            f"{tick.expired} expired, {tick.rejected} rejected",
        )
        return table

    def _texts(self, news: News) -> Table:
        table = Table(box=None, pad_edge=False, title_justify="left", title="texts that ended")
        for column in ("kind", "asked", "ended", "text"):
            table.add_column(column, no_wrap=True, overflow="ellipsis")
        for text in reversed(news.texts):
            table.add_row(
                text.kind, f"tick {text.tick_asked}", f"tick {text.tick_finished}", Text(text.shown)
            )
        return table


def _phase(truth: dict[str, Any]) -> str:
    inside = ", ".join(f"{count} {color}" for color, count in truth["blocks_in_box"].items() if count)
    return f"{truth['narration']} In the box: {inside or 'nothing'}."
