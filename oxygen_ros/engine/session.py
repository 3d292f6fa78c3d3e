# SPDX-License-Identifier: Apache-2.0
"""One robot's run over an engine: what is asked when, which texts are fed back, tick after tick.

Here lives the order inside a tick: observe, act, publish, ask, advance. The node drives it,
and so may whatever reads a recording: the same stamps give the same chunks and texts. No ROS, no
clock of its own beyond the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.counters import Phases
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.feedback import Feedback
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.request import Answer, FinishedText, FinishReason, TextTask
from oxygen_ros.observation import Observation, Previous

# (tick, observation, actions [H, A] in robot units)
Publish = Callable[[int, Observation, NDArray[np.float64]], None]


class Join(Protocol):
    """What remembers the chunk before and says what a new one is guided towards (`robot.overlap.Overlap`)."""

    def find_previous(self, observation: Observation, horizon: int, step: float) -> Previous | None: ...

    def forget(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Recurring:
    """A text asked for by itself: at ticks 1, 1 + n, 1 + 2n, ...

    every_n_ticks:   n; 0: only when an instruction takes effect
    on_instruction:  besides, at each tick at which a new instruction (or the first one) takes effect
    """

    task: TextTask
    every_n_ticks: int = 1
    on_instruction: bool = False

    def __post_init__(self) -> None:
        least = 0 if self.on_instruction else 1
        if self.every_n_ticks < least:
            raise ValueError(
                f"{self.task.kind}: every_n_ticks must be at least {least}, got {self.every_n_ticks}"
            )

    def is_due(self, tick: int, is_instructed: bool = False) -> bool:
        """is_instructed: whether an instruction takes effect at this tick"""
        is_turn = self.every_n_ticks > 0 and (tick - 1) % self.every_n_ticks == 0
        return is_turn or (self.on_instruction and is_instructed)


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did: its phases, the texts that ended, and the engine's state after it.

    publish:          seconds of the publish callback
    memory, subtask:  the texts that stood in this tick's prompt
    problems:         questions that could not be asked, in words
    refusal:          why a new instruction was refused and the one before stands; "" when none was
    """

    tick: int
    stamp: int
    phases: Phases
    publish: float
    finished: tuple[FinishedText, ...]
    memory: str
    subtask: str
    memories_dropped: int
    live: int
    problems: tuple[str, ...] = ()
    refusal: str = ""


class Session:
    """An engine with its recurring texts, instruction, questions and feedback. One thread owns it."""

    def __init__(
        self,
        engine: Engine,
        recurring: Sequence[Recurring],
        budget: Budget,
        *,
        instruction: str = "",
        answer: TextTask | None = None,
        answer_template: str = "Question: {question} Answer: ",
        memory_lag: int,
        subtask_lag: int | None = None,
        cancelled_kinds: Collection[str] = (),
        join: Join | None = None,
    ) -> None:
        """answer:      limits and adapter of answers; its prompt is made from `answer_template`
        memory_lag:     ticks from a memory's question to the prompt that holds it, see `feedback`
        subtask_lag:    the same of subtasks; None: subtasks are said, but stay out of the prompt
        cancelled_kinds: kinds whose texts under way a new instruction ends (`cancelled`)
        join:           what chunks are guided towards; told here to forget when an instruction takes effect
                        and at `stop`. Whoever publishes tells it what went out. None: each stands alone

        Raises ValueError when a recurring text can never run (prompt or adapter; see Engine.ask), or when
        two of them are memories (or subtasks): the prompt holds one.
        """
        for item in recurring:
            engine.prepare(item.task)
        self.engine = engine
        self.recurring = tuple(recurring)
        self.budget = budget
        self.feedback = Feedback("memory", memory_lag)
        self.feedbacks = {"memory": self.feedback}
        if subtask_lag is not None:
            self.feedbacks["subtask"] = Feedback("subtask", subtask_lag)
        for kind in self.feedbacks:
            if sum(item.task.kind == kind for item in recurring) > 1:
                raise ValueError(f"two recurring texts of kind {kind}: the prompt holds one {kind}")
        self._answer = answer or Answer("")
        self._template = answer_template
        self._cancelled_kinds = frozenset(cancelled_kinds)
        self._instruction = instruction
        self._next_instruction: str | None = None
        self._is_instructed = True  # the first one takes effect at the first tick
        self._questions: list[str] = []
        self._ended: list[FinishedText] = []  # by a new instruction; told with the tick it takes effect at
        self._join = join

    @property
    def instruction(self) -> str:
        """The newest one the model did not refuse; it stands in the prompt from the next tick on."""
        return self._instruction if self._next_instruction is None else self._next_instruction

    @property
    def is_idle(self) -> bool:
        return self.engine.live == 0

    def instruct(self, instruction: str) -> None:
        """Set the instruction from the next tick on; the same words again begin the task anew.

        One that does not fit the model is refused there: the one before stands, and the report says why.
        Otherwise memories and subtasks of what was before are not fed back any more; texts under way of
        `cancelled_kinds` end, the others go on: they are about the observation they were asked from.
        """
        self._next_instruction = instruction

    def ask(self, question: str) -> None:
        """Answer a question about the next tick's observation."""
        self._questions.append(question)

    def tick(
        self,
        stamp: int,
        images: Mapping[str, NDArray[np.uint8]],
        joints: NDArray[np.float64],
        publish: Publish,
        due: float | None = None,
    ) -> TickReport:
        """One tick over a coherent observation.

        publish(tick, observation, actions [H, A]) is called before any text advances.
        due: when the next tick is due on the engine's clock [s], None if none comes by itself.

        Whatever is raised in here leaves the slots consistent; call `stop` then to end the texts.
        """
        engine = self.engine
        refusal = self._take_instruction(Observation(stamp, images, joints, self._instruction))
        tick = engine.counters.ticks + 1
        said = {kind: feedback.at(tick) for kind, feedback in self.feedbacks.items()}
        observation = Observation(stamp, images, joints, self._instruction, **said)
        with engine.observe(observation) as frame:
            actions = engine.act(frame, self._find_previous(observation))
            started = engine.clock()
            publish(tick, observation, actions)
            published = engine.clock() - started
            for item in self.recurring:
                if item.is_due(tick, self._is_instructed):
                    engine.ask(frame, item.task)
                    if item.task.kind in self.feedbacks:
                        self.feedbacks[item.task.kind].expect(tick)
            self._is_instructed = False
            problems = self._ask_questions(frame)
        finished = engine.advance(self.budget, due)
        self._deliver(finished)
        finished, self._ended = [*self._ended, *finished], []
        return TickReport(
            tick=tick,
            stamp=stamp,
            phases=engine.phases,
            publish=published,
            finished=tuple(finished),
            memory=observation.memory,
            subtask=observation.subtask,
            memories_dropped=self.feedback.dropped,
            live=engine.live,
            problems=problems,
            refusal=refusal,
        )

    def drain(self) -> list[FinishedText]:
        """Run the texts under way to their ends, without new ticks (end of a bag)."""
        finished: list[FinishedText] = []
        while self.engine.live:
            finished += self.engine.advance(
                replace(self.budget, mode="fixed", steps=max(self.budget.steps, 1))
            )
        self._deliver(finished)
        return finished

    def stop(self, reason: FinishReason) -> list[FinishedText]:
        """End all texts, questions, memories and subtasks now (deactivation, clock jump, error)."""
        self._questions.clear()
        self._forget()
        ended, self._ended = self._ended, []
        return ended + self.engine.cancel(reason)

    def _take_instruction(self, observation: Observation) -> str:
        """Let a new instruction take effect, if the model can take it; why not, else "".

        observation: of the coming tick, with the instruction that stands
        """
        words = self._next_instruction
        if words is None:
            return ""
        process = self.engine.model.process
        try:
            process(replace(observation, instruction=words))
        except ValueError as error:
            process(observation)  # raises too where the instruction is not what is wrong; then it still waits
            self._next_instruction = None
            return f'instruction "{words[:60]}" refused, "{self._instruction[:60]}" stands: {error}'
        self._instruction, self._next_instruction = words, None
        self._is_instructed = True
        self._forget()
        if self._cancelled_kinds:
            self._ended += self.engine.cancel(FinishReason.CANCELLED, kinds=self._cancelled_kinds)
        return ""

    def _forget(self) -> None:
        for feedback in self.feedbacks.values():
            feedback.clear()
        if self._join is not None:
            self._join.forget()

    def _find_previous(self, observation: Observation) -> Previous | None:
        spec = self.engine.model.spec
        return None if self._join is None else self._join.find_previous(observation, spec.horizon, spec.step)

    def _ask_questions(self, frame: Frame) -> tuple[str, ...]:
        problems = []
        questions, self._questions = self._questions, []
        for question in questions:
            prompt = self._template.replace("{question}", question)
            try:
                self.engine.ask(frame, replace(self._answer, prompt=prompt))
            except ValueError as error:
                problems.append(f'question "{question[:60]}" not asked: {error}')
        return tuple(problems)

    def _deliver(self, finished: Sequence[FinishedText]) -> None:
        for text in finished:
            if text.kind in self.feedbacks:
                self.feedbacks[text.kind].deliver(text)
