# SPDX-License-Identifier: Apache-2.0
"""The table of tensor names in pi0.5 checkpoints: openpi's layout and lerobot's.

The two differ in a `model.` in front of every name and in where the tied embedding stands.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.weights import Layout, Source, read_weights, write_weights

_BASE = "paligemma_with_expert."
_PALI = _BASE + "paligemma.model."
_EXPERT = _BASE + "gemma_expert.model."
_VISION = _PALI + "vision_tower.vision_model."
_HEAD = _BASE + "paligemma.lm_head.weight"
_TABLE = _PALI + "language_model.embed_tokens.weight"
_UNUSED = (_BASE + "gemma_expert.lm_head.weight", _EXPERT + "embed_tokens.weight")


def sources(config: Pi05Config) -> dict[str, Source]:
    """Our tensor names with their sources, without lerobot's `model.` in front."""
    b, patch = config.backbone, config.vision.patch_size
    qkv_rows = tuple(heads * b.head_dim for heads in (b.heads, b.kv_heads, b.kv_heads))
    table = {
        "embedding": Source((_TABLE,)),
        "norm.scale": Source((_PALI + "language_model.norm.weight",), plus_one=True),
        "vision.patch.weight": Source(
            (_VISION + "embeddings.patch_embedding.weight",), kernel=(3, patch, patch)
        ),
        "vision.patch.bias": Source((_VISION + "embeddings.patch_embedding.bias",)),
        "vision.position": Source((_VISION + "embeddings.position_embedding.weight",)),
    }

    def linear(ours: str, *theirs: str, bias: bool = True, rows: tuple[int, ...] = ()) -> None:
        for kind in ("weight", "bias") if bias else ("weight",):
            table[f"{ours}.{kind}"] = Source(tuple(f"{name}.{kind}" for name in theirs), rows)

    def stream(ours: str, theirs: str) -> None:
        attention, mlp = theirs + "self_attn.", theirs + "mlp."
        linear(f"{ours}.qkv", *(f"{attention}{p}_proj" for p in "qkv"), bias=False, rows=qkv_rows)
        linear(f"{ours}.out", attention + "o_proj", bias=False)
        linear(f"{ours}.gate_up", mlp + "gate_proj", mlp + "up_proj", bias=False)
        linear(f"{ours}.down", mlp + "down_proj", bias=False)

    for i in range(config.vision.depth):
        ours, theirs = f"vision.blocks.{i}", f"{_VISION}encoder.layers.{i}."
        linear(f"{ours}.attention_norm", theirs + "layer_norm1")
        linear(f"{ours}.qkv", *(f"{theirs}self_attn.{p}_proj" for p in "qkv"))
        linear(f"{ours}.out", theirs + "self_attn.out_proj")
        linear(f"{ours}.mlp_norm", theirs + "layer_norm2")
        linear(f"{ours}.up", theirs + "mlp.fc1")
        linear(f"{ours}.down", theirs + "mlp.fc2")
    linear("vision.norm", _VISION + "post_layernorm")
    linear("vision.projector", _PALI + "multi_modal_projector.linear")
    for i in range(b.depth):
        ours, theirs = f"blocks.{i}", f"{_PALI}language_model.layers.{i}."
        stream(ours, theirs)
        for norm, name in (("attention_norm", "input_layernorm"), ("mlp_norm", "post_attention_layernorm")):
            table[f"{ours}.{norm}.scale"] = Source((f"{theirs}{name}.weight",), plus_one=True)
        ours, theirs = f"expert.blocks.{i}", f"{_EXPERT}layers.{i}."
        stream(ours, theirs)
        linear(f"{ours}.attention_steer", theirs + "input_layernorm.dense")
        linear(f"{ours}.mlp_steer", theirs + "post_attention_layernorm.dense")
    linear("expert.final_steer", _EXPERT + "norm.dense")
    for ours, name in (
        ("action_in", "action_in_proj"), ("action_out", "action_out_proj"),
        ("time_in", "time_mlp_in"), ("time_out", "time_mlp_out"),
    ):  # fmt: skip
        linear(f"expert.{ours}", name)
    return table


def _layout(config: Pi05Config) -> Layout:
    # Tied weights. Where a file holds both, prefixes were embedded with the table.
    return Layout("pi0.5", sources(config), "model.", (_TABLE, _HEAD), _UNUSED, ("position_ids",))


def load_network(
    folder: Path,
    config: Pi05Config,
    device: torch.device,
    dtype: torch.dtype,
    should_stop: Callable[[], bool] | None = None,
) -> Network:
    """Read a checkpoint folder's weights into a network; errors as in `read_weights`."""
    with torch.device("meta"):
        network = Network(config)
    read_weights(network, folder, _layout(config), device, dtype, should_stop)
    return network


def save_network(network: Network, file: Path, dtype: torch.dtype) -> None:
    """Write a network in openpi's key layout, so that one loader reads every checkpoint."""
    write_weights(network, file, _layout(network.config), dtype)
