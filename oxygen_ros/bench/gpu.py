# SPDX-License-Identifier: Apache-2.0
"""The device's arithmetic against the CPU's: prefill, denoise, extend, and attention over the masked pool.

Here live the comparisons of scripts/gpu_check; they are over small random networks, one of them with the
head dimension of the full-size one. In float32 the differences must be those of rounding; in bfloat16 they
may be a few times what the CPU's own bfloat16 differs by.
"""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from oxygen_ros.bench.cell import Cell
from oxygen_ros.bench.results import check_outputs
from oxygen_ros.bench.robots import ROBOTS, Scene, make_config, make_processor
from oxygen_ros.bench.setup import Setup, Shared
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.models.graphs import Again
from oxygen_ros.models.interface import Capacity, Rows
from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network, random_network

# Largest difference in float32, as a share of the largest value compared.
ROUNDING = 2e-4
# In bfloat16: so many times the CPU's own difference from float32.
TIMES_BFLOAT16 = 4
FULL_HEAD_DIM = 256
_ROBOT = ROBOTS["libero"]
_CAPACITY = Capacity(frames=4, suffixes=6, suffix_tokens=12, max_rows=16)
# (frame, suffix slot, rows) of each step of `extend`: prompts of several rows, then single rows, frames mixed
_STEPS = (
    ((0, 0, 3), (0, 1, 2), (1, 2, 4)),
    ((0, 0, 1), (0, 1, 1), (1, 2, 1), (2, 3, 2)),
    ((0, 1, 1), (2, 3, 1), (2, 4, 3), (3, 5, 1)),
    ((0, 0, 1), (0, 1, 1), (1, 2, 1), (2, 3, 1), (2, 4, 1), (3, 5, 1)),
)
_WAYS = {
    "recorded, over the masked pool": {"over_pool": True, "recorded": True},
    "over the masked pool": {"over_pool": True},
    "frame by frame": {"over_pool": False},
}


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: `difference` must not exceed `allowed`; both are shares of the largest value."""

    name: str
    dtype: str
    difference: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.difference <= self.allowed  # False for what is not finite

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "ok": self.ok}


@dataclass(frozen=True, slots=True)
class Outputs:
    """What one network gives on one device, in float32 on the CPU."""

    prefill: torch.Tensor
    denoise: torch.Tensor
    extend: torch.Tensor


def full_head_config() -> Pi05Config:
    """A small network whose heads have the full-size dimension."""
    small = make_config("demo", _ROBOT)
    stream = {"heads": 4, "head_dim": FULL_HEAD_DIM}
    return replace(small, backbone=replace(small.backbone, **stream), expert=replace(small.expert, **stream))


def compute(
    network: Network, device: torch.device, dtype: torch.dtype, *, over_pool: bool, recorded: bool = False
) -> Outputs:
    """Run every kind of call of a copy of `network` on a device; the same inputs every time.

    over_pool: see KvPool; recorded: with device programs, on a CPU with their code run again instead

    Raises RuntimeError where they cannot be recorded.
    """
    own = copy.deepcopy(network).to(device, dtype)
    recorder = Again() if recorded and device.type == "cpu" else None
    model = Pi05(own, make_processor(network.config, _ROBOT), over_pool=over_pool, recorder=recorder)
    model.allocate(_CAPACITY)
    scene = Scene(network.config, _ROBOT, prompt_tokens=40, distinct=_CAPACITY.frames, seed=1)
    if recorded and (problem := model.record(model.process(scene.at(0)))):
        raise RuntimeError(problem)
    for slot in range(_CAPACITY.frames):
        tokens = model.encode(model.process(scene.at(slot)), slot).tokens
    spec = model.spec
    noise = torch.from_numpy(draw_noise(0, 1, (spec.horizon, spec.action_dim))).to(device)
    chunks = torch.stack([model.denoise(slot, noise) for slot in range(_CAPACITY.frames)])
    logits = _extend(model, tokens)
    hidden = model.encode_hidden(model.process(scene.at(0)), 0)
    return Outputs(*(tensor.float().cpu() for tensor in (hidden, chunks, logits)))


def _extend(model: Pi05, prefix_tokens: int) -> torch.Tensor:
    """Logits of all rows of all steps; tokens come from a fixed sequence, not from the logits."""
    rows = Rows(_CAPACITY.max_rows, model.device)
    chance = torch.Generator().manual_seed(3)
    cached = [0] * _CAPACITY.suffixes
    found = []
    for step in _STEPS:
        columns: list[tuple[int, ...]] = []
        spans: list[tuple[int, int, int]] = []
        for frame, suffix, count in step:
            first = len(columns)
            for _ in range(count):
                token = int(torch.randint(3, model.spec.vocabulary, (1,), generator=chance))
                place = cached[suffix]
                columns.append((token, prefix_tokens + place, frame, suffix, place, 0, len(columns)))
                cached[suffix] += 1
            if spans and spans[-1][0] == frame:
                spans[-1] = (frame, spans[-1][1], len(columns))
            else:
                spans.append((frame, first, len(columns)))
        rows.block[:, : len(columns)] = torch.tensor(columns, dtype=torch.int64).T.to(model.device)
        rows.count = rows.wanted = len(columns)
        rows.longest = max(column[4] for column in columns) + 1
        rows.frame_spans = spans
        found.append(model.extend(rows).clone())
    return torch.cat(found)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference as a share of the largest value of `other`; infinite where `one` is not finite."""
    if not one.isfinite().all():
        return math.inf
    return float((one - other).abs().max() / other.abs().max())


def compare(device: torch.device) -> list[Check]:
    """All comparisons of small networks between `device` and the CPU.

    A way that raises is a check that failed, infinitely far off: the others are still made.
    """
    cpu = torch.device("cpu")
    checks = []
    for name, config in (
        ("demo sizes", make_config("demo", _ROBOT)),
        (f"head dimension {FULL_HEAD_DIM}", full_head_config()),
    ):
        network = random_network(config, seed=2)
        exact = compute(network, cpu, torch.float32, over_pool=False)
        rough = compute(network, cpu, torch.bfloat16, over_pool=False)
        for dtype in (torch.float32, torch.bfloat16):
            for way, options in _WAYS.items():
                try:
                    found = compute(network, device, dtype, **options)
                except RuntimeError as error:
                    traceback.print_exc()
                    words = f"{way}, {name}: {(str(error).strip() or repr(error)).splitlines()[0]}"
                    checks.append(Check(words, str(dtype).removeprefix("torch."), math.inf, 0.0))
                    continue
                for part in ("prefill", "denoise", "extend"):
                    wanted = getattr(exact, part)
                    allowed = ROUNDING
                    if dtype is torch.bfloat16:
                        allowed = TIMES_BFLOAT16 * difference(getattr(rough, part), wanted)
                    off = difference(getattr(found, part), wanted)
                    words = f"{part} {way}, {name}"
                    checks.append(Check(words, str(dtype).removeprefix("torch."), off, allowed))
    return checks


def compare_modes(device: str, robot: Sequence[str] = ("libero", "aloha")) -> list[dict[str, Any]]:
    """The four modes of the engine on the device, float32, greedy: identical tokens, equal actions."""
    found = []
    for name in robot:
        setup = Setup(preset="demo", robot=name, device=device, n=(12,), k=(3,), ticks=4)
        cell = Cell(Shared.make(setup), 12, 3)
        cell.run(lambda words: None)
        found += check_outputs(cell)
    return found
