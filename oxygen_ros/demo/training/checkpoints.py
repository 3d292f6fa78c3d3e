# SPDX-License-Identifier: Apache-2.0
"""A run's state on disk, and checkpoint folders before and after it.

Three things: the base (sizes, tokenizer, normalization: all but weights), the state from which a stopped run
continues (safetensors and JSON), and the export that the ordinary loader reads.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.training.records import Shard
from oxygen_ros.demo.training.untrained import train_tokenizer
from oxygen_ros.models.pi05.config import Pi05Config, from_dimensions, to_dimensions
from oxygen_ros.models.pi05.network import Network, random_network
from oxygen_ros.models.pi05.processor import PlainProcessor
from oxygen_ros.models.pi05.weights import save_network
from oxygen_ros.models.processing import STATE_BINS, Quantiles

_BASE_FILES: Final = ("config.json", "norm_stats.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Base:
    """All of a checkpoint folder but its weights."""

    folder: Path
    raw: dict[str, Any]
    config: Pi05Config
    processor: PlainProcessor
    state: Quantiles
    actions: Quantiles
    is_delta: NDArray[np.bool_]

    @classmethod
    def read(cls, folder: Path) -> Base:
        raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        stats = json.loads((folder / "norm_stats.json").read_text(encoding="utf-8"))["norm_stats"]
        config = from_dimensions(raw)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        names = raw["actions"]["joints"]
        return cls(
            folder,
            raw,
            config,
            PlainProcessor(config, tokenizer, raw, stats),
            Quantiles.read(stats, "state", len(config.joints)),
            Quantiles.read(stats, "actions", len(names)),
            np.array([name in raw["actions"]["delta"] for name in names]),
        )

    def normalize_actions(
        self, targets: NDArray[np.float64], joints: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Joint targets [B, H, D] seen from `joints` [B, D] to the network's units: `unprocess` undone."""
        return self.actions.normalize(targets - np.where(self.is_delta, joints, 0.0)[:, None])


def write_base(folder: Path, config: Pi05Config, shards: list[Shard]) -> Base:
    """Write the base of a run; normalization follows from the shards."""
    folder.mkdir(parents=True, exist_ok=True)
    words = config.vocabulary - STATE_BINS  # the bins are the last ids
    raw = to_dimensions(config)
    raw["description"] = "Trained on the simulated arm's scripted expert."
    raw["special_ids"] = {"pad": words - 3, "bos": words - 2, "eos": words - 1}
    raw["state_bin_base"] = words
    raw["actions"] = {"joints": list(g.JOINTS), "delta": list(g.JOINTS[:6])}
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    stats = json.dumps({"norm_stats": _statistics(shards)}, indent=1)
    (folder / "norm_stats.json").write_text(stats + "\n", encoding="utf-8")
    train_tokenizer(words - 3).save(str(folder / "tokenizer.json"))
    return Base.read(folder)


def _statistics(shards: list[Shard]) -> Mapping[str, Any]:
    """The state by its 0.5 % and 99.5 % quantiles and a margin; deltas by 1.6 standard deviations.

    Flow matching starts from unit noise: deltas of a similar size are learned with the finest grain.
    The noise of a joint that hardly moves must not be scaled up.
    """
    joints = np.concatenate([s.records["joints"] for s in shards]).astype(np.float64)
    targets = np.concatenate([s.records["targets"][:, :8] for s in shards]).astype(np.float64)
    low, high = np.quantile(joints, (0.005, 0.995), axis=0)
    margin = np.maximum(0.06 * (high - low), 0.01)
    low, high = np.maximum(low - margin, g.JOINT_LOWER), np.minimum(high + margin, g.JOINT_UPPER)
    low[3], high[3] = -0.2, 0.2  # the forearm's roll: still, unless something pushes it
    low[6], high[6] = g.CLOSED, g.JOINT_UPPER[6]
    spread = np.maximum(1.6 * (targets - joints[:, None])[..., :6].std(axis=(0, 1)), 0.1)
    return {
        "state": {"q01": low.tolist(), "q99": high.tolist()},
        "actions": {"q01": [*(-spread).tolist(), g.CLOSED], "q99": [*spread.tolist(), g.OPEN]},
    }


def fresh_network(config: Pi05Config, bins_at: int, seed: int) -> Network:
    """A network to start training from.

    Beside `random_network`: neighboring state bins have similar embeddings, residual branches start
    small, and the action stream's norms start unsteered.
    """
    network = random_network(config, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    width = config.backbone.width
    with torch.no_grad():
        network.norm.scale.fill_(1.0)
        place = torch.linspace(0, 1, STATE_BINS)[:, None] * torch.tensor([0.5, 1, 2, 4, 8, 16, 32]) * torch.pi
        waves = torch.cat((place.sin(), place.cos()), dim=1)
        mix = torch.randn(waves.shape[1], width, generator=generator) * (7 * width) ** -0.5
        network.embedding[bins_at : bins_at + STATE_BINS] = waves @ mix
        for name, tensor in network.named_parameters():
            if name.endswith(("out.weight", "down.weight")) and "blocks" in name:
                tensor.mul_((2 * config.backbone.depth) ** -0.5)
            if "steer" in name:
                tensor.zero_()
                if name.endswith("bias") and "final" not in name:
                    tensor[2 * tensor.shape[0] // 3 :] = 1.0  # the gates
        network.expert.action_out.weight.mul_(0.1)
    return network.requires_grad_(True)


def save_state(file: Path, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
    """Write a run's state so that a kill at any moment leaves the old or the new one."""
    part = file.with_suffix(".part")
    save_file({k: v.contiguous() for k, v in tensors.items()}, part, {"facts": json.dumps(facts)})
    os.replace(part, file)


def load_state(file: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """What `save_state` wrote."""
    from safetensors import safe_open

    with safe_open(file, "pt") as reader:
        facts: dict[str, Any] = json.loads(reader.metadata()["facts"])
    return load_file(file), facts


def export(network: Network, base: Base, folder: Path, description: str) -> None:
    """Write a checkpoint folder that the ordinary loader reads; weights in bfloat16."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in _BASE_FILES:
        if (base.folder / name).resolve() != (folder / name).resolve():
            shutil.copyfile(base.folder / name, folder / name)
    raw = dict(base.raw, description=description)
    (folder / "config.json").write_text(json.dumps(raw, indent=1) + "\n", encoding="utf-8")
    save_network(network, folder / "model.safetensors", torch.bfloat16)
