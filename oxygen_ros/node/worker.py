# SPDX-License-Identifier: Apache-2.0
"""The one thread that samples, infers and publishes.

Here lives its loop: when it looks, when it ticks, what it does when something fails. The executor only pokes
it. Everything in here runs in the worker's thread, but for `start`, `stop`, `join` and `poke`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import torch

from oxygen_ros.engine import FinishReason, TickReport
from oxygen_ros.node import diagnostics as level
from oxygen_ros.node.diagnostics import Board
from oxygen_ros.node.housekeeping import Housekeeper
from oxygen_ros.node.inputs import INSTRUCTION_CHARS, QUESTIONS_KEPT, Inputs, clean_words
from oxygen_ros.node.pace import Pace
from oxygen_ros.node.poison import is_poisoned
from oxygen_ros.node.settings import Settings
from oxygen_ros.node.tick import Ticker, Undecodable
from oxygen_ros.node.timekeeper import TimeKeeper
from oxygen_ros.node.watch import Watch
from oxygen_ros.robot.sample import Missing
from oxygen_ros.robot.sampler import Sampler

LOOK_EVERY = 0.25  # s: the longest sleep, so that inputs are watched whatever the trigger
RETRY_EVERY = 0.05  # s: between looks for an observation that is late
BACK_OFF = (0.1, 5.0)  # s: first and longest pause after a failed tick


class Worker:
    """Runs ticks from `start` to `stop`. One activation, one worker."""

    def __init__(
        self,
        settings: Settings,
        ticker: Ticker,
        sampler: Sampler,
        inputs: Inputs,
        keeper: TimeKeeper,
        pace: Pace,
        board: Board,
        watch: Watch,
        poisoned: Callable[[str], None],
        give_up: Callable[[str], None],
    ) -> None:
        """poisoned: called when the device can compute nothing any more; the process must end
        give_up:  called when too many ticks in a row failed; the node must deactivate
        """
        self._settings = settings
        self._ticker = ticker
        self._sampler = sampler
        self._inputs = inputs
        self._keeper = keeper
        self._pace = pace
        self._board = board
        self._watch = watch
        self._poisoned = poisoned
        self._give_up = give_up
        self._wake = threading.Event()
        self._is_stopping = False
        self._has_begun = False
        self._wants_images = True
        self._failures = 0
        self._rest_until = 0.0
        self._newest: dict[str, int] = {}
        self._questions_lost = inputs.questions_lost
        self.last_sign = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="oxygen worker", daemon=True)

    @property
    def instruction(self) -> str:
        """What the robot is told to do now; the next activation goes on with it."""
        return self._ticker.session.instruction

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
        """An image came. The executor's."""
        if self._wants_images:
            self._wake.set()

    def poke_clock(self) -> None:
        """Sim time moved or jumped. The executor's; /clock may come a thousand times a second."""
        if self._keeper.now() >= self._pace.due:
            self._wake.set()

    def _run(self) -> None:
        torch.set_num_threads(self._settings["torch_threads"])
        self._inputs.clear()
        self._sampler.clear()
        self._keeper.take_jump()
        self._keeper.take_leap()
        with Housekeeper() as housekeeper:
            while not self._is_stopping:
                self.last_sign = time.monotonic()
                pause = self._attempt(self._turn)
                # After the tick: a due one waits for no report, no log line and no garbage collection.
                pause = max(pause, self._attempt(self._look))
                pause = housekeeper.rest(pause)
                if pause > 0:
                    self._wake.wait(min(pause, LOOK_EVERY))
                self._wake.clear()
        self._end()

    def _attempt(self, work: Callable[[], float]) -> float:
        """Whatever goes wrong, the robot's control must not end silently: reported, and tried again."""
        try:
            return work()
        except Exception as error:
            return self._survive(error)

    def _look(self) -> float:
        self._watch.look(self._sampler, self._ticker, self._pace)
        return 0.0

    def _turn(self) -> float:
        """Look at inputs and clock, tick when one is due. Returns how long there is nothing to do [s]."""
        if self._keeper.take_jump():
            self._restart("the ROS clock went back")
        if self._keeper.take_leap():
            self._has_begun = False
        self._drain()
        self._sampler.discard_old(self._keeper.now_ns())
        rest = self._rest_until - time.monotonic()
        if rest > 0:
            return rest
        now = self._keeper.now()
        if now == 0:
            self._watch.miss("/clock: silent: use_sim_time is set and no time was received yet")
            return RETRY_EVERY
        if not self._has_begun:
            # Not at activation: a grid that began at time 0 would have missed half a century.
            self._pace.start(now)
            self._has_begun = True
        if now < self._pace.due:
            return self._keeper.steady(self._pace.due) - time.monotonic()
        was_awaited, self._wants_images = self._wants_images, True
        taken = self._sampler.take(self._keeper.now_ns())
        if isinstance(taken, Missing):
            self._watch.miss(self._watch.explain(taken.problems))
        elif taken.is_new:
            self._wants_images = self._settings["trigger"] == "images"
            self._hand_over_words()
            try:
                self._finish(self._ticker.run(taken, was_awaited))
                return 0.0
            except Undecodable as error:
                self._watch.miss(str(error))
        self._pace.pass_over(now)
        return RETRY_EVERY

    def _drain(self) -> None:
        """Feed what came in to the sampler."""
        for stream, message, received_ns in self._inputs.drain():
            stamp_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
            if stamp_ns > 0:
                self._notice_loop(stream, stamp_ns)
            if stream == "joint_states":
                self._sampler.add_joints(stamp_ns, message.name, message.position, received_ns)
            else:
                self._sampler.add_image(stream, stamp_ns, message, received_ns)

    def _notice_loop(self, stream: str, stamp_ns: int) -> None:
        """A stream whose stamps go back by more than lateness explains is a recording that starts again."""
        late_ns = int(max(1.0, 2 * self._settings["max_age"]) * 1e9)
        if stamp_ns < self._newest.get(stream, 0) - late_ns:
            self._restart(f"{self._inputs.topics[stream]}: stamps went back; a recording that loops?")
        # The end of the last round may come after the beginning of this one; it says nothing of this one.
        if stamp_ns < self._keeper.now_ns() + late_ns:
            self._newest[stream] = max(stamp_ns, self._newest.get(stream, 0))

    def _hand_over_words(self) -> None:
        """Instruction and questions count from the tick that starts now."""
        session = self._ticker.session
        instruction = self._inputs.take_instruction()
        if instruction is not None:
            session.instruct(clean_words(instruction, INSTRUCTION_CHARS))
        most = self._settings["question_max_chars"]
        questions = [clean_words(question, most) for question in self._inputs.take_questions()]
        lost = self._inputs.questions_lost - self._questions_lost
        self._questions_lost += lost
        if lost:
            self._watch.complain(
                f"{lost} questions not asked: more than {QUESTIONS_KEPT} came between two ticks; "
                "ask fewer at once"
            )
        if "answer" in self._settings.tasks:
            for words in filter(None, questions):
                session.ask(words)
        elif questions:
            more = f" and {len(questions) - 1} more" if len(questions) > 1 else ""
            self._watch.complain(
                f"question {questions[0][:60]!r}{more} not asked: text.answer.enabled is false"
            )

    def _finish(self, report: TickReport) -> None:
        self._failures = 0
        self._watch.note(report, self._ticker, self._pace)
        for problem in report.problems:
            self._watch.complain(f"{problem}; ask it shorter, or raise question_max_chars")
        if report.refusal:
            self._watch.refuse(report.refusal)
        if self._settings["debug"] and self._ticker.session.is_idle:
            self._ticker.session.engine.check_integrity()

    def _restart(self, reason: str) -> None:
        """Time began anew: nothing seen before belongs to it."""
        self._sampler.clear()
        self._newest.clear()
        ended = self._ticker.abandon(FinishReason.CANCELLED)
        self._has_begun = False
        self._watch.restart(f"{reason}: inputs forgotten, {ended} texts cancelled")

    def _survive(self, error: Exception) -> float:
        """A tick failed: end its texts, say so, rest. Returns the pause [s]."""
        engine = self._ticker.session.engine
        if is_poisoned(engine.model.device, error):
            self._is_stopping = True
            self._poisoned(f"{engine.model.device} computes no more: {error}")
            return 0.0
        pause: float = min(BACK_OFF[0] * 2**self._failures, BACK_OFF[1])
        self._failures += 1
        self._rest_until = time.monotonic() + pause
        # The periods of the rest are not missed for want of speed.
        self._has_begun = False
        words = f"tick failed: {type(error).__name__}: {error}"
        try:
            ended = self._ticker.abandon(FinishReason.ERROR)
        except Exception as second:
            # Ending the texts failed as well; the next tick's own failure will tell more.
            words += f"; ending the texts failed: {second}"
        else:
            words += f"; {ended} texts ended"
        if 0 < self._settings["watchdog.failed_ticks"] <= self._failures:
            self._is_stopping = True
            words += f"; {self._failures} in a row"
            self._watch.fail(words)
            self._give_up(words)
            return 0.0
        self._watch.fail(f"{words}; next try in {pause:.1f} s")
        return pause

    def _end(self) -> None:
        try:
            self._ticker.abandon(FinishReason.DEACTIVATED)
        except Exception as error:
            self._board.report("text", level.ERROR, f"texts not ended: {error}")
