# SPDX-License-Identifier: Apache-2.0
"""What configure does in a thread: load the model, size the pools, warm up, judge the timing.

Here lives no rclpy. Whatever the user can cure is a PreparationError whose text names it.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from ament_index_python.packages import PackageNotFoundError, get_package_share_directory

from oxygen_ros.engine import MODES, Engine, Load, Session, plan_capacity
from oxygen_ros.models import LoadInterrupted
from oxygen_ros.models.interface import Model
from oxygen_ros.models.loading import runs_on
from oxygen_ros.node.parameters import ParameterProblem
from oxygen_ros.node.settings import Robot, Settings
from oxygen_ros.node.warmup import Latency, make_observation, make_previous, warm_up
from oxygen_ros.robot.chunk import ChunkError, check_timing
from oxygen_ros.robot.overlap import JoinRule, Overlap

LoadModel = Callable[..., Model]


class PreparationError(RuntimeError):
    """Configure cannot succeed as things are; the text says what is wrong and what would be right."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """An engine ready to tick.

    unrecorded: why the device's passes could not be recorded; "" when they are, or need not be
    """

    engine: Engine
    settings: Settings
    latency: Latency
    join_rule: JoinRule
    unrecorded: str = ""

    def make_session(self, instruction: str, overlap: Overlap | None = None) -> Session:
        """A run from tick 1 on, with what the engine learned about its speed.

        overlap: of `join_rule`; the publisher tells it what went out. None: each chunk stands alone
        """
        self.engine.counters.restart()
        settings = self.settings
        return Session(
            self.engine,
            settings.recurring,
            settings.budget,
            instruction=instruction,
            answer=settings.tasks.get("answer"),
            answer_template=settings["text.answer.prompt"],
            memory_lag=settings.memory_lag,
            subtask_lag=settings.subtask_lag,
            cancelled_kinds=settings.cancelled_kinds,
            join=overlap,
        )

    def describe(self) -> dict[str, object]:
        """What runs, how fast and in how much memory: the figures of the `model` part of /diagnostics."""
        model, capacity = self.engine.model, self.engine.model.capacity
        spec = model.spec
        values: dict[str, object] = {
            "family": spec.family,
            "device": model.device,
            "mode": self.engine.mode,
            "latency of a chunk, p99 in warm-up [s]": self.latency.chunk,
            "longest decode step [s]": self.latency.decode_step,
            "chunk": f"{spec.horizon} x {spec.step:g} s",
            "join": self.join_rule.describe(spec.step),
            "frame slots": capacity.frames,
            "suffix slots": capacity.suffixes,
            "pools [MiB]": model.pool_bytes() / 2**20,
        }
        if self.unrecorded:
            values["slower than it need be"] = self.unrecorded
        return values


def load(settings: Settings, load_model: LoadModel, should_stop: Callable[[], bool]) -> tuple[Model, float]:
    """The model and the seconds it took. Raises PreparationError, or LoadInterrupted."""
    check_device(settings["device"])
    torch.set_num_threads(settings["torch_threads"])
    # Libraries that models pull in must not write into the robot's log line by line.
    handlers = list(logging.root.handlers)
    started = time.monotonic()
    try:
        model = load_model(
            resolve_folder(settings["model"]),
            device=settings["device"],
            dtype=settings["dtype"],
            denoise_steps=settings["denoise_steps"] or None,
            adapters=[resolve_folder(folder) for folder in settings["adapters"]],
            should_stop=should_stop,
        )
    except LoadInterrupted:
        raise
    except (ValueError, OSError, RuntimeError, MemoryError) as error:
        raise PreparationError(f"model {settings['model']!r}: {error}") from error
    finally:
        logging.root.handlers[:] = handlers
    return model, time.monotonic() - started


def prepare(settings: Settings, model: Model, robot: Robot, should_stop: Callable[[], bool]) -> Prepared:
    """Pools, warm-up and the check of the timing. Raises PreparationError, or LoadInterrupted."""
    torch.set_num_threads(settings["torch_threads"])
    share, batch = MODES[settings["mode"]]
    _check_texts(settings, model)
    try:
        engine = Engine(
            model,
            plan_capacity(
                _estimate_loads(settings, model), settings.budget, share=share, batch=batch,
                draft=settings["draft_tokens"],
            ),
            share=share,
            batch=batch,
            when_full=settings["when_full"],
            draft=settings["draft_tokens"],
            seed=settings["seed"],
        )  # fmt: skip
        observation = make_observation(
            model.spec,
            [camera.name for camera in robot.subscribed],
            [robot.ranges.get(name, (0.0, 0.0)) for name in robot.joints],
            settings["instruction"],
        )
        unrecorded = model.record(model.process(observation))
        latency = warm_up(
            engine, observation, list(settings.tasks.values()), settings.budget, settings["warmup_ticks"],
            should_stop,
            make_previous(model.spec, observation) if settings["join.mode"] == "rtc" else None,
        )  # fmt: skip
    except (ValueError, RuntimeError) as error:
        raise PreparationError(f"warm-up failed: {error}") from error
    spec = model.spec
    try:
        # By `chunk_end` a tick comes when the chunk has run out; the arm waits, as that trigger says.
        period = settings["period"] if settings["trigger"] != "chunk_end" else spec.step
        check_timing(period, latency.total, spec.horizon, spec.step)
    except ChunkError as error:
        raise PreparationError(f"parameter 'period': {error}") from error
    return Prepared(engine, settings, latency, settings.make_join_rule(spec, latency.total), unrecorded)


def resolve_folder(name: str) -> str:
    """A folder's path. "package://<package>/<folder>" is looked for in that package's share folder.

    Raises PreparationError for a package that is not installed.
    """
    if not name.startswith("package://"):
        return name
    package, _, folder = name.removeprefix("package://").partition("/")
    try:
        share = get_package_share_directory(package)
    except (PackageNotFoundError, ValueError) as error:
        raise PreparationError(f"{name}: package {package!r} is not installed ({error})") from error
    return str(Path(share) / folder)


def release_memory() -> None:
    """Give a dropped model's memory back to the machine and the device."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def check_device(name: str) -> None:
    """Raise ParameterProblem unless this torch can compute on the device."""
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ParameterProblem(f"parameter 'device' is {name!r}; no torch device: {error}") from error
    if device.type != "cuda":
        return
    if not torch.cuda.is_available() or (device.index or 0) >= torch.cuda.device_count():
        raise ParameterProblem(
            f"parameter 'device' is {name!r}, but torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} CUDA devices; check the driver and that torch was built with CUDA"
        )
    major, minor = torch.cuda.get_device_capability(device)
    built = torch.cuda.get_arch_list()
    if not any(runs_on(arch, major, minor) for arch in built):
        raise ParameterProblem(
            f"torch {torch.__version__} was built for {', '.join(built)}, but {name} "
            f"({torch.cuda.get_device_name(device)}) is sm_{major}{minor}; install a torch build for it"
        )


def _check_texts(settings: Settings, model: Model) -> None:
    for kind, task in settings.tasks.items():
        if task.adapter and task.adapter not in model.adapters:
            raise PreparationError(
                f"parameter 'text.{kind}.adapter' is {task.adapter!r}; it must be a loaded adapter: "
                f"{', '.join(model.adapters) or 'there are none'}"
            )
        if not model.tokenize(task.prompt):
            raise PreparationError(
                f"parameter 'text.{kind}.prompt' is {task.prompt!r}; it must have at least one token"
            )


def _estimate_loads(settings: Settings, model: Model) -> list[Load]:
    loads = []
    for kind, task in settings.tasks.items():
        prompt: Any = task.prompt
        if kind == "answer":
            # Room for the longest question; a token is hardly ever shorter than a letter.
            words = settings["question_max_chars"]
            tokens = len(model.tokenize(prompt.replace("{question}", ""))) + words
            loads.append(Load(task.max_tokens, tokens, 0, settings["text.answer.at_once"]))
        else:
            tokens = len(model.tokenize(prompt))
            if every := settings[f"text.{kind}.every_n_ticks"]:
                loads.append(Load(task.max_tokens, tokens, every))
            if settings[f"text.{kind}.on_instruction"]:
                loads.append(Load(task.max_tokens, tokens, 0, at_once=1))
    return loads
