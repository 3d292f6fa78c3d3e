# SPDX-License-Identifier: Apache-2.0
"""What configure does in a thread: load the model, size the pools, warm up, check the timing. No ROS.

The first runs of a model are far slower (lazy initialization, caches, kernels to create). Full ticks over a
made-up observation take that time here. They also measure decode steps of each size and the latency. Nothing
of the warm-up is counted.

What the user can cure is a PreparationError whose text names it.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.engine import (
    QUESTION,
    Budget,
    Engine,
    FinishReason,
    Load,
    Session,
    TextKind,
    TextTask,
    make_engine,
    plan_capacity,
)
from oxygen_ros.models import LoadInterrupted, ModelError
from oxygen_ros.models.interface import ROW_BUCKETS, ExpertSpec, Model
from oxygen_ros.models.loading import check_device
from oxygen_ros.node.layout import RobotLayout
from oxygen_ros.node.parameters import ParameterProblem
from oxygen_ros.node.settings import Settings
from oxygen_ros.observation import Leftover, Observation
from oxygen_ros.robot.chunk import ChunkError, check_timing
from oxygen_ros.robot.joining import JoinRule

LoadModel = Callable[..., Model]

# Decode steps measured for each row bucket; the estimate leaves out the slowest.
STEPS_PER_BUCKET = 3


class PreparationError(RuntimeError):
    """Configure cannot succeed; the text has the problem and the cure."""


class Latency(NamedTuple):
    """Seconds from a set of inputs to its chunk, measured after the first ticks.

    chunk:        observe + act, the 99th percentile (of so few ticks: the slowest)
    decode_step:  one decode step of the largest size; a due tick waits for at most one
    """

    chunk: float
    decode_step: float


@dataclass(frozen=True, slots=True)
class Prepared:
    """An engine ready to tick, for a robot.

    kinds:   the text kinds as the model can have them
    slower:  why passes are slower than necessary, else ""
    """

    engine: Engine
    settings: Settings
    layout: RobotLayout
    kinds: tuple[TextKind, ...]
    latency: Latency
    join_rule: JoinRule
    slower: str = ""

    @property
    def expert(self) -> ExpertSpec:
        return self.engine.model.spec.experts[self.layout.expert]

    def make_session(self, instruction: str) -> Session:
        """A run from tick 1 on; the engine's measured costs are kept."""
        self.engine.counters.restart()
        return Session(
            self.engine,
            self.kinds,
            self.settings.budget,
            instruction=instruction,
            expert=self.layout.expert,
        )

    @property
    def deadline(self) -> float:
        """Deadline offered for chunks [s]: twice the time between two of them."""
        covers = self.expert.horizon * self.expert.step
        between = covers if self.settings.trigger == "chunk_end" else self.settings.period
        return self.settings.chunk_deadline or 2 * between

    def describe(self) -> dict[str, object]:
        """What runs, how fast and in how much memory: the figures of the `model` part of /diagnostics."""
        model, expert = self.engine.model, self.expert
        values: dict[str, object] = {
            "family": model.spec.family,
            "device": model.device,
            "mode": self.engine.mode,
            "latency of a chunk, p99 in warm-up [s]": self.latency.chunk,
            "longest decode step [s]": self.latency.decode_step,
            "expert": expert.name,
            "chunk": f"{expert.horizon} x {expert.step:g} s",
            "join": self.join_rule.describe(expert.step),
            "prefix slots": model.capacity.prefixes,
            "suffix slots": model.capacity.suffixes,
            "pools [MiB]": model.pool_bytes() / 2**20,
        }
        if self.slower:
            values["slower than it need be"] = self.slower
        return values


def load(settings: Settings, load_model: LoadModel, should_stop: Callable[[], bool]) -> tuple[Model, float]:
    """The model and the seconds it took. Raises ParameterProblem, PreparationError, or LoadInterrupted."""
    wanted = settings.model
    try:
        check_device(wanted.device)
    except ModelError as error:
        raise ParameterProblem(f"parameter 'device': {error}") from error
    torch.set_num_threads(wanted.torch_threads)
    # Libraries that models import must not add handlers to the robot's log.
    handlers = list(logging.root.handlers)
    started = time.monotonic()
    try:
        model = load_model(
            resolve_folder(wanted.folder),
            device=wanted.device,
            dtype=wanted.dtype,
            denoise_steps=wanted.denoise_steps or None,
            adapters=[resolve_folder(folder) for folder in wanted.adapters],
            should_stop=should_stop,
        )
    except LoadInterrupted:
        raise
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        raise PreparationError(f"model {wanted.folder!r}: {error}") from error
    finally:
        logging.root.handlers[:] = handlers
    return model, time.monotonic() - started


def prepare(
    settings: Settings, model: Model, layout: RobotLayout, should_stop: Callable[[], bool]
) -> Prepared:
    """Pools, warm-up and the check of the timing.

    Raises ParameterProblem, PreparationError, or LoadInterrupted.
    """
    torch.set_num_threads(settings.model.torch_threads)
    kinds = settings.text.kinds_of(model.spec)
    _check_texts(kinds, model)
    text, expert = settings.engine, model.spec.experts[layout.expert]
    loads = _estimate_loads(kinds, settings.text.question_max_chars, model)
    try:
        capacity = plan_capacity(loads, settings.budget, mode=text.mode, draft=text.draft_tokens)
        engine = make_engine(
            text.mode, model, capacity, when_full=text.when_full, draft=text.draft_tokens, seed=text.seed
        )
        observation = make_observation(model, layout, settings.instruction)
        slower = model.prepare(model.process(observation))
        warm_up = _WarmUp(engine, observation, settings, layout, should_stop)
        latency = warm_up.run(kinds)
    except (ValueError, RuntimeError) as error:
        raise PreparationError(f"warm-up failed: {error}") from error
    try:
        # With `chunk_end` a tick comes when the chunk has run out, and the arm waits.
        period = settings.period if settings.trigger != "chunk_end" else expert.step
        check_timing(period, sum(latency), expert.horizon, expert.step)
    except ChunkError as error:
        raise PreparationError(f"parameter 'period': {error}") from error
    rule = settings.join.make_rule(expert, sum(latency))
    return Prepared(engine, settings, layout, kinds, latency, rule, slower)


def resolve_folder(name: str) -> str:
    """A folder's path. "package://<package>/<folder>" is looked for in that package's share folder.

    Raises PreparationError for a package that is not installed.
    """
    if not name.startswith("package://"):
        return name
    package, _, folder = name.removeprefix("package://").partition("/")
    try:
        # Plain folders need no ROS.
        from ament_index_python.packages import get_package_share_directory

        share = get_package_share_directory(package)
    except (ImportError, LookupError, ValueError) as error:
        raise PreparationError(f"{name}: package {package!r} is not installed ({error})") from error
    return str(Path(share) / folder)


def release_memory() -> None:
    """Give a dropped model's memory back to the machine and the device."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def make_observation(model: Model, layout: RobotLayout, instruction: str) -> Observation:
    """An observation that fits the model: noise for images, joints [J] in the middle of their ranges."""
    noise = np.random.default_rng(0)
    images: dict[str, NDArray[np.uint8]] = {
        camera: noise.integers(0, 256, (*model.spec.image_size, 3), dtype=np.uint8)
        for camera in layout.cameras
    }
    ranges = [layout.ranges.get(name, (0.0, 0.0)) for name in layout.joints]
    middle = np.array([(low + high) / 2 for low, high in ranges], np.float64)
    joints = np.nan_to_num(middle, posinf=0.0, neginf=0.0)
    return Observation(1, images, joints, instruction)


def _check_texts(kinds: Sequence[TextKind], model: Model) -> None:
    for kind in kinds:
        if kind.task.adapter and kind.task.adapter not in model.adapters:
            raise PreparationError(
                f"parameter 'text.{kind.name}.adapter' is {kind.task.adapter!r}; it must be a loaded "
                f"adapter: {', '.join(model.adapters) or 'there are none'}"
            )
        if not model.tokenize(kind.task.prompt):
            raise PreparationError(
                f"parameter 'text.{kind.name}.prompt' is {kind.task.prompt!r}; it must have at least one "
                "token"
            )


def _estimate_loads(kinds: Sequence[TextKind], question_chars: int, model: Model) -> list[Load]:
    loads = []
    for kind in kinds:
        most = kind.task.max_tokens
        tokens = len(model.tokenize(kind.task.prompt.replace(QUESTION, "")))
        if kind.is_question:
            # Room for the longest question; a token is rarely shorter than a letter.
            loads.append(Load(most, tokens + question_chars, 0, kind.at_once))
        if kind.every_n_ticks:
            loads.append(Load(most, tokens, kind.every_n_ticks))
        if kind.on_instruction:
            loads.append(Load(most, tokens, 0, at_once=1))
    return loads


@dataclass(frozen=True, slots=True)
class _WarmUp:
    """Ticks over one observation. Raises LoadInterrupted when `should_stop` turns true."""

    engine: Engine
    observation: Observation
    settings: Settings
    layout: RobotLayout
    should_stop: Callable[[], bool]

    def run(self, kinds: Sequence[TextKind]) -> Latency:
        """Ticks with all texts and experts, then decode steps of every size the budget allows."""
        engine, budget = self.engine, self.settings.budget
        # Of another kind, so that their texts do not become drafts of real ones.
        tasks = [replace(kind.task, kind="warm-up", max_age=0) for kind in kinds]
        free = replace(budget, mode="fixed", steps=max(budget.steps, 1))
        leftover = self._make_leftover() if self.settings.join.mode == "rtc" else None
        seconds = []
        for tick in range(self.settings.model.warmup_ticks):
            self._check_stop()
            started = time.monotonic()
            with engine.observe(replace(self.observation, stamp=tick + 1)) as encoded:
                engine.act(encoded, leftover, self.layout.expert)
                seconds.append(time.monotonic() - started)
                for expert in self.layout.other_experts:
                    engine.act(encoded, expert=expert)
                for task in tasks:
                    engine.ask(encoded, task)
            engine.advance(free)
            engine.check_integrity()
        engine.cancel(FinishReason.CANCELLED)
        if tasks and engine.batches:
            self._measure_steps(max(tasks, key=lambda task: task.max_tokens))
        engine.counters.restart()
        return Latency(max(seconds[1:]), engine.costs.predict(budget.rows) if tasks else 0.0)

    def _make_leftover(self) -> Leftover:
        """A last chunk that stays at the joints (other numbers at 0), with full weights."""
        expert = self.engine.model.spec.experts[self.layout.expert]
        row = np.zeros(self.layout.space.size)
        columns = [at for at, kind in enumerate(self.layout.space.kinds) if kind.is_joint]
        row[columns] = self.observation.joints[self.layout.columns(self.layout.expert)]
        actions = np.tile(row, (expert.horizon, 1))
        return Leftover(actions, np.ones(expert.horizon), float(expert.denoise_steps))

    def _measure_steps(self, task: TextTask) -> None:
        """Run steps of each row bucket that the slots can fill."""
        engine, room = self.engine, self.engine.suffix_tokens - 1
        task = replace(task, max_tokens=1, temperature=0.0, stop=())
        for rows in ROW_BUCKETS:
            requests = -(-rows // room)
            if rows > self.settings.budget.rows or requests > engine.suffixes.size:
                return
            for _ in range(STEPS_PER_BUCKET):
                self._check_stop()
                with engine.observe(self.observation) as encoded:
                    for _ in range(requests):
                        prompt = _write_prompt(engine.model, min(rows, room))
                        engine.ask(encoded, replace(task, prompt=prompt))
                engine.advance(Budget(steps=1, rows=rows))
                engine.cancel(FinishReason.CANCELLED)

    def _check_stop(self) -> None:
        if self.should_stop():
            raise LoadInterrupted("stopped while warming up")


def _write_prompt(model: Model, tokens: int) -> str:
    """A prompt of about so many tokens, never more."""
    text = "a"
    while len(model.tokenize(longer := text + " a")) <= tokens:
        text = longer
    return text
