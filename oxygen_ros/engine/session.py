# SPDX-License-Identifier: Apache-2.0
"""One robot's run over an engine: what is asked when, which memory is fed back, tick after tick.

Here lives the order inside a tick: observe, act, publish, ask, advance. The node drives it,
and so may whatever reads a recording: the same stamps give the same chunks and texts. No ROS, no
clock of its own beyond the engine's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.counters import Phases
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.feedback import MemoryFeedback
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.request import Answer, FinishedText, FinishReason, TextTask
from oxygen_ros.observation import Observation

Publish = Callable[[int, Observation, NDArray[np.float64]], None]


@dataclass(frozen=True, slots=True)
class Recurring:
    """A text asked for by itself: at ticks 1, 1 + n, 1 + 2n, ..."""

    task: TextTask
    every_n_ticks: int = 1

    def __post_init__(self) -> None:
        if self.every_n_ticks < 1:
            raise ValueError(f"{self.task.kind}: every_n_ticks must be at least 1, got {self.every_n_ticks}")

    def is_due(self, tick: int) -> bool:
        return (tick - 1) % self.every_n_ticks == 0


@dataclass(frozen=True, slots=True)
class TickReport:
    """What one tick did: its phases, the texts that ended, and the engine's state after it.

    publish:          seconds of the publish callback
    memory:           the memory that stood in this tick's prompt
    problems:         questions that could not be asked, in words
    """

    tick: int
    stamp: int
    phases: Phases
    publish: float
    finished: tuple[FinishedText, ...]
    memory: str
    memories_dropped: int
    live: int
    problems: tuple[str, ...] = ()


class Session:
    """An engine with its recurring texts, instruction, questions and memory. One thread owns it."""

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
    ) -> None:
        """answer:      limits and adapter of answers; its prompt is made from `answer_template`
        memory_lag:     ticks from a memory's question to the prompt that holds it, see `feedback`

        Raises ValueError when a recurring text can never run (prompt or adapter; see Engine.ask), or when
        two of them are memories: the prompt holds one.
        """
        for item in recurring:
            engine.prepare(item.task)
        if sum(item.task.kind == "memory" for item in recurring) > 1:
            raise ValueError("two recurring memories: the prompt holds one memory")
        self.engine = engine
        self.recurring = tuple(recurring)
        self.budget = budget
        self.feedback = MemoryFeedback(memory_lag)
        self._answer = answer or Answer("")
        self._template = answer_template
        self._instruction = instruction
        self._questions: list[str] = []

    @property
    def instruction(self) -> str:
        return self._instruction

    @property
    def is_idle(self) -> bool:
        return self.engine.live == 0

    def instruct(self, instruction: str) -> None:
        """Set the instruction from the next tick on; the same words again begin the task anew.

        Texts under way go on: they are about the observation they were asked from. Memories of what
        was before are not fed back any more.
        """
        self._instruction = instruction
        self.feedback.clear()

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
        tick = engine.counters.ticks + 1
        memory = self.feedback.at(tick)
        observation = Observation(stamp, images, joints, self._instruction, memory)
        with engine.observe(observation) as frame:
            actions = engine.act(frame)
            started = engine.clock()
            publish(tick, observation, actions)
            published = engine.clock() - started
            for item in self.recurring:
                if item.is_due(tick):
                    engine.ask(frame, item.task)
                    if item.task.kind == "memory":
                        self.feedback.expect(tick)
            problems = self._ask_questions(frame)
        finished = engine.advance(self.budget, due)
        self._deliver(finished)
        return TickReport(
            tick=tick,
            stamp=stamp,
            phases=engine.phases,
            publish=published,
            finished=tuple(finished),
            memory=memory,
            memories_dropped=self.feedback.dropped,
            live=engine.live,
            problems=problems,
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
        """End all texts, questions and memories now (deactivation, clock jump, error)."""
        self._questions.clear()
        self.feedback.clear()
        return self.engine.cancel(reason)

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
            if text.kind == "memory":
                self.feedback.deliver(text)
