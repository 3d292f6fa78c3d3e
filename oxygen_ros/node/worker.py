# SPDX-License-Identifier: Apache-2.0
"""The one thread that synchronizes inputs, runs ticks and publishes.

The executor only wakes it. Everything runs in the worker's thread, except `start`, `stop`, `join`, `poke` and
`poke_clock`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from oxygen_ros.engine import FinishReason
from oxygen_ros.node.clocks import Clocks
from oxygen_ros.node.control import ControlLoop, Undecodable
from oxygen_ros.node.device import is_device_lost
from oxygen_ros.node.diagnostics import ERROR, Diagnostics
from oxygen_ros.node.housekeeping import Housekeeper
from oxygen_ros.node.inputs import INSTRUCTION_CHARS, QUESTIONS_KEPT, Inputs, clean_words
from oxygen_ros.node.managed import describe_error
from oxygen_ros.node.monitor import Monitor
from oxygen_ros.node.outputs import Outputs
from oxygen_ros.node.record import TickTimes
from oxygen_ros.node.settings import Settings
from oxygen_ros.node.trigger import Trigger
from oxygen_ros.robot.streams import JOINTS, StreamProblem
from oxygen_ros.robot.synchronizer import InputSet, Missing, Synchronizer

LOOK_EVERY = 0.25  # s: the longest sleep, so that inputs are watched whatever the trigger
RETRY_EVERY = 0.05  # s: between looks for inputs that are late
BACK_OFF = (0.1, 5.0)  # s: first and longest pause after a failed tick


@dataclass(eq=False)
class Worker:
    """Runs ticks from `start` to `stop`. One activation, one worker.

    device_lost:  called when the device is unusable; the process must end
    give_up:      called when too many ticks in a row failed; the node must deactivate
    """

    settings: Settings
    control: ControlLoop
    synchronizer: Synchronizer
    inputs: Inputs
    outputs: Outputs
    clocks: Clocks
    trigger: Trigger
    diagnostics: Diagnostics
    monitor: Monitor
    device_lost: Callable[[str], object]
    give_up: Callable[[str], object]

    def __post_init__(self) -> None:
        self._wake = threading.Event()
        self._is_stopping = False
        self._has_begun = False
        self._wants_images = True
        self._failures = 0
        self._rest_until = 0.0
        self._due: float | None = None  # of the next tick, as the last one set it [s, steady clock]
        self._newest: dict[str, int] = {}
        self._questions_lost = self.inputs.questions_lost
        self.last_sign = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="oxygen worker", daemon=True)

    @property
    def instruction(self) -> str:
        """The present instruction, which the next activation keeps."""
        return self.control.session.instruction

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; `join` waits for that."""
        self._is_stopping = True
        self._wake.set()

    def join(self, timeout: float | None = None) -> bool:
        """Whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def poke(self) -> None:
        """An image came. Called by the executor."""
        if self._wants_images:
            self._wake.set()

    def poke_clock(self) -> None:
        """Sim time moved or jumped. Called by the executor; /clock may come a thousand times a second."""
        if self.clocks.now() >= self.trigger.due:
            self._wake.set()

    def _run(self) -> None:
        torch.set_num_threads(self.settings.model.torch_threads)
        self.inputs.clear()
        self.synchronizer.clear()
        self.clocks.take_jumps()
        with Housekeeper() as housekeeper:
            while not self._is_stopping:
                self.last_sign = time.monotonic()
                pause = self._attempt(self._turn)
                # After the tick: a due one does not wait for reports, log lines or garbage collection.
                looked = self._attempt(lambda: self.monitor.look(self.synchronizer, self.control))
                pause = housekeeper.rest(max(pause, looked))
                if pause > 0:
                    self._wake.wait(min(pause, LOOK_EVERY))
                self._wake.clear()
        try:
            self._stop_texts(FinishReason.DEACTIVATED)
        except Exception as error:
            self.diagnostics.report("text", ERROR, f"texts not ended: {error}")

    def _attempt(self, work: Callable[[], float | None]) -> float:
        """Report an error and try again: control must not end silently."""
        try:
            return work() or 0.0
        except Exception as error:
            return self._survive(error)

    def _turn(self) -> float:
        """Check inputs and clock, tick when one is due. Returns how long there is nothing to do [s]."""
        has_jumped, has_leapt = self.clocks.take_jumps()
        if has_jumped:
            # The queues hold messages from before the jump.
            self.inputs.clear(keep_questions=True)
            self._restart("the ROS clock went back")
        if has_leapt:
            self._has_begun = False
        self._drain()
        self.synchronizer.discard_old(self.clocks.now_ns())
        rest = self._rest_until - time.monotonic()
        if rest > 0:
            return rest
        now = self.clocks.now()
        if now == 0:
            cause = "use_sim_time is set and no time was received yet"
            self.monitor.miss([StreamProblem("/clock", "silent", cause=cause)])
            return RETRY_EVERY
        if not self._has_begun:
            # Not at activation: a grid from time 0 would count decades of missed periods.
            self.trigger.start(now)
            self._has_begun = True
        if now < self.trigger.due:
            return self.clocks.steady(self.trigger.due) - time.monotonic()
        was_awaited, self._wants_images = self._wants_images, True
        taken = self.synchronizer.take(self.clocks.now_ns())
        if isinstance(taken, Missing):
            self.monitor.miss(taken.problems)
        elif taken.is_new:
            self._wants_images = self.settings.trigger == "images"
            self._hand_over_words()
            try:
                self._tick(taken, was_awaited)
                return 0.0
            except Undecodable as error:
                self.monitor.miss([error.problem])
        self.trigger.pass_over(now)
        return RETRY_EVERY

    def _tick(self, inputs: InputSet, was_awaited: bool) -> None:
        """Tick over a set of inputs and publish the results.

        was_awaited: the tick was due before the inputs came; periods that passed meanwhile are not missed

        Raises Undecodable before anything ran, or whatever the session raises.
        """
        now, now_ns, started = self.clocks.now(), self.clocks.now_ns(), time.monotonic()
        if was_awaited:
            self.trigger.pass_over(now)
        wait = self.trigger.late(now)
        was_due, self._due = self._due, None
        late = 0.0 if was_due is None or was_awaited or wait <= 0 else max(started - was_due, 0.0)
        if was_awaited:
            self.trigger.resume(now)
        images = self.control.decode(inputs, self.inputs.topics, self.synchronizer.blame)
        decode = time.monotonic() - started
        chunk_end = now + self.control.covers + (inputs.stamp_ns - now_ns) / 1e9
        self._due = self.clocks.steady(self.trigger.begin(now, chunk_end))
        times = TickTimes(wait, late, decode, skipped=self.trigger.skipped)
        record = self.control.run(inputs, images, times, self._due)
        if record.chunk.chunk is not None:
            self.trigger.has_published()
        self.outputs.publish_tick(record)
        self._failures = 0
        self.monitor.note(record)
        if self.settings.engine.debug and record.state.live == 0:
            self.control.session.engine.check_integrity()

    def _drain(self) -> None:
        """Feed what came in to the synchronizer."""
        for stream, message, received_ns in self.inputs.drain():
            stamp_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
            if stamp_ns > 0:
                self._notice_loop(stream, stamp_ns)
            if stream == JOINTS:
                self.synchronizer.add_joints(stamp_ns, message.name, message.position, received_ns)
            else:
                self.synchronizer.add_image(stream, stamp_ns, message, received_ns)

    def _notice_loop(self, stream: str, stamp_ns: int) -> None:
        """A stream whose stamps go back by more than lateness explains is a recording that starts again."""
        late_ns = int(max(1.0, 2 * self.settings.inputs.max_age) * 1e9)
        if stamp_ns < self._newest.get(stream, 0) - late_ns:
            self._restart(f"{self.inputs.topics[stream]}: stamps went back; a recording that loops?")
        # Messages from the end of the last round may still arrive; they do not count.
        if stamp_ns < self.clocks.now_ns() + late_ns:
            self._newest[stream] = max(stamp_ns, self._newest.get(stream, 0))

    def _hand_over_words(self) -> None:
        """Instruction and questions count from the tick that starts now."""
        instruction = self.inputs.take_instruction()
        if instruction is not None:
            words, standing = clean_words(instruction, INSTRUCTION_CHARS), self.instruction
            try:
                self.control.instruct(words)
            except ValueError as error:
                self.monitor.refuse_instruction(words, standing, str(error))
        text = self.settings.text
        questions = [clean_words(words, text.question_max_chars) for words in self.inputs.take_questions()]
        lost = self.inputs.questions_lost - self._questions_lost
        self._questions_lost += lost
        if lost:
            self.monitor.complain(
                f"{lost} questions not asked: more than {QUESTIONS_KEPT} came between two ticks; "
                "ask fewer at once"
            )
        if any(kind.is_question for kind in text.kinds):
            for question in filter(None, questions):
                self.control.session.ask(question)
        elif questions:
            more = f" and {len(questions) - 1} more" if len(questions) > 1 else ""
            self.monitor.complain(
                f"question {questions[0][:60]!r}{more} not asked: text.answer.enabled is false"
            )

    # -- when something goes wrong -------------------------------------------------------------

    def _stop_texts(self, reason: FinishReason) -> int:
        """End all texts now and publish what they have so far; how many there were."""
        self._due = None
        ended = self.control.stop(reason)
        self.outputs.publish_texts(ended)
        return len(ended)

    def _restart(self, reason: str) -> None:
        """Forget all inputs and texts: time went back."""
        self.synchronizer.clear()
        self._newest.clear()
        ended = self._stop_texts(FinishReason.CANCELLED)
        self._has_begun = False
        self.monitor.restart(f"{reason}: inputs forgotten, {ended} texts cancelled")

    def _survive(self, error: Exception) -> float:
        """A tick failed: end its texts, report it, rest. Returns the pause [s]."""
        device = self.control.session.engine.model.device
        if is_device_lost(device, error):
            self._is_stopping = True
            self.device_lost(f"{device} computes no more: {error}")
            return 0.0
        pause: float = min(BACK_OFF[0] * 2**self._failures, BACK_OFF[1])
        self._failures += 1
        self._rest_until = time.monotonic() + pause
        # Periods during the rest do not count as missed.
        self._has_begun = False
        words = f"tick failed: {describe_error(error)}"
        try:
            ended = self._stop_texts(FinishReason.ERROR)
        except Exception as second:
            # Ending the texts failed as well; the next tick will fail and be reported.
            words += f"; ending the texts failed: {second}"
        else:
            words += f"; {ended} texts ended"
        if 0 < self.settings.watchdog.failed_ticks <= self._failures:
            self._is_stopping = True
            words += f"; {self._failures} in a row"
            self.monitor.fail(words)
            self.give_up(words)
            return 0.0
        self.monitor.fail(f"{words}; next try in {pause:.1f} s")
        return pause
