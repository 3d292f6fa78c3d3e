# SPDX-License-Identifier: Apache-2.0
"""One closed-loop episode: the served Session drives the simulated arm until the task is done or time is up.

Here lives the order in simulated time: observe, infer (the arm goes on meanwhile), splice the chunk,
move until the next tick. Splicing is the simulator's own `TrajectoryExecutor`, as behind the node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.capacity import Load, plan_capacity, ticks_of_text
from oxygen_ros.engine.engine import MODES, Engine
from oxygen_ros.engine.request import FinishedText, Memory, Narration
from oxygen_ros.engine.session import Recurring, Session
from oxygen_ros.models import Model
from oxygen_ros.observation import Observation
from oxygen_ros.sim import geometry as g
from oxygen_ros.sim.expert import narrate, remember
from oxygen_ros.sim.state import State
from oxygen_ros.sim.task import Task
from oxygen_ros.sim.trajectory import TrajectoryExecutor
from oxygen_ros.sim.world import World, rest_joints
from oxygen_ros.train.timing import Timing, no_time

_NS: Final = 1_000_000_000
_PERIOD_NS: Final = round(g.CONTROL_PERIOD * _NS)

Driver = Callable[[State, Task], NDArray[np.float64]]
Watch = Callable[["Episode"], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """How an episode is served.

    period:      seconds between two ticks when inference is in time
    steps:       decode steps a tick
    max_tokens:  of a text
    every:       texts are asked at every so many ticks
    feedback:    whether memories enter the prompt
    limit:       seconds for each block of the task
    hold:        seconds the box must stay as it should be for a success: twice what fetching one more takes
    picture:     side of the cameras' pictures [px]; 0: what the model sees
    """

    period: float = 0.4
    steps: int = 16
    max_tokens: int = 16
    every: int = 1
    feedback: bool = True
    narration: bool = True
    limit: float = 30.0
    hold: float = 8.0
    picture: int = 0
    memory_adapter: str = ""

    @property
    def lag(self) -> int:
        """D: ticks from a memory's question to the prompt that holds it: as soon as it has surely ended.

        More than `every`, memories that do not know of each other stand in the prompt in turn.
        """
        return ticks_of_text(self.max_tokens, self.steps)


@dataclass(slots=True)
class Outcome:
    """What an episode came to.

    seconds:     simulated, until the box held what it should (and went on holding it)
    memories:    (said, true) of every finished memory; narrations likewise
    actions:     digest of all chunks: equal digests, equal actions
    """

    seed: int
    success: bool = False
    seconds: float | None = None
    inside: int = 0
    ticks: int = 0
    memories: list[tuple[str, str]] = field(default_factory=list)
    narrations: list[tuple[str, str]] = field(default_factory=list)
    actions: str = ""


def make_session(model: Model, mode: str, setup: Setup, instruction: str) -> Session:
    """The Session of an episode: memory (and narration) asked again and again."""
    share, batch = MODES[mode]
    kinds = [Memory(max_tokens=setup.max_tokens, adapter=setup.memory_adapter)]
    tasks = [*kinds, *([Narration(max_tokens=setup.max_tokens)] if setup.narration else [])]
    budget = Budget(steps=setup.steps)
    loads = [Load(t.max_tokens, len(model.tokenize(t.prompt)), setup.every) for t in tasks]
    capacity = plan_capacity(loads, budget, share=share, batch=batch)
    engine = Engine(model, capacity, share=share, batch=batch)
    recurring = [Recurring(task, setup.every) for task in tasks]
    return Session(engine, recurring, budget, instruction=instruction, memory_lag=setup.lag)


def run_episode(
    world: World,
    model: Model,
    task: Task,
    seed: int,
    mode: str = "oxygen",
    setup: Setup | None = None,
    timing: Timing = no_time,
    driver: Driver | None = None,
    watch: Watch | None = None,
) -> Outcome:
    """One episode of `task` on layout `seed`.

    driver:  moves the arm in the model's place; the model still talks and remembers
    watch:   called after every control period
    """
    setup = setup or Setup()
    world.task = task
    world.reset(seed)
    return Episode(world, model, task, seed, mode, setup, timing, driver, watch).run()


class Episode:
    """The loop. One thread owns it, its world and its engine."""

    def __init__(
        self,
        world: World,
        model: Model,
        task: Task,
        seed: int,
        mode: str,
        setup: Setup,
        timing: Timing,
        driver: Driver | None = None,
        watch: Watch | None = None,
    ) -> None:
        self._driver, self._watch = driver, watch
        self._world, self._model, self._task = world, model, task
        self._mode, self._setup, self._timing = mode, setup, timing
        self._session = make_session(model, mode, setup, task.instruction)
        self._follow = TrajectoryExecutor(g.JOINTS, rest_joints())
        self._size = setup.picture or model.spec.image_size[0]
        self._periods = 0
        self._right_since: float | None = None
        self._truth: dict[int, tuple[str, str]] = {}
        self._digest = hashlib.sha256()
        self.outcome = Outcome(seed)
        self.heard: dict[str, str] = {}
        """The newest finished text of each kind."""

    @property
    def time(self) -> float:
        """Simulated seconds since the episode began."""
        return self._periods * g.CONTROL_PERIOD

    def run(self) -> Outcome:
        out, limit = self.outcome, self._setup.limit * self._task.count
        while self.time < limit + self._setup.hold and not self._is_over(limit):
            self._tick()
        self._take(self._session.drain())
        self._session.engine.check_integrity()
        out.inside = self._world.blocks_in_box(self._task.colour)
        out.actions = self._digest.hexdigest()
        return out

    def _tick(self) -> None:
        """Observe, infer while the arm goes on, splice, move on to the next tick."""
        world, session = self._world, self._session
        began = self._periods
        images = {name: world.render(name, self._size, self._size) for name in self._model.spec.cameras}
        if not self._setup.feedback:
            session.feedback.clear()
        chunks: list[NDArray[np.float64]] = []

        def publish(tick: int, seen: Observation, actions: NDArray[np.float64]) -> None:
            state = world.state()
            chunks.append(actions if self._driver is None else self._driver(state, self._task))
            self._truth[tick] = (remember(state, self._task), narrate(state, self._task))

        # Stamps start above zero: a zero stamp means "now" to who follows trajectories.
        stamp = (began + 1) * _PERIOD_NS
        report = session.tick(stamp, images, world.joint_positions(), publish)
        self._digest.update(chunks[0].tobytes())
        self._take(list(report.finished))
        acting, talking = self._timing(self._mode, report, report.phases)
        self._move(acting)
        times = (1 + np.arange(len(chunks[0]))) * round(self._model.spec.step * _NS)
        now = (self._periods + 1) * _PERIOD_NS
        if stamp + int(times[-1]) > now:  # else all of it is past: the arm stays
            self._follow.accept(g.JOINTS, stamp, times, g.clip_joints(chunks[0]), now)
        self._move(max(talking, self._setup.period - (self._periods - began) * g.CONTROL_PERIOD))
        self.outcome.ticks += 1

    def _move(self, seconds: float) -> None:
        for _ in range(round(seconds / g.CONTROL_PERIOD)):
            self._world.step(self._follow.target((self._periods + 2) * _PERIOD_NS))
            self._periods += 1
            if self._watch is not None:
                self._watch(self)

    def _take(self, finished: list[FinishedText]) -> None:
        for text in finished:
            self.heard[text.kind] = text.text.strip()
            memory, narration = self._truth[text.tick_asked]
            if text.kind == "memory":
                self.outcome.memories.append((text.text.strip(), memory))
            elif text.kind == "narration":
                self.outcome.narrations.append((text.text.strip(), narration))

    def _is_over(self, limit: float) -> bool:
        """Looked at between ticks. Success: the count is right and stays so for `hold` seconds."""
        state = self._world.state()
        right = state.count_in_box(self._task.colour) == self._task.count and not any(
            block.in_box and block.colour != self._task.colour for block in state.blocks
        )
        if not right:
            self._right_since = None
            return self.time >= limit
        if self._right_since is None:
            self._right_since = self.time
        if self._right_since > limit:
            return True
        if self.time - self._right_since >= self._setup.hold:
            self.outcome.success, self.outcome.seconds = True, self._right_since
            return True
        return False
