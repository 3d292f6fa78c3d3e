# SPDX-License-Identifier: Apache-2.0
"""The checked settings of a run, and what its comparisons share: weights, scene, meters."""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, field

import torch
from torch import nn

from oxygen_ros.bench.device import EnergyMeter, MemoryMeter, find_energy
from oxygen_ros.bench.families import PRESETS
from oxygen_ros.bench.preset import ROBOTS, ModelPreset, Scene
from oxygen_ros.bench.timing import Clock
from oxygen_ros.bench.workload import ARRIVALS, MAX_ROWS
from oxygen_ros.engine import MODES
from oxygen_ros.models.interface import Model
from oxygen_ros.models.loading import DTYPES, check_device

CLOCKS = {"auto": None, "wall": time.perf_counter, "thread": time.thread_time}
# Settings whose options have other names.
_OPTION = {"draft": "speculate"}


@dataclass(frozen=True, slots=True)
class BenchSetup:
    """The settings of one run; see `oxygen_bench --help`.

    n, k:        token limits and decode steps a tick to measure; every pair is compared
    requests:    texts asked for per tick, on average
    draft:       tokens of a speculated draft; 0: no speculation is measured
    clock:       "wall"; "thread": CPU time of this thread, on a CPU with one torch thread; "auto": thread
                 where it can be, else wall
    """

    preset: str = "demo"
    robot: str = "libero"
    modes: tuple[str, ...] = tuple(MODES)
    dtypes: tuple[str, ...] = ("float32",)
    device: str = "cpu"
    n: tuple[int, ...] = (30,)
    k: tuple[int, ...] = (5,)
    requests: int = 1
    denoise_steps: int | None = None
    horizon: int | None = None
    prompt_tokens: int = 40
    suffix_tokens: int = 2
    arrivals: str = "one"
    burst_every: int = 10
    ticks: int = 20
    draft: int = 0
    seed: int = 0
    clock: str = "auto"

    def __post_init__(self) -> None:
        """Raises ValueError naming the setting, its value and what is allowed; ModelError for the device."""
        for what, given, known in (
            ("preset", (self.preset,), PRESETS),
            ("robot", (self.robot,), ROBOTS),
            ("mode", self.modes, MODES),
            ("dtype", self.dtypes, DTYPES),
            ("arrivals", (self.arrivals,), ARRIVALS),
            ("clock", (self.clock,), CLOCKS),
        ):
            if not given:
                raise ValueError(f"{what}: name one or more of {', '.join(known)}")
            for name in given:
                if name not in known:
                    raise ValueError(f'{what} "{name}" is not one of {", ".join(known)}')
        least = {"n": 1, "k": 0, "requests": 1, "suffix_tokens": 1, "burst_every": 1, "ticks": 1, "draft": 0}
        least |= {"denoise_steps": 1, "horizon": 1, "seed": 0}
        for name, smallest in least.items():
            value = getattr(self, name)
            said = _OPTION.get(name, name.replace("_", "-"))
            if value == ():
                raise ValueError(f"{said}: name one or more whole numbers, {smallest} or more")
            for number in value if isinstance(value, tuple) else (value,):
                if number is not None and number < smallest:
                    raise ValueError(f"{said} must be {smallest} or more, got {number}")
        if self.suffix_tokens > MAX_ROWS:
            raise ValueError(
                f"suffix-tokens must be {MAX_ROWS} or less, the rows of one decode step, got "
                f"{self.suffix_tokens}"
            )
        if not re.fullmatch(r"(cpu|cuda)(:\d+)?", self.device):
            raise ValueError(f'device "{self.device}" is not one of cpu, cuda, cuda:1, ...')
        check_device(self.device)
        if self.clock == "thread" and not self._can_use_thread_clock():
            raise ValueError('clock "thread" needs a CPU with one torch thread; use "wall" or "auto"')

    @property
    def clock_name(self) -> str:
        """The clock's name, "auto" resolved."""
        if self.clock == "auto":
            return "thread" if self._can_use_thread_clock() else "wall"
        return self.clock

    def _can_use_thread_clock(self) -> bool:
        return check_device(self.device).type == "cpu" and torch.get_num_threads() == 1

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Every N with every k that is not larger: beyond N, more steps do nothing."""
        return [(n, k) for n in self.n for k in self.k if k <= n]

    @property
    def left_out(self) -> list[tuple[int, int]]:
        """The pairs of N and k that are not measured."""
        return [(n, k) for n in self.n for k in self.k if k > n]


def use_threads(count: int) -> None:
    """Let torch compute in so many threads; raises ValueError when this process has fewer CPUs."""
    most = len(os.sched_getaffinity(0))
    if not 1 <= count <= most:
        raise ValueError(
            f"threads must be 1 to {most}, the CPUs this process may use, got {count}: more threads than "
            "that wait for each other"
        )
    torch.set_num_threads(count)


@dataclass(slots=True)
class BenchShared:
    """A run's weights by dtype, observations and meters, made once."""

    setup: BenchSetup
    preset: ModelPreset
    device: torch.device
    scene: Scene
    still_scene: Scene
    memory: MemoryMeter
    energy: EnergyMeter
    weights: dict[str, nn.Module] = field(default_factory=dict)

    @property
    def clock(self) -> Clock:
        """For all measurements but ticks in real time."""
        clock = CLOCKS[self.setup.clock_name]
        assert clock is not None
        return clock

    @classmethod
    def make(cls, setup: BenchSetup) -> BenchShared:
        """Draw the weights in their dtype on their device, without a second copy."""
        preset = PRESETS[setup.preset].make(
            setup.preset, ROBOTS[setup.robot], horizon=setup.horizon, denoise_steps=setup.denoise_steps
        )
        device = check_device(setup.device)
        scene, still = (
            Scene(preset, prompt_tokens=setup.prompt_tokens, distinct=distinct, seed=setup.seed)
            for distinct in (8, 1)
        )
        shared = cls(setup, preset, device, scene, still, MemoryMeter(device), find_energy(device))
        for dtype in setup.dtypes:
            shared.weights[dtype] = preset.draw_weights(setup.seed, DTYPES[dtype], device)
        return shared

    def model(self, dtype: str) -> Model:
        """A model with pools of its own over the shared weights."""
        return self.preset.make_model(self.weights[dtype])
