# SPDX-License-Identifier: Apache-2.0
"""One closed-loop episode: a Session drives the simulated arm until the task is done or time is up.

In simulated time: observe, infer (the arm goes on meanwhile), splice the chunk, move until the next tick. The
simulator's own `TrajectoryExecutor` splices, as it does behind the node.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.expert import narrate, remember
from oxygen_ros.demo.sim.state import State
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.trajectory import TrajectoryExecutor
from oxygen_ros.demo.sim.world import World, rest_joints
from oxygen_ros.demo.training.timing import Timing, no_time
from oxygen_ros.engine import (
    STANDARD_KINDS,
    Budget,
    FinishedText,
    Load,
    Session,
    TextKind,
    make_engine,
    plan_capacity,
    ticks_of_text,
)
from oxygen_ros.models import Model

_NS: Final = 1_000_000_000
_PERIOD_NS: Final = round(g.CONTROL_PERIOD * _NS)

Driver = Callable[[State, Task], NDArray[np.float64]]
PeriodCallback = Callable[["Episode"], None]


@dataclass(frozen=True, slots=True)
class EpisodeSetup:
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
        """D: ticks from a memory's question to the prompt that holds it: when it has surely ended.

        If more than `every`, independent memories alternate in the prompt.
        """
        return ticks_of_text(self.max_tokens, self.steps)


@dataclass(slots=True)
class EpisodeResult:
    """The result of an episode.

    seconds:     simulated, until the box held what it should (and went on holding it)
    memories:    (text, truth) of every finished memory; narrations likewise
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


def make_session(model: Model, mode: str, setup: EpisodeSetup, instruction: str) -> Session:
    """The Session of an episode: memory (and narration) asked again and again."""

    def recur(name: str, feed_after: int = 0, adapter: str = "") -> TextKind:
        kind = STANDARD_KINDS[name]
        task = replace(kind.task, max_tokens=setup.max_tokens, adapter=adapter)
        return replace(kind, task=task, every_n_ticks=setup.every, feed_after=feed_after)

    kinds = [recur("memory", setup.lag if setup.feedback else 0, setup.memory_adapter)]
    if setup.narration:
        kinds.append(recur("narration"))
    budget = Budget(steps=setup.steps)
    loads = [Load(setup.max_tokens, len(model.tokenize(kind.task.prompt)), setup.every) for kind in kinds]
    engine = make_engine(mode, model, plan_capacity(loads, budget, mode=mode))
    return Session(engine, kinds, budget, instruction=instruction)


def run_episode(
    world: World,
    model: Model,
    task: Task,
    seed: int,
    mode: str = "oxygen",
    setup: EpisodeSetup | None = None,
    timing: Timing = no_time,
    driver: Driver | None = None,
    watch: PeriodCallback | None = None,
) -> EpisodeResult:
    """One episode of `task` on layout `seed`.

    driver:  moves the arm instead of the model, which still makes its texts
    watch:   called after every control period
    """
    setup = setup or EpisodeSetup()
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
        setup: EpisodeSetup,
        timing: Timing,
        driver: Driver | None = None,
        watch: PeriodCallback | None = None,
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
        self.outcome = EpisodeResult(seed)
        self.heard: dict[str, str] = {}
        """The newest finished text of each kind."""

    @property
    def time(self) -> float:
        """Simulated seconds since the episode began."""
        return self._periods * g.CONTROL_PERIOD

    def run(self) -> EpisodeResult:
        out, limit = self.outcome, self._setup.limit * self._task.count
        while self.time < limit + self._setup.hold and not self._is_over(limit):
            self._tick()
        self._take(self._session.drain())
        self._session.engine.check_integrity()
        out.inside = self._world.blocks_in_box(self._task.color)
        out.actions = self._digest.hexdigest()
        return out

    def _tick(self) -> None:
        """Observe, infer while the arm goes on, splice, move on to the next tick."""
        world, session = self._world, self._session
        began = self._periods
        images = {name: world.render(name, self._size, self._size) for name in self._model.spec.cameras}
        # Stamps start above zero: for a trajectory controller a zero stamp means "now".
        stamp = (began + 1) * _PERIOD_NS
        started = session.begin(stamp, images, world.joint_positions())
        state = world.state()
        chunk = started.actions if self._driver is None else self._driver(state, self._task)
        self._truth[started.tick] = (remember(state, self._task), narrate(state, self._task))
        report = session.finish()
        self._digest.update(chunk.tobytes())
        self._take(report.finished)
        acting, talking = self._timing(self._mode, report)
        self._move(acting)
        times = (1 + np.arange(len(chunk))) * round(self._model.spec.experts[0].step * _NS)
        now = (self._periods + 1) * _PERIOD_NS
        if stamp + int(times[-1]) > now:  # else all of it is past: the arm stays
            self._follow.accept(g.JOINTS, stamp, times, g.clip_joints(chunk), now)
        self._move(max(talking, self._setup.period - (self._periods - began) * g.CONTROL_PERIOD))
        self.outcome.ticks += 1

    def _move(self, seconds: float) -> None:
        for _ in range(round(seconds / g.CONTROL_PERIOD)):
            self._world.step(self._follow.target((self._periods + 2) * _PERIOD_NS))
            self._periods += 1
            if self._watch is not None:
                self._watch(self)

    def _take(self, finished: Sequence[FinishedText]) -> None:
        for text in finished:
            self.heard[text.kind] = text.text.strip()
            memory, narration = self._truth[text.tick_asked]
            if text.kind == "memory":
                self.outcome.memories.append((text.text.strip(), memory))
            elif text.kind == "narration":
                self.outcome.narrations.append((text.text.strip(), narration))

    def _is_over(self, limit: float) -> bool:
        """Checked between ticks. Success: the count is right and stays so for `hold` seconds."""
        state = self._world.state()
        right = state.count_in_box(self._task.color) == self._task.count and not any(
            block.in_box and block.color != self._task.color for block in state.blocks
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
