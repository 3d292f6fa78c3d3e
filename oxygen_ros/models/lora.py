# SPDX-License-Identifier: Apache-2.0
"""Text adapters: LoRA weights (Hu et al. 2021) added to the rows that ask for them.

They are read from PEFT's folder format. Only text rows use them: no adapter changes a prefix or an action.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.layers import AttentionBlock

# PEFT's target -> (our fused linear, which part of its output)
_PARTS = {
    "q_proj": ("qkv", 0), "k_proj": ("qkv", 1), "v_proj": ("qkv", 2), "o_proj": ("out", 0),
    "gate_proj": ("gate_up", 0), "up_proj": ("gate_up", 1), "down_proj": ("down", 0),
}  # fmt: skip
_NAME = re.compile(r"language_model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+_proj)\.lora_([AB])\.weight$")


@dataclass(frozen=True, slots=True)
class _Delta:
    """One low-rank term: output[first:last] += (x @ down) @ up."""

    first: int
    last: int
    down: torch.Tensor
    up: torch.Tensor


class TextAdapters:
    """Loaded adapters; adapter id i + 1 is the i-th."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._deltas: list[dict[tuple[int, str], list[_Delta]]] = []
        self._mine: list[torch.Tensor] = []

    def load(
        self,
        folder: Path,
        blocks: torch.nn.ModuleList,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Read one PEFT folder for a stack of equal AttentionBlocks; its name becomes the adapter's.

        Raises ModelError naming the file, the entry or tensor, what was found and what is needed.
        """
        name = folder.resolve().name
        if name in self.names:
            raise ModelError(
                f'text adapter {folder}: an adapter "{name}" is loaded already: rename the folder'
            )
        block, layers = blocks[0], len(blocks)
        assert isinstance(block, AttentionBlock)
        q, kv = block.heads * block.head_dim, block.kv_heads * block.head_dim
        # Of each fused linear: the parts of its output, and its input's width.
        sizes = {"qkv": (q, kv, kv), "out": (block.width,), "down": (block.width,)}
        sizes["gate_up"] = (block.mlp_dim, block.mlp_dim)
        inputs = {"qkv": block.width, "out": q, "gate_up": block.width, "down": block.mlp_dim}
        weight_file = folder / "adapter_model.safetensors"
        rank, gain = _read_config(folder)
        deltas: dict[tuple[int, str], list[_Delta]] = {}
        for (layer, target), pair in _read_pairs(weight_file, layers).items():
            fused, part = _PARTS[target]
            first = sum(sizes[fused][:part])
            last = first + sizes[fused][part]
            want = {"A": (rank, inputs[fused]), "B": (last - first, rank)}
            for side, shape in want.items():
                found = tuple(pair[side].shape) if side in pair else "missing"
                if found != shape:
                    raise ModelError(
                        f"text adapter {weight_file}: layer {layer} {target} lora_{side} is {found}, "
                        f"this model and rank {rank} need {shape}"
                    )
                # Rows of other adapters would add 0 * NaN.
                if not pair[side].isfinite().all():
                    raise ModelError(
                        f"text adapter {weight_file}: layer {layer} {target} lora_{side} holds numbers that "
                        "are not finite: its training diverged, or the file is damaged"
                    )
            down = pair["A"].T.to(device, dtype).contiguous()
            up = (pair["B"].float() * gain).T.to(device, dtype).contiguous()
            deltas.setdefault((layer, fused), []).append(_Delta(first, last, down, up))
        self.names.append(name)
        self._deltas.append(deltas)

    def select(self, adapter: torch.Tensor) -> None:
        """Take the adapter ids [R] of a step's rows; `adapt` then works on these rows."""
        self._mine = [(adapter == i + 1).unsqueeze(1) for i in range(len(self.names))]

    def adapt(self, layer: int, fused: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """Add each row's own adapter to the output `y` [R, out] of a fused linear with input `x`.

        Shapes do not depend on the rows' adapters: a row of another one adds exact zeros.
        """
        for mine, deltas in zip(self._mine, self._deltas, strict=True):
            for delta in deltas.get((layer, fused), ()):
                y[:, delta.first : delta.last] += ((x @ delta.down) * mine) @ delta.up
        return y


def _read_config(folder: Path) -> tuple[int, float]:
    """Rank and gain (alpha / rank, or alpha / sqrt(rank): Kalajdzievski 2023) of a PEFT folder."""
    file = folder / "adapter_config.json"
    for needed in (file, folder / "adapter_model.safetensors"):
        if not needed.is_file():
            raise ModelError(
                f"text adapter {folder}: {needed.name} is missing (PEFT's save_pretrained writes it)"
            )
    try:
        config: Any = json.loads(file.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"text adapter {file} is not JSON: {error}") from None
    if not isinstance(config, dict) or config.get("peft_type") != "LORA" or config.get("use_dora"):
        raise ModelError(f'text adapter {folder}: peft_type must be "LORA" without DoRA')
    for entry in ("rank_pattern", "alpha_pattern"):
        if config.get(entry):
            raise ModelError(f"text adapter {file}: {entry} is not read: all layers take one rank and alpha")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or rank < 1:
        raise ModelError(f'text adapter {file}: "r" must be a whole number of 1 or more, got {rank!r}')
    if not isinstance(alpha, int | float):
        raise ModelError(f'text adapter {file}: "lora_alpha" must be a number, got {alpha!r}')
    return rank, float(alpha) / (rank**0.5 if config.get("use_rslora") else rank)


def _read_pairs(file: Path, layers: int) -> dict[tuple[int, str], dict[str, torch.Tensor]]:
    """Tensors of an adapter file: (layer, target) -> {"A": ..., "B": ...}."""
    try:
        tensors = load_file(file)
    except (SafetensorError, OSError) as error:
        raise ModelError(f"text adapter {file} cannot be read as safetensors: {error}") from None
    if not tensors:
        raise ModelError(f"text adapter {file} holds no tensor")
    pairs: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.search(name)
        if match is None or match[2] not in _PARTS or int(match[1]) >= layers:
            raise ModelError(
                f"text adapter {file}: {name} is no q/k/v/o/gate/up/down of one of the {layers} text layers"
            )
        pairs.setdefault((int(match[1]), match[2]), {})[match[3]] = tensor
    return pairs
