# SPDX-License-Identifier: Apache-2.0
"""Checkpoints in openpi's and in lerobot's key layout, read into our fused weights.

Here lives the table of names and its checks. The two layouts differ in a `model.` in front of every
name and in where the tied embedding stands. safetensors only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from oxygen_ros.models.errors import LoadInterrupted, ModelError
from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.pi05.network import Network

_BASE = "paligemma_with_expert."
_PALI = _BASE + "paligemma.model."
_EXPERT = _BASE + "gemma_expert.model."
_VISION = _PALI + "vision_tower.vision_model."
_HEAD = _BASE + "paligemma.lm_head.weight"
_TABLE = _PALI + "language_model.embed_tokens.weight"
# In real checkpoints, read by nothing.
_UNUSED = (_BASE + "gemma_expert.lm_head.weight", _EXPERT + "embed_tokens.weight")


@dataclass(frozen=True, slots=True)
class Source:
    """Where one of our tensors comes from: checkpoint tensors, put one under the other.

    plus_one:  a norm weight, stored as an offset from one
    flat:      a convolution kernel that we use as a matrix
    """

    names: tuple[str, ...]
    plus_one: bool = False
    flat: bool = False


def sources(config: Pi05Config) -> dict[str, Source]:
    """Our tensor names with their sources, without lerobot's `model.` in front."""
    table = {
        "embedding": Source((_TABLE,)),
        "norm.scale": Source((_PALI + "language_model.norm.weight",), plus_one=True),
        "vision.patch.weight": Source((_VISION + "embeddings.patch_embedding.weight",), flat=True),
        "vision.patch.bias": Source((_VISION + "embeddings.patch_embedding.bias",)),
        "vision.position": Source((_VISION + "embeddings.position_embedding.weight",)),
    }

    def linear(ours: str, *theirs: str, bias: bool = True) -> None:
        for kind in ("weight", "bias") if bias else ("weight",):
            table[f"{ours}.{kind}"] = Source(tuple(f"{name}.{kind}" for name in theirs))

    def stream(ours: str, theirs: str) -> None:
        attention, mlp = theirs + "self_attn.", theirs + "mlp."
        linear(f"{ours}.qkv", *(f"{attention}{p}_proj" for p in "qkv"), bias=False)
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
    for i in range(config.backbone.depth):
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


class _Files:
    """The tensors of a folder's safetensors files, by openpi's names."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self._at: dict[str, tuple[Any, str]] = {}
        stands_in: dict[str, Path] = {}
        files = sorted(folder.glob("model*.safetensors"))
        if not files:
            raise ModelError(
                f"{folder}: no model.safetensors (other formats are not read: convert them first)"
            )
        for file in files:
            try:
                reader = stack.enter_context(safe_open(file, "pt"))
            except (SafetensorError, OSError) as error:
                raise ModelError(
                    f"{file} cannot be read as safetensors: {error}; copy or download it again"
                ) from None
            for key in reader.keys():  # noqa: SIM118 - a reader is no mapping
                name = key.removeprefix("model.")
                if name in stands_in:
                    raise ModelError(
                        f"{folder}: tensor {name} stands in {stands_in[name].name} and again in {file.name}: "
                        "keep the files of one checkpoint"
                    )
                stands_in[name] = file
                self._at[name] = (reader, key)
        # Tied weights. Where a file holds both, prefixes were embedded with the table.
        if _TABLE not in self._at and _HEAD in self._at:
            self._at[_TABLE] = self._at[_HEAD]

    def names(self) -> Iterable[str]:
        return self._at

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self._at:
            raise ModelError(
                f"{self.folder}: tensor {name} is missing: not a pi0.5 checkpoint, or of other depth"
            )
        reader, key = self._at[name]
        return tuple(reader.get_slice(key).get_shape())

    def read(self, name: str) -> torch.Tensor:
        reader, key = self._at[name]
        tensor: torch.Tensor = reader.get_tensor(key)
        return tensor


def load_network(
    folder: Path,
    config: Pi05Config,
    device: torch.device,
    dtype: torch.dtype,
    should_stop: Callable[[], bool] | None = None,
) -> Network:
    """Read a checkpoint folder's weights, one tensor at a time, straight into `dtype` on `device`.

    Raises ModelError naming the tensor that is missing, unknown or of another shape; LoadInterrupted
    when should_stop() turns true.
    """
    with torch.device("meta"):
        network = Network(config)
    table = sources(config)
    state: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        files = _Files(folder, stack)
        known = {name for source in table.values() for name in source.names} | {*_UNUSED, _HEAD}
        unknown = [n for n in files.names() if n not in known and not n.endswith("position_ids")]
        if unknown:
            raise ModelError(
                f"{folder}: tensor {unknown[0]} is no part of this pi0.5 network ({len(unknown)} such)"
            )
        for ours, parameter in network.state_dict().items():
            if should_stop is not None and should_stop():
                raise LoadInterrupted(f"loading {folder} was stopped")
            shapes = _part_shapes(config, ours, table[ours], tuple(parameter.shape))
            state[ours] = _read(files, table[ours], shapes, device, dtype)
    network.load_state_dict(state, assign=True)
    return network.requires_grad_(False)


def _part_shapes(
    config: Pi05Config, ours: str, source: Source, shape: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """The shape each source of our tensor `ours` has in a checkpoint."""
    b, count = config.backbone, len(source.names)
    if source.flat:
        return [(shape[0], 3, config.vision.patch_size, config.vision.patch_size)]
    if count == 3 and not ours.startswith("vision"):
        rows = [heads * b.head_dim for heads in (b.heads, b.kv_heads, b.kv_heads)]
    else:
        rows = [shape[0] // count] * count
    return [(n, *shape[1:]) for n in rows]


def _read(
    files: _Files, source: Source, shapes: list[tuple[int, ...]], device: torch.device, dtype: torch.dtype
) -> torch.Tensor:
    for name, shape in zip(source.names, shapes, strict=True):
        if files.shape(name) != shape:
            raise ModelError(
                f"{files.folder}: {name} has shape {list(files.shape(name))}, config.json needs {list(shape)}"
            )
    parts = []
    for name in source.names:
        part = files.read(name)
        if not part.is_floating_point():
            raise ModelError(f"{files.folder}: {name} is {part.dtype}: quantised checkpoints are not read")
        part = part.flatten(1) if source.flat else part
        # One is added in float32: in bfloat16 a small offset would vanish beside it.
        part = part.float() + 1 if source.plus_one else part
        part = part.to(device, dtype)
        # The sum of finite weights is finite: one pass, no second tensor.
        if not part.sum(dtype=torch.float32).isfinite():
            raise ModelError(
                f"{files.folder}: {name} holds numbers that are not finite; copy or download it again"
            )
        parts.append(part)
    return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)


def save_network(network: Network, file: Path, dtype: torch.dtype) -> None:
    """Write a network in openpi's key layout, so that one loader reads every checkpoint."""
    save_file(dict(_unfuse(network, dtype)), file)
    file.chmod(0o644)  # the library writes for the owner alone; a checkpoint is shared


def _unfuse(network: Network, dtype: torch.dtype) -> Iterator[tuple[str, torch.Tensor]]:
    state = network.state_dict()
    for ours, source in sources(network.config).items():
        shapes = _part_shapes(network.config, ours, source, tuple(state[ours].shape))
        parts = state[ours].split([shape[0] for shape in shapes])
        for name, shape, part in zip(source.names, shapes, parts, strict=True):
            part = part.float() - 1 if source.plus_one else part
            yield name, part.reshape(shape).to(dtype).contiguous()
