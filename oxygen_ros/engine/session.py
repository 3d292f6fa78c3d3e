# SPDX-License-Identifier: Apache-2.0
"""One robot's run over an engine: what is asked when, which texts are fed back, tick after tick.

    started = session.begin(stamp, images, joints)    # observe and act
    ...                                               # publish started.actions now
    others = session.act(1)                           # another expert of the model, if it has one
    report = session.finish(due)                      # ask texts, advance those under way

The node drives it; a reader of recordings may too: the same stamps give the same chunks and texts.
No ROS, no clock but the engine's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.counters import Phases
from oxygen_ros.engine.encoded import EncodedObservation
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.feedback import Feedback
from oxygen_ros.engine.kinds import TextKind
from oxygen_ros.engine.request import FinishedText, FinishReason
from oxygen_ros.observation import Leftover, Observation


@dataclass(frozen=True, slots=True)
class StartedTick:
    """A tick after `begin`: its actions exist, its texts have not advanced yet.

    actions: [H, A] of the commanding expert, in its action space
    """

    tick: int
    observation: Observation
    actions: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class UnaskedQuestion:
    """A question that could not be asked, and why."""

    question: str
    reason: str


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did: its phases, the texts that ended, and the engine's state after it.

    feedback:          the texts fed back into this tick's prompt, by kind
    feedback_dropped:  texts that ended too late to be fed back, since the session began
    live:              texts under way
    """

    tick: int
    stamp: int
    phases: Phases
    finished: tuple[FinishedText, ...]
    feedback: Mapping[str, str]
    feedback_dropped: int
    live: int
    unasked: tuple[UnaskedQuestion, ...] = ()


class Session:
    """An engine with its text kinds, instruction, questions and feedback. One thread owns it."""

    def __init__(
        self,
        engine: Engine,
        kinds: Sequence[TextKind],
        budget: Budget,
        *,
        instruction: str = "",
        expert: int = 0,
    ) -> None:
        """expert: whose actions `begin` returns

        Raises ValueError when a text can never run (prompt or adapter; see Engine.check_task), or when two
        kinds have one name.
        """
        for kind in kinds:
            if not kind.is_question:
                engine.check_task(kind.task)
        self.engine = engine
        self.kinds = {kind.name: kind for kind in kinds}
        if len(self.kinds) != len(kinds):
            raise ValueError(f"two text kinds have one name: {', '.join(kind.name for kind in kinds)}")
        self.budget = budget
        self.feedbacks = {k.name: Feedback(k.name, k.feed_after) for k in kinds if k.feed_after}
        self.instruction = instruction
        self._expert = expert
        self._is_instructed = True  # the first instruction takes effect at the first tick
        self._questions: list[str] = []
        self._cancelled: list[FinishedText] = []  # by a new instruction; reported with the next tick
        self._encoded: EncodedObservation | None = None  # between `begin` and `finish`

    def instruct(self, instruction: str) -> None:
        """Set the instruction from the next tick on; the same words again restart the task.

        Earlier texts are not fed back any more; those under way of kinds with `cancel_on_instruction` end.

        Raises ValueError when the model's prompt has no room for it; the earlier one stays.
        """
        if self._encoded is not None:
            raise RuntimeError("an instruction takes effect between ticks: call finish or stop first")
        self.engine.model.check_instruction(instruction)
        self.instruction = instruction
        self._is_instructed = True
        self._forget()
        cancelled = [kind.name for kind in self.kinds.values() if kind.cancel_on_instruction]
        if cancelled:
            self._cancelled += self.engine.cancel(FinishReason.CANCELLED, kinds=cancelled)

    def ask(self, question: str) -> None:
        """Ask a question about the next tick's observation, of each kind whose prompt takes one."""
        self._questions.append(question)

    def begin(
        self,
        stamp: int,
        images: Mapping[str, NDArray[np.uint8]],
        joints: NDArray[np.float64],
        leftover: Leftover | None = None,
    ) -> StartedTick:
        """Observe and act. The caller publishes the actions, then calls `finish`.

        stamp, images, joints:  as in `Observation`
        leftover:               what the chunk is guided towards

        An error in here or in `finish` leaves the slots consistent; call `stop` then to end the texts.
        """
        if self._encoded is not None:
            raise RuntimeError(f"tick {self._encoded.tick} was begun and not finished: call finish or stop")
        tick = self.engine.counters.ticks + 1
        fed = {kind: text for kind, feedback in self.feedbacks.items() if (text := feedback.at(tick))}
        observation = Observation(stamp, images, joints, self.instruction, fed)
        self._encoded = self.engine.observe(observation)
        try:
            actions = self.engine.act(self._encoded, leftover, self._expert)
        except BaseException:
            self._close()
            raise
        return StartedTick(tick, observation, actions)

    def act(self, expert: int) -> NDArray[np.float64]:
        """Actions [H, A] of another expert for the tick that was begun. Call it after publishing."""
        return self.engine.act(self._expect_begun(), expert=expert)

    def finish(self, due: float | None = None) -> TickReport:
        """Ask the texts of the tick that was begun, and advance all that are under way.

        due: when the next tick is due on the engine's clock [s], None if none comes by itself
        """
        engine, encoded = self.engine, self._expect_begun()
        try:
            self._ask_kinds(encoded)
            unasked = self._ask_questions(encoded)
        finally:
            self._close()
        finished = engine.advance(self.budget, due)
        self._deliver(finished)
        finished, self._cancelled = [*self._cancelled, *finished], []
        return TickReport(
            tick=encoded.tick,
            stamp=encoded.observation.stamp,
            phases=engine.phases,
            finished=tuple(finished),
            feedback=encoded.observation.feedback,
            feedback_dropped=sum(feedback.dropped for feedback in self.feedbacks.values()),
            live=engine.live,
            unasked=unasked,
        )

    def drain(self) -> list[FinishedText]:
        """Run the texts under way to their ends, without new ticks (end of a bag)."""
        finished: list[FinishedText] = []
        budget = replace(self.budget, mode="fixed", steps=max(self.budget.steps, 1))
        while self.engine.live:
            finished += self.engine.advance(budget)
        self._deliver(finished)
        cancelled, self._cancelled = self._cancelled, []
        return cancelled + finished

    def stop(self, reason: FinishReason) -> list[FinishedText]:
        """End all texts, questions and feedback now (deactivation, clock jump, error)."""
        self._close()
        self._questions.clear()
        self._forget()
        self._cancelled += self.engine.cancel(reason)
        ended, self._cancelled = self._cancelled, []
        return ended

    def _expect_begun(self) -> EncodedObservation:
        if self._encoded is None:
            raise RuntimeError("no tick was begun")
        return self._encoded

    def _close(self) -> None:
        if self._encoded is not None:
            self._encoded.close()
            self._encoded = None

    def _forget(self) -> None:
        for feedback in self.feedbacks.values():
            feedback.clear()

    def _ask_kinds(self, encoded: EncodedObservation) -> None:
        for kind in self.kinds.values():
            if kind.is_due(encoded.tick, self._is_instructed):
                self.engine.ask(encoded, kind.task)
                if kind.name in self.feedbacks:
                    self.feedbacks[kind.name].expect(encoded.tick)
        self._is_instructed = False

    def _ask_questions(self, encoded: EncodedObservation) -> tuple[UnaskedQuestion, ...]:
        unasked = []
        questions, self._questions = self._questions, []
        for question in questions:
            for kind in self.kinds.values():
                if kind.is_question:
                    try:
                        self.engine.ask(encoded, kind.about(question))
                    except ValueError as error:
                        unasked.append(UnaskedQuestion(question, str(error)))
        return tuple(unasked)

    def _deliver(self, finished: Sequence[FinishedText]) -> None:
        for text in finished:
            if text.kind in self.feedbacks:
                self.feedbacks[text.kind].deliver(text)
