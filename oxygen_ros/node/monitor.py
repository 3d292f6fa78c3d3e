# SPDX-License-Identifier: Apache-2.0
"""The state of inputs, ticks and texts, made into the reports of /diagnostics.

It does not decide whether a tick runs. The worker's thread calls everything.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from oxygen_ros.node.clocks import Clocks
from oxygen_ros.node.commands import Commands
from oxygen_ros.node.control import ControlLoop
from oxygen_ros.node.diagnostics import ERROR, OK, STALE, WARN, Diagnostics
from oxygen_ros.node.record import RunState, TickRecord
from oxygen_ros.node.settings import Settings
from oxygen_ros.robot.streams import StreamProblem, StreamStatus
from oxygen_ros.robot.synchronizer import Synchronizer

LOOK_EVERY = 0.25  # s between two reports
ONE_RESTART = 1.0  # s within which signs of time going back are one
STAYS = 5.0  # s a past problem stays in the diagnostics
RATE_TICKS = 5  # ticks before their rate is judged
RATE_KEPT = 0.7  # part of the wanted rate below which it is reported
BEGINNING = 3.0  # s after activation, or after time went back, in which inputs may be missing
SHOWN = 60  # characters of an instruction or question in a report


@dataclass(frozen=True, slots=True)
class Passing:
    """A problem that is over and stays in the diagnostics for a while. at: when it occurred."""

    words: str = ""
    at: float = -math.inf

    @property
    def is_recent(self) -> bool:
        return self.at > time.monotonic() - STAYS


@dataclass(eq=False)
class Monitor:
    """Takes note of what happens and reports it.

    topics:  stream -> topic
    period:  seconds between ticks where the trigger sets them
    log:     where warnings go
    """

    diagnostics: Diagnostics
    topics: Mapping[str, str]
    clocks: Clocks
    commands: Commands
    settings: Settings
    period: float | None
    log: Callable[[str], object]

    def __post_init__(self) -> None:
        watchdog = self.settings.watchdog
        self._max_age = self.settings.inputs.max_age
        self._silent_after = max(watchdog.silence, self._max_age)
        self._late_after = watchdog.late or self.settings.period
        self._next_look = 0.0
        self._began = time.monotonic()
        self._counting_since = self._began  # what each stream received
        self._has_inputs = False
        self._missing: tuple[StreamProblem, ...] = ()
        self._failure = ""
        self._record: TickRecord | None = None
        self._ticked = deque[float](maxlen=20)
        self._skipped = self._late = self._given_up = self._refused = self._complaint = Passing()
        self._late_ticks = self._skips = self._losses = self._restarts = 0
        self._restarted = -math.inf

    # -- what happens --------------------------------------------------------------------------

    def miss(self, problems: Iterable[StreamProblem]) -> None:
        """There is no set of inputs. Reported at once when there was one before."""
        if self._has_inputs:
            self._next_look = 0.0
        self._has_inputs, self._missing = False, tuple(problems)

    def note(self, record: TickRecord) -> None:
        """A tick ran."""
        now = time.monotonic()
        if not self._has_inputs or self._failure:
            self._next_look = 0.0
            # The pause is no part of the rate.
            self._ticked.clear()
        self._has_inputs, self._missing, self._failure = True, (), ""
        # From now on a missing input is reported at once.
        self._began = -math.inf
        self._record = record
        self._ticked.append(now)
        if record.chunk.refusal:
            self._next_look = 0.0
        if record.times.late > self._late_after:
            self._late_ticks += 1
            words = f"it began {record.times.late:.3f} s after it was due; {self._late_ticks} so far"
            self._late, self._next_look = Passing(f"tick late: {words}", now), 0.0
        if record.times.skipped > self._skips:
            self._skips = record.times.skipped
            words = f"too slow: {self._skips} periods wholly missed"
            if self.period:
                words += f"; the period is {self.period:g} s, a chunk takes {record.times.chunk:.3f} s"
            self._skipped = Passing(words, now)
        counters, late = record.state.counters, sum(record.state.feedback_dropped.values())
        if (losses := counters.rejected + counters.expired + late) > self._losses:
            self._losses = losses
            lost = f"{counters.expired} expired, {counters.rejected} rejected, {late} too late for the prompt"
            words = f"text does not keep up: {lost}; ask less often or raise budget.steps"
            self._given_up = Passing(words, now)
        for unasked in record.unasked:
            words = f'question "{unasked.question[:SHOWN]}" not asked: {unasked.reason}'
            self.complain(f"{words}; ask it shorter, or raise question_max_chars")

    def fail(self, words: str) -> None:
        """A tick failed."""
        self._failure = words
        self._warn(words)

    def complain(self, words: str) -> None:
        """Something about text went wrong and is over."""
        self._complaint = Passing(words, time.monotonic())
        self._warn(words)

    def refuse_instruction(self, words: str, standing: str, reason: str) -> None:
        """The model cannot take an instruction; the earlier one stays."""
        words = f'instruction "{words[:SHOWN]}" refused, "{standing[:SHOWN]}" stands: {reason}'
        self._refused = Passing(words, time.monotonic())
        self._warn(words)

    def restart(self, words: str) -> None:
        """Time went back: reported once, though the clock and every stream may show it."""
        now = self._began = self._counting_since = time.monotonic()
        if now < self._restarted + ONE_RESTART:
            return
        self._restarted = now
        self._restarts += 1
        self._warn(words)

    def _warn(self, words: str) -> None:
        self._next_look = 0.0
        self.log(words)

    # -- reports -------------------------------------------------------------------------------

    def look(self, synchronizer: Synchronizer, control: ControlLoop) -> None:
        """Report all parts, four times a second."""
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_EVERY
        self._report_inputs(synchronizer, now)
        state = control.state()
        self._report_control(state, now)
        self._report_text(state)

    def _describe(self, problems: Iterable[StreamProblem]) -> str:
        """Problems by topic and reason."""
        return "; ".join(
            f"{self.topics.get(problem.stream, problem.stream)}: {problem.reason}: {problem.detail}"
            for problem in problems
        )

    def _report_inputs(self, synchronizer: Synchronizer, now: float) -> None:
        values: dict[str, object] = {"restarts": self._restarts}
        statuses = synchronizer.status(self.clocks.now_ns())
        for status in statuses:
            words = f"{status.rate_hz:.1f} Hz, {status.count} messages"
            if status.age_ns is not None:
                words += f", age {status.age_ns / 1e9:.3f} s"
            if status.skew_ns is not None:
                words += f", skew {status.skew_ns / 1e9:.3f} s"
            if status.problem is not None:
                words += f", last problem: {status.problem.reason}: {status.problem.detail}"
            values[self.topics.get(status.stream, status.stream)] = words
        if silence := self.clocks.silence():
            stopped = f"sim time has not moved for {silence:.1f} s"
            self._has_inputs, self._missing = False, (StreamProblem("/clock", "silent", cause=stopped),)
        excused = {*synchronizer.optional, *(problem.stream for problem in self._missing)}
        needed = [status for status in statuses if status.stream not in excused]
        optional = [status for status in statuses if status.stream in synchronizer.optional]
        quiet = [problem for status in needed if (problem := self._find_silence(status, now))]
        absent = [problem for status in optional if (problem := self._find_absence(status, now))]
        is_beginning = now < self._began + BEGINNING
        if not self._has_inputs or quiet:
            wrong = self._describe((*self._missing, *quiet)) or "nothing was looked for yet"
            report = (STALE, f"waiting: {wrong}") if is_beginning else (ERROR, wrong)
        elif absent and not is_beginning:
            report = WARN, f"acting without {self._describe(absent)}"
        else:
            report = OK, "all inputs are fresh and in step"
        self.diagnostics.report("inputs", *report, values)

    def _find_silence(self, status: StreamStatus, now: float) -> StreamProblem | None:
        """The watchdog of one input, on the steady clock alone."""
        since = self._counting_since if status.received_ns is None else status.received_ns / 1e9
        words = f"nothing received for {now - since:.1f} s"
        return (
            StreamProblem(status.stream, "silent", cause=words) if now - since > self._silent_after else None
        )

    def _find_absence(self, status: StreamStatus, now: float) -> StreamProblem | None:
        """Why an optional camera is not among the images, if it is not."""
        if silent := self._find_silence(status, now):
            return silent
        if status.faulty and status.problem is not None:
            return status.problem
        if status.age_ns is not None and status.age_ns / 1e9 > self._max_age:
            old = f"its newest image is {status.age_ns / 1e9:.3f} s old"
            return StreamProblem(status.stream, "stale", cause=old)
        return None

    def _report_control(self, state: RunState, now: float) -> None:
        rate = 0.0
        if len(self._ticked) > 1:
            rate = (len(self._ticked) - 1) / max(now - self._ticked[0], 1e-9)
        values: dict[str, object] = {
            "rate [Hz]": rate,
            "ticks skipped": self._skips,
            "ticks late": self._late_ticks,
            "chunks refused": state.chunks_refused,
            "actions clamped": state.actions_clamped,
            "chunks later than join.delay_steps": state.late_joins,
            "chunks standing alone, the arm being elsewhere": state.strayed,
            "actions past at publication, most of late": state.most_passed,
            "trajectories slowed at their join": state.slowed,
            "command enabled": self.commands.is_enabled,
            "held": self.commands.is_held,
            "instruction": state.instruction,
        }
        clamped, record = "", self._record
        if record is not None:
            values["tick"] = record.tick
            values["latency [s]"] = record.times.chunk
            values["text [s]"] = record.phases.text
            clamped = ", ".join(f"{key} x{count}" for key, count in record.chunk.clamped.items())
        if clamped:
            values["clamped"] = clamped
        level, words = self._judge_control(record, clamped, rate, now)
        self.diagnostics.report("control", level, words + "; held" * self.commands.is_held, values)

    def _judge_control(
        self, record: TickRecord | None, clamped: str, rate: float, now: float
    ) -> tuple[bytes, str]:
        """The most severe problem of the ticks."""
        ticking = f"ticking at {rate:.1f} Hz" if rate else "ticking"
        if self._failure:
            return ERROR, self._failure
        if not self._has_inputs:
            is_beginning = now < self._began + BEGINNING
            return (STALE, "waiting for inputs") if is_beginning else (WARN, "no chunk: see inputs")
        assert record is not None  # there are inputs only after a tick
        if record.chunk.refusal:
            return ERROR, record.chunk.refusal
        for trouble in (self._skipped, self._late, self._refused):
            if trouble.is_recent:
                return WARN, trouble.words
        if refusals := [f"{other.expert}: {other.refusal}" for other in record.others if other.refusal]:
            return WARN, "; ".join(refusals)
        # Ticks are rare though none came late: they wait for images. Not judged under sim time.
        is_judged = len(self._ticked) >= RATE_TICKS and not self.clocks.is_sim
        if self.period and is_judged and rate * self.period < RATE_KEPT:
            words = f"{ticking} instead of {1 / self.period:g}: no new images in time"
            return WARN, f"{words}; see their rates in inputs, or set a longer period"
        return (WARN, f"limits clamp the chunk: {clamped}") if clamped else (OK, ticking)

    def _report_text(self, state: RunState) -> None:
        counters = state.counters
        values: dict[str, object] = {
            "kinds": ", ".join(kind.name for kind in self.settings.text.kinds) or "none",
            "finished": counters.finished,
            "expired": counters.expired,
            "rejected": counters.rejected,
            "dropped": counters.dropped,
            "cancelled": counters.cancelled,
            **{f"{kind} too late for the prompt": count for kind, count in state.feedback_dropped.items()},
            "live": state.live,
            "prefix slots": f"{state.prefix_slots[0]} of {state.prefix_slots[1]}",
            "suffix slots": f"{state.suffix_slots[0]} of {state.suffix_slots[1]}",
        }
        report = OK, f"{state.live} under way"
        for trouble in (self._given_up, self._complaint):
            if trouble.is_recent:
                report = WARN, trouble.words
        self.diagnostics.report("text", *report, values)
