# SPDX-License-Identifier: Apache-2.0
"""The action expert: a narrow Gemma stream whose norms are steered by the denoise time (adaRMS).

Here live its weights and the table of modulations; the denoise loop is `flow`. The S times of a
run are fixed, so scale, shift and gate of every norm are worked out once, at load.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.layers import AttentionBlock, rms_norm
from oxygen_ros.models.pi05.config import Pi05Config


def denoise_times(steps: int, rule: str) -> list[float]:
    """Times of the Euler steps, 1, 1 - 1/S, ..., 1/S, rounded to float32 as `rule` says.

    "accumulated" sums in float32, "exact" rounds each time once; see Pi05Config.time_rule.
    """
    if steps < 1:
        raise ModelError(f"denoise_steps must be at least 1, got {steps}")
    if rule == "exact":
        return torch.tensor([1.0 - k / steps for k in range(steps)], dtype=torch.float64).float().tolist()
    times = [torch.tensor(1.0)]
    for _ in range(steps - 1):
        times.append(times[-1] + torch.tensor(-1.0 / steps))
    return [time.item() for time in times]


def embed_time(times: torch.Tensor, width: int, shortest: float, longest: float) -> torch.Tensor:
    """Sine-cosine code [S, width] of times [S]; periods spaced geometrically, both ends included."""
    fraction = torch.linspace(0.0, 1.0, width // 2, dtype=torch.float64, device=times.device)
    period = shortest * (longest / shortest) ** fraction
    angle = times.double()[:, None] * (2 * math.pi / period)
    return torch.cat((angle.sin(), angle.cos()), dim=-1).float()


class ExpertBlock(AttentionBlock):
    """One block of the action stream; its norms have no weight of their own."""

    def __init__(self, config: Pi05Config) -> None:
        e = config.expert
        super().__init__(e.width, e.heads, e.kv_heads, e.head_dim, e.mlp_dim)
        self.attention_steer = nn.Linear(e.width, 3 * e.width)
        self.mlp_steer = nn.Linear(e.width, 3 * e.width)


@dataclass(frozen=True, slots=True)
class Modulation:
    """Scale (1 + scale), shift and gate of one norm, each [width] for each of the S steps."""

    scale: tuple[torch.Tensor, ...]
    shift: tuple[torch.Tensor, ...]
    gate: tuple[torch.Tensor, ...]

    @classmethod
    def of(cls, steer: nn.Linear, condition: torch.Tensor) -> Modulation:
        scale, shift, gate = (part.contiguous() for part in steer(condition).chunk(3, dim=-1))
        return cls((1 + scale).unbind(), shift.unbind(), gate.unbind())

    def norm(self, x: torch.Tensor, step: int, eps: float) -> torch.Tensor:
        return rms_norm(x, eps, self.scale[step], self.shift[step])


@dataclass(frozen=True, slots=True)
class ModulationTable:
    """All modulations of a run: two for each block, one for the final norm."""

    attention: list[Modulation]
    mlp: list[Modulation]
    final: Modulation


class ActionExpert(nn.Module):
    """Weights of the action stream, from noisy actions to velocity."""

    def __init__(self, config: Pi05Config) -> None:
        super().__init__()
        width = config.expert.width
        self.config = config
        self.action_in = nn.Linear(config.action_dim, width)
        self.action_out = nn.Linear(width, config.action_dim)
        self.time_in = nn.Linear(width, width)
        self.time_out = nn.Linear(width, width)
        self.blocks = nn.ModuleList(ExpertBlock(config) for _ in range(config.expert.depth))
        self.final_steer = nn.Linear(width, 3 * width)

    def condition(self, times: torch.Tensor) -> torch.Tensor:
        """Condition vectors [S, width] of denoise times [S]."""
        c = self.config
        code = embed_time(times, c.expert.width, c.min_period, c.max_period).to(self.time_in.weight.dtype)
        return F.silu(self.time_out(F.silu(self.time_in(code))))

    def modulate(self, times: torch.Tensor) -> ModulationTable:
        """Work the modulations of denoise times [S] out, once for all chunks."""
        condition = self.condition(times)
        blocks = [block for block in self.blocks if isinstance(block, ExpertBlock)]
        return ModulationTable(
            attention=[Modulation.of(block.attention_steer, condition) for block in blocks],
            mlp=[Modulation.of(block.mlp_steer, condition) for block in blocks],
            final=Modulation.of(self.final_steer, condition),
        )
