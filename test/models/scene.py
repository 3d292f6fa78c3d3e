# SPDX-License-Identifier: Apache-2.0
"""A demo network for the tests of the models: its folder, its tokenizer, observations, text tasks.

Everything is made from seeds; the tokenizer has one id for every byte, and
special tokens, as real ones have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from oxygen_ros.engine import STANDARD_KINDS, Budget, Engine, FinishedText, TextTask
from oxygen_ros.models import Capacity
from oxygen_ros.models.pi05.config import PRESETS, Pi05Config, StreamConfig, VisionConfig, to_dimensions
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network, random_network
from oxygen_ros.models.pi05.processor import PlainProcessor
from oxygen_ros.models.pi05.weights import load_network, save_network
from oxygen_ros.observation import Observation

# Bytes are 0..255, then the special ids; the state's bins are the last 256 of 768.
PAD, EOS, BOS = 256, 257, 258
BIN_BASE = 512
DELTA = ("joint1", "joint2", "joint3")
LOW = [-1.0, -2.0, -0.5, -3.0, 0.0, -1.5, 0.0]
HIGH = [1.0, 2.0, 1.5, 3.0, 2.0, 1.5, 0.04]


# Sizes of the tests' own: what their networks say must not change with the shipped demo's.
DEMO = replace(
    PRESETS["demo"],
    vision=VisionConfig(width=96, depth=3, mlp_dim=384, heads=4, image_size=80, patch_size=16),
    backbone=StreamConfig(width=128, depth=4, mlp_dim=384, heads=4, head_dim=32),
    expert=StreamConfig(width=96, depth=4, mlp_dim=192, heads=4, head_dim=32),
    pad_id=PAD,
    eos_id=EOS,
    bos_id=BOS,
)


def demo_config(**changes: Any) -> Pi05Config:
    return replace(DEMO, **changes)


def make_network(seed: int = 3, dtype: torch.dtype = torch.float32, **changes: Any) -> Network:
    network = random_network(demo_config(**changes), seed, dtype)
    with torch.no_grad():
        # Biases too: a term that is zero everywhere tests nothing.
        generator = torch.Generator().manual_seed(seed + 1)
        for name, tensor in network.named_parameters():
            if name.endswith("bias"):
                tensor.normal_(0.0, 0.1, generator=generator)
            elif name.endswith(("_norm.weight", "_norm.scale")):
                tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.2)
        # The end token takes the place of one that this network comes to after a while.
        network.embedding[[EOS, 489]] = network.embedding[[489, EOS]]
    return network


def make_tokenizer(special: Sequence[str] = ("<pad>", "<eos>", "<bos>")) -> Tokenizer:
    """One id for every byte, special tokens beside them."""
    tokenizer = Tokenizer(BPE(vocab={c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, merges=[]))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in special])
    return tokenizer


def make_raw(config: Pi05Config) -> dict[str, Any]:
    """The content of config.json."""
    raw = to_dimensions(config)
    raw["state_bin_base"] = config.vocabulary - 256
    raw["actions"] = {"joints": list(config.joints), "delta": list(DELTA)}
    return raw


def make_stats() -> dict[str, Any]:
    return {"state": {"q01": LOW, "q99": HIGH}, "actions": {"q01": LOW, "q99": HIGH}}


def make_processor(config: Pi05Config) -> PlainProcessor:
    return PlainProcessor(config, make_tokenizer(), make_raw(config), make_stats())


def make_model(network: Network, **options: Any) -> Pi05:
    return Pi05(network, make_processor(network.config), **options)


def write_checkpoint(folder: Path, network: Network, dtype: torch.dtype = torch.float32) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(make_raw(network.config)))
    (folder / "norm_stats.json").write_text(json.dumps({"norm_stats": make_stats()}))
    make_tokenizer().save(str(folder / "tokenizer.json"))
    save_network(network, folder / "model.safetensors", dtype)
    return folder


def observe(
    tick: int,
    *,
    cameras: tuple[str, ...] = ("top", "wrist"),
    instruction: str = "put two red blocks in",
    size: int = 80,
    **feedback: str,
) -> Observation:
    """The observation of a tick: other pixels and joints at every one; `feedback` are texts by kind."""
    chance = np.random.default_rng(tick)
    images: dict[str, NDArray[np.uint8]] = {
        name: chance.integers(0, 256, (size, size, 3), dtype=np.uint8) for name in cameras
    }
    joints = np.asarray(LOW) + chance.random(7) * (np.asarray(HIGH) - np.asarray(LOW))
    return Observation(tick * 100_000_000, images, joints, instruction, feedback)


def prefix_tokens(model: Pi05, slot: int) -> int:
    """Tokens of the prefix in a slot, which is also the next position."""
    places = model.pool.prefix_places(slot)
    return places.stop - places.start


# -- text adapters -------------------------------------------------------------------------------

_LAYER = "paligemma_with_expert.paligemma.model.language_model.layers."
ALL_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def weight_name(layer: int, target: str) -> str:
    """A text layer's linear, as openpi names it."""
    part = "self_attn" if target in ALL_TARGETS[:4] else "mlp"
    return f"{_LAYER}{layer}.{part}.{target}"


def write_adapter(
    folder: Path,
    network: Network,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    targets: Sequence[str] = ALL_TARGETS,
    seed: int = 0,
    **entries: Any,
) -> dict[str, torch.Tensor]:
    """Write a LoRA folder as PEFT saves it; returns its tensors. `entries` go into its config."""
    b = network.config.backbone
    q, kv = b.heads * b.head_dim, b.kv_heads * b.head_dim
    shapes = {
        "q_proj": (q, b.width), "k_proj": (kv, b.width), "v_proj": (kv, b.width), "o_proj": (b.width, q),
        "gate_proj": (b.mlp_dim, b.width), "up_proj": (b.mlp_dim, b.width), "down_proj": (b.width, b.mlp_dim),
    }  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for layer in range(b.depth):
        for target in targets:
            rows, columns = shapes[target]
            name = f"base_model.model.{weight_name(layer, target)}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(rank, columns, generator=generator) * columns**-0.5
            tensors[f"{name}.lora_B.weight"] = torch.randn(rows, rank, generator=generator) * 0.3
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": alpha, "target_modules": list(targets), **entries}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "adapter_model.safetensors")
    return tensors


def merge_adapter(folder: Path, network: Network, scratch: Path, gain: float) -> Network:
    """The network with W + gain * B A in place of each adapted W, by way of a checkpoint file."""
    scratch.mkdir()
    save_network(network, scratch / "model.safetensors", torch.float32)
    weights = load_file(scratch / "model.safetensors")
    pairs = load_file(folder / "adapter_model.safetensors")
    for name, a in pairs.items():
        if name.endswith("lora_A.weight"):
            stem = name.removesuffix("lora_A.weight")
            target = stem.removeprefix("base_model.model.") + "weight"
            weights[target] = weights[target] + gain * pairs[f"{stem}lora_B.weight"] @ a
    save_file(weights, scratch / "model.safetensors")
    return load_network(scratch, network.config, torch.device("cpu"), torch.float32)


# -- driving an engine ---------------------------------------------------------------------------


def task(kind: str, **changes: Any) -> TextTask:
    """The task of a standard text kind."""
    return replace(STANDARD_KINDS[kind].task, **changes)


class Outcome:
    """All that came out of a run: chunks by tick, texts by id."""

    def __init__(self) -> None:
        self.chunks: dict[int, NDArray[np.float64]] = {}
        self.texts: dict[int, FinishedText] = {}

    def words(self) -> dict[tuple[int, str], tuple[str, tuple[int, ...], str]]:
        """What was said, whatever the time it took: (stamp, kind) -> text, ids, reason."""
        return {
            (text.stamp, text.kind): (text.text, text.tokens, str(text.finish_reason))
            for text in self.texts.values()
        }


def drive(
    engine: Engine,
    script: Mapping[int, tuple[Observation, Sequence[TextTask]]],
    budget: Budget,
) -> Outcome:
    """Tick through a script of observations and questions, then let the texts end."""
    outcome = Outcome()
    for tick, (observation, tasks) in script.items():
        with engine.observe(observation) as encoded:
            outcome.chunks[tick] = engine.act(encoded)
            for asked in tasks:
                engine.ask(encoded, asked)
            engine.check_integrity()
        outcome.texts |= {text.id: text for text in engine.advance(budget)}
        engine.check_integrity()
    while engine.live:
        outcome.texts |= {text.id: text for text in engine.advance(budget)}
    engine.check_integrity()
    return outcome


ROOMY = Capacity(prefixes=14, suffixes=26, suffix_tokens=64, max_rows=32)
