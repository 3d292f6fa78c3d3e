# SPDX-License-Identifier: Apache-2.0
"""The memory adapter: everything frozen, LoRA (Hu et al. 2021) on text rows alone, in PEFT's format.

Only rows of a text's suffix pass through it, so no prefix and no action changes. It is trained and written
here; `models.lora` reads and serves it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn

from oxygen_ros.demo.training.batch import Dataset
from oxygen_ros.demo.training.checkpoints import Base
from oxygen_ros.demo.training.forward import run
from oxygen_ros.demo.training.learn import make_rotary, text_loss
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.weights import load_network

# PEFT's target -> (our fused linear, which part of its output, PEFT's module)
_TARGETS: Final = {
    "q_proj": ("qkv", 0, "self_attn"),
    "v_proj": ("qkv", 2, "self_attn"),
    "o_proj": ("out", 0, "self_attn"),
    "down_proj": ("down", 0, "mlp"),
}
_WHERE: Final = "base_model.model.paligemma.model.language_model.layers."


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """gain: lora_alpha / rank"""

    rank: int = 4
    gain: float = 2.0
    steps: int = 300
    batch: int = 32
    rate: float = 2e-3
    seed: int = 0


class TextLora(nn.Module):
    """Low-rank terms for the text rows of every block."""

    def __init__(self, network: Network, plan: AdapterPlan) -> None:
        super().__init__()
        b = network.config.backbone
        q, kv = b.heads * b.head_dim, b.kv_heads * b.head_dim
        self._outputs = {"qkv": (q, kv, kv), "out": (b.width,), "down": (b.width,)}
        inputs = {"qkv": b.width, "out": q, "down": b.mlp_dim}
        generator = torch.Generator().manual_seed(plan.seed)
        self.plan = plan
        self.down, self.up = nn.ParameterDict(), nn.ParameterDict()
        for layer in range(b.depth):
            for target, (fused, part, _) in _TARGETS.items():
                wide = inputs[fused]
                start = torch.randn(plan.rank, wide, generator=generator) * wide**-0.5
                self.down[f"{layer}_{target}"] = nn.Parameter(start)
                self.up[f"{layer}_{target}"] = nn.Parameter(
                    torch.zeros(self._outputs[fused][part], plan.rank)
                )

    def adapt(self, layer: int, fused: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """`y` [..., out] of a fused linear with input `x`, with this adapter's terms."""
        parts = list(y.split(self._outputs[fused], dim=-1)) if fused in self._outputs else []
        for target, (of, part, _) in _TARGETS.items():
            if of == fused:
                name = f"{layer}_{target}"
                parts[part] = parts[part] + (x @ self.down[name].T @ self.up[name].T) * self.plan.gain
        return torch.cat(parts, dim=-1) if parts else y

    def save(self, folder: Path) -> None:
        """Write the folder as PEFT's `save_pretrained` does."""
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name in self.down:
            layer, target = name.split("_", 1)
            place = f"{_WHERE}{layer}.{_TARGETS[target][2]}.{target}"
            tensors[f"{place}.lora_A.weight"] = self.down[name].detach().contiguous()
            tensors[f"{place}.lora_B.weight"] = self.up[name].detach().contiguous()
        save_file(tensors, folder / "adapter_model.safetensors")
        (folder / "adapter_model.safetensors").chmod(0o644)
        config = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "",
            "r": self.plan.rank,
            "lora_alpha": self.plan.gain * self.plan.rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "use_dora": False,
            "use_rslora": False,
            "inference_mode": True,
            "target_modules": list(_TARGETS),
        }
        (folder / "adapter_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


def train_adapter(
    base: Base, data: Dataset, folder: Path, plan: AdapterPlan, tell: Callable[[], object] = lambda: None
) -> float:
    """Train on memories over the frozen model of `base.folder`; write `folder`; the last loss."""
    network = load_network(base.folder, base.config, torch.device("cpu"), torch.float32).requires_grad_(False)
    lora = TextLora(network, plan)
    optimizer = torch.optim.AdamW(lora.parameters(), lr=plan.rate, weight_decay=0.0)
    rotary, rng = make_rotary(base), np.random.default_rng(plan.seed)
    last = float("nan")
    for step in range(plan.steps):
        batch = data.draw(plan.batch, 1, rng, kind="memory")
        loss = text_loss(run(network, batch.inputs, rotary, lora.adapt, actions=False), batch)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        for group in optimizer.param_groups:
            group["lr"] = plan.rate * (1 - step / plan.steps)
        optimizer.step()
        last = loss.item()
        tell()
    lora.save(folder)
    return last
