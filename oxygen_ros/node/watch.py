# SPDX-License-Identifier: Apache-2.0
"""What the worker sees of its inputs, its ticks and its texts, put into words for /diagnostics.

Here lives no control: nothing in here decides whether a tick runs. The worker's thread calls everything.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from oxygen_ros.engine import TickReport
from oxygen_ros.node import diagnostics as level
from oxygen_ros.node.commands import Commands
from oxygen_ros.node.diagnostics import Board
from oxygen_ros.node.pace import Pace
from oxygen_ros.node.settings import Settings
from oxygen_ros.node.tick import Ticker
from oxygen_ros.node.timekeeper import TimeKeeper
from oxygen_ros.robot.sampler import Sampler
from oxygen_ros.robot.streams import StreamProblem, StreamStatus

LOOK_EVERY = 0.25  # s between two looks at the streams
ONE_RESTART = 1.0  # s within which signs of time going back are one
STAYS = 5.0  # s a passing trouble stays in the diagnostics
RATE_TICKS = 5  # ticks before their rate is judged
RATE_KEPT = 0.7  # part of the wanted rate below which it is reported
BEGINNING = 3.0  # s after activation, or after time went back, in which nothing need have come yet


class Watch:
    """Turns what happens into reports on the board."""

    def __init__(
        self,
        board: Board,
        topics: Mapping[str, str],
        keeper: TimeKeeper,
        commands: Commands,
        settings: Settings,
        log: Callable[[str], object],
    ) -> None:
        self._board = board
        self._topics = topics
        self._keeper = keeper
        self._commands = commands
        self._settings = settings
        self._log = log
        self._next_look = 0.0
        self._began = time.monotonic()
        self._counting_since = self._began  # of what each stream received
        self._missing = "nothing was looked for yet"
        self._failure = ""
        self._last_report: TickReport | None = None
        self._ticked = deque[float](maxlen=20)
        self._skipped = (0, -math.inf)  # count, when it last grew
        self._given_up = (0, -math.inf)
        self._complaint = ("", -math.inf)
        self._instruction_refused = ("", -math.inf)
        self._late = (0.0, -math.inf)  # by how much, when
        self._late_ticks = 0
        self._restarts = 0
        self._restarted = -math.inf

    def look(self, sampler: Sampler, ticker: Ticker, pace: Pace) -> None:
        """Report all parts, four times a second."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        self._report_inputs(sampler)
        self._report_control(ticker, pace, now)
        self._report_text(ticker, now)

    def explain(self, problems: Sequence[StreamProblem]) -> str:
        """Problems by topic and reason."""
        return "; ".join(
            f"{self._topics.get(problem.stream, problem.stream)}: {problem.reason}: {problem.detail}"
            for problem in problems
        )

    def miss(self, words: str) -> None:
        """No observation could be had. Reported at once when it is news."""
        if not self._missing:
            self._next_look = 0.0
        self._missing = words

    def note(self, report: TickReport, ticker: Ticker, pace: Pace) -> None:
        """A tick ran."""
        now = time.monotonic()
        if self._missing or self._failure:
            self._next_look = 0.0
            # The pause says nothing of the rate.
            self._ticked.clear()
        self._missing = self._failure = ""
        # What has been there once is missed at once.
        self._began = -math.inf
        self._last_report = report
        self._ticked.append(now)
        if ticker.refusal:
            self._next_look = 0.0
        late_limit = self._settings["watchdog.late"] or self._settings["period"]
        if ticker.late > late_limit:
            self._late, self._late_ticks = (ticker.late, now), self._late_ticks + 1
            self._next_look = 0.0
        self._skipped = _grow(self._skipped, pace.skipped, now)
        counters = ticker.session.engine.counters
        given_up = counters.rejected + counters.expired + _count_late(ticker)
        self._given_up = _grow(self._given_up, given_up, now)

    def fail(self, words: str) -> None:
        """A tick failed."""
        self._failure = words
        self._next_look = 0.0
        self._log(words)

    def complain(self, words: str) -> None:
        """Something about text went wrong and is over."""
        self._complaint = (words, time.monotonic())
        self._next_look = 0.0
        self._log(words)

    def refuse(self, words: str) -> None:
        """The model cannot take an instruction; the one before stands."""
        self._instruction_refused = (words, time.monotonic())
        self._next_look = 0.0
        self._log(words)

    def restart(self, words: str) -> None:
        """Time went back: told once, though clock and every stream may each have shown it."""
        now = self._began = self._counting_since = time.monotonic()
        if now < self._restarted + ONE_RESTART:
            return
        self._restarted = now
        self._restarts += 1
        self._next_look = 0.0
        self._log(words)

    def _report_inputs(self, sampler: Sampler) -> None:
        values: dict[str, object] = {"restarts": self._restarts}
        statuses = sampler.status(self._keeper.now_ns())
        for status in statuses:
            words = f"{status.rate_hz:.1f} Hz, {status.count} messages"
            if status.age_ns is not None:
                words += f", age {status.age_ns / 1e9:.3f} s"
            if status.skew_ns is not None:
                words += f", skew {status.skew_ns / 1e9:.3f} s"
            if status.problem is not None:
                words += f", last problem: {status.problem.reason}: {status.problem.detail}"
            values[self._topics.get(status.stream, status.stream)] = words
        silence = self._keeper.silence()
        if silence:
            self._missing = f"/clock: silent: sim time has not moved for {silence:.1f} s"
        is_optional = [status.stream in sampler.optional for status in statuses]
        quiet = [words for status, may in zip(statuses, is_optional, strict=True)
                 if not may and (words := self._explain_silence(status)) and words.split(":")[0]
                 not in self._missing]  # fmt: skip
        absent = [words for status, may in zip(statuses, is_optional, strict=True)
                  if may and (words := self._explain_absence(status))]  # fmt: skip
        wrong = "; ".join(filter(None, [self._missing, *quiet]))
        if wrong and time.monotonic() < self._began + BEGINNING:
            self._board.report("inputs", level.STALE, f"waiting: {wrong}", values)
        elif wrong:
            self._board.report("inputs", level.ERROR, wrong, values)
        elif absent and time.monotonic() >= self._began + BEGINNING:
            self._board.report("inputs", level.WARN, f"acting without {'; '.join(absent)}", values)
        else:
            self._board.report("inputs", level.OK, "all inputs are fresh and in step", values)

    def _explain_silence(self, status: StreamStatus) -> str:
        """The watchdog of one input: by the steady clock, whatever its stamps and the ROS clock say."""
        since = self._counting_since if status.received_ns is None else status.received_ns / 1e9
        quiet = time.monotonic() - since
        if quiet <= max(self._settings["watchdog.silence"], self._settings["max_age"]):
            return ""
        return f"{self._topics.get(status.stream, status.stream)}: silent: nothing received for {quiet:.1f} s"

    def _explain_absence(self, status: StreamStatus) -> str:
        """Why an optional camera is not among the images, if it is not."""
        topic = self._topics.get(status.stream, status.stream)
        if silent := self._explain_silence(status):
            return silent
        if status.faulty and status.problem is not None:
            return f"{topic}: {status.problem.reason}: {status.problem.detail}"
        if status.age_ns is not None and status.age_ns / 1e9 > self._settings["max_age"]:
            return f"{topic}: stale: its newest image is {status.age_ns / 1e9:.3f} s old"
        return ""

    def _report_control(self, ticker: Ticker, pace: Pace, now: float) -> None:
        rate = 0.0
        if len(self._ticked) > 1:
            rate = (len(self._ticked) - 1) / max(now - self._ticked[0], 1e-9)
        values: dict[str, object] = {
            "rate [Hz]": rate,
            "ticks skipped": pace.skipped,
            "ticks late": self._late_ticks,
            "chunks refused": ticker.refused,
            "actions clamped": ticker.clamped_total,
            "chunks later than join.delay_steps": ticker.late_joins,
            "chunks standing alone, the arm being elsewhere": ticker.overlap.strayed,
            "actions past at publication, most of late": max(ticker.passed, default=0),
            "trajectories slowed at their join": ticker.slowed,
            "command enabled": self._commands.is_enabled,
            "held": self._commands.is_held,
            "instruction": ticker.session.instruction,
        }
        if self._last_report is not None:
            phases = self._last_report.phases
            latency = phases.process + phases.prefill + phases.denoise + self._last_report.publish
            values.update({"tick": self._last_report.tick, "latency [s]": latency, "text [s]": phases.text})
        if ticker.clamped:
            values["clamped"] = ", ".join(f"{key} x{count}" for key, count in ticker.clamped.items())
        grade, words = level.OK, f"ticking at {rate:.1f} Hz" if rate else "ticking"
        if self._failure:
            grade, words = level.ERROR, self._failure
        elif self._missing and now < self._began + BEGINNING:
            grade, words = level.STALE, "waiting for inputs"
        elif self._missing:
            grade, words = level.WARN, "no chunk: see inputs"
        elif ticker.refusal:
            grade, words = level.ERROR, ticker.refusal
        elif self._skipped[1] > now - STAYS:
            grade, words = level.WARN, f"too slow: {pace.skipped} periods wholly missed"
            if pace.period and "latency [s]" in values:
                words += f"; the period is {pace.period:g} s, a chunk takes {values['latency [s]']:.3f} s"
        elif self._late[1] > now - STAYS:
            grade = level.WARN
            words = f"tick late: it began {self._late[0]:.3f} s after it was due; {self._late_ticks} so far"
        elif self._instruction_refused[1] > now - STAYS:
            grade, words = level.WARN, self._instruction_refused[0]
        elif self._lacks_images(pace, rate):
            grade = level.WARN
            words += (
                f" instead of {1 / pace.period:g}: no new images in time; see their rates in inputs, "
                "or set a longer period"
            )
        elif ticker.clamped:
            grade, words = level.WARN, f"limits clamp the chunk: {values['clamped']}"
        if self._commands.is_held:
            words += "; held"
        self._board.report("control", grade, words, values)

    def _lacks_images(self, pace: Pace, rate: float) -> bool:
        """Whether ticks are rare though none came late: they wait for images. Under sim time who knows."""
        is_judged = pace.period and len(self._ticked) >= RATE_TICKS and not self._keeper.is_sim
        return bool(is_judged and pace.period and rate * pace.period < RATE_KEPT)

    def _report_text(self, ticker: Ticker, now: float) -> None:
        engine = ticker.session.engine
        counters = engine.counters
        values: dict[str, object] = {
            "finished": counters.finished,
            "expired": counters.expired,
            "rejected": counters.rejected,
            "dropped": counters.dropped,
            "cancelled": counters.cancelled,
            **{
                f"{kind} too late for the prompt": feedback.dropped
                for kind, feedback in ticker.session.feedbacks.items()
            },
            "live": engine.live,
            "frame slots": f"{engine.frames.used} of {engine.frames.size}",
            "suffix slots": f"{engine.suffixes.used} of {engine.suffixes.size}",
        }
        if self._complaint[0] and self._complaint[1] > now - STAYS:
            self._board.report("text", level.WARN, self._complaint[0], values)
        elif self._given_up[1] > now - STAYS:
            words = (
                f"text does not keep up: {counters.expired} expired, {counters.rejected} rejected, "
                f"{_count_late(ticker)} too late for the prompt; ask less often or raise budget.steps"
            )
            self._board.report("text", level.WARN, words, values)
        else:
            self._board.report("text", level.OK, f"{engine.live} under way", values)


def _count_late(ticker: Ticker) -> int:
    """Memories and subtasks that were not there when their tick came."""
    return sum(feedback.dropped for feedback in ticker.session.feedbacks.values())


def _grow(before: tuple[int, float], count: int, now: float) -> tuple[int, float]:
    """A count, and when it last grew."""
    return (count, now) if count > before[0] else (count, before[1])
