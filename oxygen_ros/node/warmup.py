# SPDX-License-Identifier: Apache-2.0
"""Full ticks over a made-up observation, before the first real one.

The first runs of a model are slower by far (lazy initialisation, caches, kernels to compile). Run here they
cost no chunk; the engine learns what decode steps of each size take, and configure learns the latency.
Nothing of it is counted.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine import Budget, Engine, FinishReason, TextTask
from oxygen_ros.engine.budget import BUCKETS
from oxygen_ros.models import LoadInterrupted
from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.observation import Observation, Previous

# Steps measured for each row bucket; the estimate leaves out the slowest.
STEPS_PER_BUCKET = 3


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds from a sample to its chunk, measured after the first ticks.

    chunk:        the 99th percentile of observe + act (of so few ticks: the slowest)
    decode_step:  one decode step of the largest size; a due tick waits for at most one
    """

    chunk: float
    decode_step: float

    @property
    def total(self) -> float:
        return self.chunk + self.decode_step


def make_observation(
    spec: ModelSpec, cameras: Sequence[str], ranges: Sequence[tuple[float, float]], instruction: str
) -> Observation:
    """An observation that fits the model: noise for images, joints [J] in the middle of their ranges."""
    noise = np.random.default_rng(0)
    images: dict[str, NDArray[np.uint8]] = {
        camera: noise.integers(0, 256, (*spec.image_size, 3), dtype=np.uint8) for camera in cameras
    }
    middle = np.array([(low + high) / 2 for low, high in ranges], np.float64)
    joints = np.nan_to_num(middle, posinf=0.0, neginf=0.0)
    return Observation(1, images, joints, instruction)


def warm_up(
    engine: Engine,
    observation: Observation,
    tasks: Sequence[TextTask],
    budget: Budget,
    ticks: int,
    should_stop: Callable[[], bool],
    previous: Previous | None = None,
) -> Latency:
    """Run `ticks` ticks with all texts, then decode steps of every size the budget allows.

    previous: what chunks are guided towards, where real ones will be

    Raises LoadInterrupted when `should_stop` turns true.
    """
    # Of their own kind, so that their texts do not become drafts of real ones.
    tasks = [replace(task, kind="warm-up", max_age=0) for task in tasks]
    free = replace(budget, mode="fixed", steps=max(budget.steps, 1))
    seconds = []
    for tick in range(ticks):
        _heed(should_stop)
        started = time.monotonic()
        with engine.observe(replace(observation, stamp=tick + 1)) as frame:
            engine.act(frame, previous)
            seconds.append(time.monotonic() - started)
            for task in tasks:
                engine.ask(frame, task)
        engine.advance(free)
        engine.check_integrity()
    engine.cancel(FinishReason.CANCELLED)
    if tasks and engine.batch:
        _measure_steps(engine, observation, max(tasks, key=lambda task: task.max_tokens), budget, should_stop)
    engine.counters.restart()
    return Latency(max(seconds[1:]), engine.costs.predict(budget.rows) if tasks else 0.0)


def make_previous(spec: ModelSpec, observation: Observation) -> Previous:
    """A chunk before that stands where the joints are, all of it binding."""
    joints = observation.joints[[spec.joints.index(name) for name in spec.action_joints]]
    return Previous(
        np.broadcast_to(joints, (spec.horizon, len(joints))), np.ones(spec.horizon), float(spec.denoise_steps)
    )


def _measure_steps(
    engine: Engine,
    observation: Observation,
    task: TextTask,
    budget: Budget,
    should_stop: Callable[[], bool],
) -> None:
    """Run steps of each row bucket that the slots can fill."""
    room = engine.scheduler.suffix_tokens - 1
    task = replace(task, max_tokens=1, temperature=0.0, stop=())
    for rows in BUCKETS:
        requests = -(-rows // room)
        if rows > budget.rows or requests > engine.suffixes.size:
            return
        for _ in range(STEPS_PER_BUCKET):
            _heed(should_stop)
            with engine.observe(observation) as frame:
                for _ in range(requests):
                    engine.ask(frame, replace(task, prompt=_write_prompt(engine, min(rows, room))))
            engine.advance(Budget(steps=1, rows=rows))
            engine.cancel(FinishReason.CANCELLED)


def _write_prompt(engine: Engine, tokens: int) -> str:
    """A prompt of about so many tokens, never more."""
    text = "a"
    while len(engine.model.tokenize(longer := text + " a")) <= tokens:
        text = longer
    return text


def _heed(should_stop: Callable[[], bool]) -> None:
    if should_stop():
        raise LoadInterrupted("stopped while warming up")
