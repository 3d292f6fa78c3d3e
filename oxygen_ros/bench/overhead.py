# SPDX-License-Identifier: Apache-2.0
"""The engine's own time in a tick: python -m oxygen_ros.bench.overhead [--requests 30] [--json FILE]

Ticks of a model that returns at once, with so many requests in flight that as many end in every tick as are
asked. CPU seconds of this thread without the model's calls: other programs do not count. Choosing tokens from
logits of the full vocabulary is the engine's work and counts.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.actions import joint_space
from oxygen_ros.bench.timing import CallTimer, spread
from oxygen_ros.engine import Budget, Engine, TextTask
from oxygen_ros.models.interface import Capacity, ExpertSpec, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.models.pi05.config import PRESETS
from oxygen_ros.observation import Observation

PROMPT_TOKENS = 4
MOST_OVERHEAD = 0.001  # s, at the median
FIRST = 20  # ticks left out: until as many texts are in flight as asked for


class InstantModel(Model):
    """Returns at once, with the sizes of a real model and no computation."""

    def __init__(self, vocabulary: int, dtype: torch.dtype) -> None:
        expert = ExpertSpec("actions", joint_space(("joint",)), 50, 32, step=0.1, denoise_steps=10)
        self.spec = ModelSpec(
            family="instant", cameras=("top",), image_size=(2, 2), joints=("joint",), experts=(expert,),
            eos_ids=(0,),
        )  # fmt: skip
        self.device = torch.device("cpu")
        self._vocabulary, self._dtype = vocabulary, dtype
        self._actions = torch.zeros(50, 32)

    def allocate(self, capacity: Capacity) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (capacity.max_rows, self._vocabulary)
        self._logits = torch.randn(shape, generator=generator).to(self._dtype)
        self._logits[:, 0] = -100.0  # texts end at their limit

    def process(self, observation: Observation) -> Observation:
        return observation

    def encode(self, inputs: Any, slot: int) -> Prefix:
        return Prefix(8, 8)

    def denoise(
        self, slot: int, noise: torch.Tensor, guide: Guide | None = None, expert: int = 0
    ) -> torch.Tensor:
        return self._actions

    def extend(self, rows: Rows) -> torch.Tensor:
        return self._logits[: rows.wanted]

    def unprocess(
        self, actions: torch.Tensor, observation: Observation, expert: int = 0
    ) -> NDArray[np.float64]:
        return actions[:, :1].double().numpy()

    def normalize(
        self, actions: NDArray[np.float64], observation: Observation, expert: int = 0
    ) -> torch.Tensor:
        return self._actions

    def tokenize(self, template: str, words: Mapping[str, str] | None = None) -> list[int]:
        return [1] * PROMPT_TOKENS

    def detokenize(self, ids: Sequence[int]) -> str:
        return " ".join(map(str, ids))

    @property
    def adapters(self) -> tuple[str, ...]:
        return ()

    def pool_bytes(self) -> int:
        return 0


def measure(
    model: Model, requests: int, tokens: int, steps: int, draft: int, ticks: int
) -> list[tuple[float, int]]:
    """(seconds outside model calls, texts in flight) of each tick."""
    per_tick = -(-requests * steps // tokens)
    slots = requests + per_tick + 2
    engine = Engine(model, Capacity(slots, slots, PROMPT_TOKENS + tokens + draft, 64), draft=draft)
    timer = CallTimer(model, time.thread_time)
    budget = Budget(steps=steps, rows=64)
    image = np.zeros((2, 2, 3), dtype=np.uint8)
    samples = []
    for number in range(FIRST + ticks):
        observation = Observation(number, {"top": image}, np.zeros(1), "stack the blocks")
        timer.calls.clear()
        started = time.thread_time()
        with engine.observe(observation) as encoded:
            engine.act(encoded)
            for _ in range(per_tick):
                engine.ask(encoded, TextTask(kind="bench", prompt="Now: ", max_tokens=tokens))
            live = engine.live
        engine.advance(budget)
        seconds = time.thread_time() - started - timer.seconds
        samples.append((seconds, live))
    return samples[FIRST:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--requests", type=int, default=30, help="texts in flight")
    parser.add_argument("--tokens", type=int, default=30, help="of each text")
    parser.add_argument("--steps", type=int, default=5, help="decode steps a tick")
    parser.add_argument("--draft", type=int, default=0, help="longest draft; 0: no speculation")
    parser.add_argument("--vocabulary", type=int, default=PRESETS["pi05_mini"].vocabulary)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16", help="of the logits")
    parser.add_argument("--ticks", type=int, default=200)
    parser.add_argument("--json", type=Path, help="write all figures here")
    given = parser.parse_args()
    for name in ("requests", "tokens", "steps", "ticks"):
        if getattr(given, name) < 1:
            parser.error(f"--{name} must be at least 1, got {getattr(given, name)}")
    torch.set_num_threads(1)
    model = InstantModel(given.vocabulary, getattr(torch, given.dtype))
    samples = measure(model, given.requests, given.tokens, given.steps, given.draft, given.ticks)
    outside = spread([seconds for seconds, _ in samples])
    live = sum(live for _, live in samples) / len(samples)
    is_kept = outside["p50"] <= 1e3 * MOST_OVERHEAD
    print(
        f"{live:.0f} texts in flight, {given.steps} steps a tick, {given.vocabulary} words in {given.dtype}, "
        f"drafts of {given.draft}: engine {outside['p50']:.2f} ms a tick at the median, "
        f"p99 {outside['p99']:.2f}, max {outside['max']:.2f} "
        f"(bound {1e3 * MOST_OVERHEAD:g}: {'kept' if is_kept else 'BROKEN'})"
    )
    if given.json:
        figures = {"live": live, "outside_model_ms": outside, "is_kept": is_kept}
        settings = {name: value for name, value in vars(given).items() if name != "json"}
        given.json.write_text(json.dumps({**settings, **figures}, indent=1), encoding="utf-8")
    return 0 if is_kept else 1


if __name__ == "__main__":
    sys.exit(main())
