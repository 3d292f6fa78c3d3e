# SPDX-License-Identifier: Apache-2.0
"""The device's arithmetic against the CPU's: prefill, denoise, extend, and attention over the masked pool.

The comparisons of scripts/gpu_check, over small random networks, one of them with the head dimension of the
full-size one. In float32 the differences must be those of rounding; in bfloat16 they may be a few times
those of the CPU's own bfloat16.
"""

from __future__ import annotations

import copy
import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import torch

from oxygen_ros.bench.comparison import Comparison
from oxygen_ros.bench.components import fill_rows
from oxygen_ros.bench.pi05.preset import Pi05Preset
from oxygen_ros.bench.preset import ROBOTS, Scene
from oxygen_ros.bench.results import check_outputs
from oxygen_ros.bench.setup import BenchSetup, BenchShared
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.models.graphs import Eager
from oxygen_ros.models.interface import Capacity, Rows
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network, random_network

# Largest difference in float32, as a share of the largest value compared.
ROUNDING = 2e-4
# In bfloat16: so many times the CPU's own difference from float32.
TIMES_BFLOAT16 = 4
FULL_HEAD_DIM = 256
_CAPACITY = Capacity(prefixes=4, suffixes=6, suffix_tokens=12, max_rows=16)
# (prefix slot, suffix slot, rows) of each step of `extend`: prompts of several rows, then single rows, mixed
_STEPS = (
    ((0, 0, 3), (0, 1, 2), (1, 2, 4)),
    ((0, 0, 1), (0, 1, 1), (1, 2, 1), (2, 3, 2)),
    ((0, 1, 1), (2, 3, 1), (2, 4, 3), (3, 5, 1)),
    ((0, 0, 1), (0, 1, 1), (1, 2, 1), (2, 3, 1), (2, 4, 1), (3, 5, 1)),
)
_WAYS = {
    "captured, over the masked pool": {"over_pool": True, "captured": True},
    "over the masked pool": {"over_pool": True},
    "prefix by prefix": {"over_pool": False},
}


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """One comparison: `difference` must not exceed `allowed`; both are shares of the largest value."""

    name: str
    dtype: str
    difference: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.difference <= self.allowed  # False for what is not finite


@dataclass(frozen=True, slots=True)
class CallOutputs:
    """One network's outputs on one device, in float32 on the CPU."""

    prefill: torch.Tensor
    denoise: torch.Tensor
    extend: torch.Tensor


def small_preset(head_dim: int | None = None) -> Pi05Preset:
    """The demo's sizes; with a head dimension, four heads of that size in both streams."""
    preset = Pi05Preset.make("demo", ROBOTS["libero"])
    if head_dim is None:
        return preset
    backbone, expert = (
        replace(stream, heads=4, head_dim=head_dim)
        for stream in (preset.config.backbone, preset.config.expert)
    )
    return Pi05Preset(replace(preset.config, backbone=backbone, expert=expert), preset.robot)


def compute(
    preset: Pi05Preset, network: Network, device: torch.device, dtype: torch.dtype, *,
    over_pool: bool, captured: bool = False,
) -> CallOutputs:  # fmt: skip
    """Run every kind of call of a copy of `network` on a device; the same inputs every time.

    over_pool: see KvPool; captured: with device programs, on a CPU by running their code again

    Raises RuntimeError where they cannot be captured.
    """
    own = copy.deepcopy(network).to(device, dtype)
    capturer = Eager() if captured and device.type == "cpu" else None
    model = Pi05(own, preset.make_processor(), over_pool=over_pool, capturer=capturer)
    model.allocate(_CAPACITY)
    scene = Scene(preset, prompt_tokens=40, distinct=_CAPACITY.prefixes, seed=1)
    if captured and (problem := model.prepare(model.process(scene.at(0)))):
        raise RuntimeError(problem)
    for slot in range(_CAPACITY.prefixes):
        tokens = model.encode(model.process(scene.at(slot)), slot).tokens
    expert = model.spec.experts[0]
    noise = torch.from_numpy(draw_noise(0, 1, (expert.horizon, expert.width))).to(device)
    chunks = torch.stack([model.denoise(slot, noise) for slot in range(_CAPACITY.prefixes)])
    logits = _extend(model, tokens)
    hidden = model.encode_hidden(model.process(scene.at(0)), 0)
    return CallOutputs(*(tensor.float().cpu() for tensor in (hidden, chunks, logits)))


def _extend(model: Pi05, prefix_tokens: int) -> torch.Tensor:
    """Logits of all rows of all steps; tokens come from a fixed sequence, not from the logits."""
    rows = Rows(_CAPACITY.max_rows, model.device)
    chance = torch.Generator().manual_seed(3)
    cached = [0] * _CAPACITY.suffixes
    found = []
    for step in _STEPS:
        columns = []
        for prefix, suffix, count in step:
            for _ in range(count):
                token = int(torch.randint(3, model.config.vocabulary, (1,), generator=chance))
                place = cached[suffix]
                columns.append((token, prefix_tokens + place, prefix, suffix, place))
                cached[suffix] += 1
        fill_rows(rows, columns)
        found.append(model.extend(rows).clone())
    return torch.cat(found)


def difference(one: torch.Tensor, other: torch.Tensor) -> float:
    """Largest difference as a share of the largest value of `other`; infinite where `one` is not finite."""
    if not one.isfinite().all():
        return math.inf
    return float((one - other).abs().max() / other.abs().max())


def compare(device: torch.device) -> list[DeviceCheck]:
    """All comparisons of small networks between `device` and the CPU.

    An error counts as a failed check with an infinite difference; the others are still made.
    """
    cpu = torch.device("cpu")
    checks = []
    for name, preset in (
        ("demo sizes", small_preset()),
        (f"head dimension {FULL_HEAD_DIM}", small_preset(FULL_HEAD_DIM)),
    ):
        network = random_network(preset.config, seed=2)
        exact = compute(preset, network, cpu, torch.float32, over_pool=False)
        rough = compute(preset, network, cpu, torch.bfloat16, over_pool=False)
        for dtype, (way, options) in product((torch.float32, torch.bfloat16), _WAYS.items()):
            kind = str(dtype).removeprefix("torch.")
            try:
                found = compute(preset, network, device, dtype, **options)
            except RuntimeError as error:
                traceback.print_exc()
                words = f"{way}, {name}: {(str(error).strip() or repr(error)).splitlines()[0]}"
                checks.append(DeviceCheck(words, kind, math.inf, 0.0))
                continue
            for part in ("prefill", "denoise", "extend"):
                wanted = getattr(exact, part)
                allowed = ROUNDING
                if dtype is torch.bfloat16:
                    allowed = TIMES_BFLOAT16 * difference(getattr(rough, part), wanted)
                off = difference(getattr(found, part), wanted)
                checks.append(DeviceCheck(f"{part} {way}, {name}", kind, off, allowed))
    return checks


def compare_modes(device: str, robot: Sequence[str] = ("libero", "aloha")) -> list[dict[str, Any]]:
    """The four modes of the engine on the device, float32, greedy: identical tokens, equal actions."""
    found = []
    for name in robot:
        setup = BenchSetup(preset="demo", robot=name, device=device, n=(12,), k=(3,), ticks=4)
        comparison = Comparison(BenchShared.make(setup), 12, 3)
        comparison.measure(lambda words: None)
        found += check_outputs(comparison)
    return found
