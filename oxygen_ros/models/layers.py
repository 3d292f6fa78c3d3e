# SPDX-License-Identifier: Apache-2.0
"""Layers that transformer families share: rotary positions, gated MLP, a pre-norm attention block.

Here lives arithmetic on [..., tokens, width]; no cache and no mask. A block is cut in two, `project`
and `merge`, so that every reader puts its own attention in between.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

# (block index, name of the fused linear, its input, its output) -> output with a text adapter added
Adapt = Callable[[int, str, torch.Tensor, torch.Tensor], torch.Tensor]
# Cosines of the tokens' positions, and their sines with the first half's sign turned, from `Rotary.at`
Turn = tuple[torch.Tensor, torch.Tensor]


class Rotary:
    """Rotary positions (Su et al. 2021), first half of a head rotated against the second half."""

    def __init__(self, head_dim: int, base: float, positions: int, device: torch.device, dtype: torch.dtype):
        exponent = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        angle = torch.arange(positions, dtype=torch.float32, device=device)[:, None] / (base**exponent)
        cos, sin = angle.cos(), angle.sin()
        self.cos = torch.cat((cos, cos), dim=-1).to(dtype)
        self.sin = torch.cat((-sin, sin), dim=-1).to(dtype)

    def at(self, positions: torch.Tensor | slice) -> Turn:
        """Cosines and signed sines [tokens, 1, head_dim] of the given positions."""
        return self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)


def rotate(x: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Rotate [..., tokens, heads, head_dim] by `Rotary.at` of the tokens' positions.

    Three passes over the numbers: the halves are not taken apart and put together again.
    """
    cos, sin = turn
    return torch.addcmul(x.roll(x.shape[-1] // 2, dims=-1).mul_(sin), x, cos)


def rms_norm(
    x: torch.Tensor, eps: float, scale: torch.Tensor, shift: torch.Tensor | None = None
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * scale + shift over the last axis.

    torch's own norm is one kernel on GPUs. On CPUs it is seven, which took a seventh of a small model's
    chunk, with a rounding between them: there it is worked out here, in float32 whatever x is.
    """
    width = x.shape[-1]
    if x.is_cuda or x.requires_grad:
        if shift is None:
            return F.rms_norm(x, (width,), scale, eps)
        return torch.addcmul(shift, F.rms_norm(x, (width,), None, eps), scale)
    exact = x.float()
    length = torch.linalg.vector_norm(exact, dim=-1, keepdim=True)
    normed = exact / torch.hypot(length, _shortest(width, eps)).mul_(width**-0.5)
    return (normed.mul_(scale) if shift is None else torch.addcmul(shift, normed, scale)).to(x.dtype)


@cache
def _shortest(width: int, eps: float) -> torch.Tensor:
    return torch.tensor(math.sqrt(width * eps))


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * scale; `scale` is the checkpoint's 1 + weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.eps, self.scale)


class GeluLinear(nn.Linear):
    """A linear layer with the tanh form of the GELU behind it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(super().forward(x), approximate="tanh")


class QkvLinear(nn.Linear):
    """Queries, keys and values of a block in one product."""

    def tail(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """Only the outputs from `first` on."""
        return F.linear(x, self.weight[first:])


class GateUpLinear(nn.Linear):
    """Gate and up of a gated MLP in one product, gate first."""

    def activated(self, x: torch.Tensor) -> torch.Tensor:
        """gelu(gate) * up"""
        return activate(self(x))


def activate(gate_up: torch.Tensor) -> torch.Tensor:
    """gelu(gate) * up of both halves, tanh form of the GELU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up


class AttentionBlock(nn.Module):
    """Projections and gated MLP of one decoder block; q/k/v and gate/up are one weight each.

    Norms are the caller's: the backbone and the action expert differ only there.
    """

    def __init__(self, width: int, heads: int, kv_heads: int, head_dim: int, mlp_dim: int) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.qkv = QkvLinear(width, (heads + 2 * kv_heads) * head_dim, bias=False)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.gate_up = GateUpLinear(width, 2 * mlp_dim, bias=False)
        self.down = nn.Linear(mlp_dim, width, bias=False)

    def split(self, qkv: torch.Tensor, turn: Turn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Fused projection [..., T, *] -> q [..., T, heads, d] and k, rotated, v [..., T, kv_heads, d]."""
        parts = qkv.view(*qkv.shape[:-1], -1, self.head_dim)
        turned = rotate(parts[..., : self.heads + self.kv_heads, :], turn)
        return turned[..., : self.heads, :], turned[..., self.heads :, :], parts[..., -self.kv_heads :, :]

    def keys_values(self, x: torch.Tensor, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        """Only k and v: all that is left of a block whose output nobody reads."""
        both = self.qkv.tail(x, self.heads * self.head_dim)
        k, v = both.view(*both.shape[:-1], -1, self.head_dim).chunk(2, dim=-2)
        return rotate(k, turn), v

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.gate_up.activated(x))
        return out


class DecoderBlock(AttentionBlock):
    """A pre-norm block of the backbone (Gemma): RMS norms with a learned scale."""

    def __init__(
        self, width: int, heads: int, kv_heads: int, head_dim: int, mlp_dim: int, eps: float
    ) -> None:
        super().__init__(width, heads, kv_heads, head_dim, mlp_dim)
        self.attention_norm = RmsNorm(width, eps)
        self.mlp_norm = RmsNorm(width, eps)

    def project(
        self,
        x: torch.Tensor,
        turn: Turn,
        adapt: Adapt | None = None,
        index: int = 0,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Residual stream [..., T, width] -> q, k, v as in `split`."""
        normed = self.attention_norm(x)
        qkv = self.qkv(normed)
        if adapt is not None:
            qkv = adapt(index, "qkv", normed, qkv)
        return self.split(qkv, turn)

    def merge(
        self, x: torch.Tensor, attended: torch.Tensor, adapt: Adapt | None = None, index: int = 0
    ) -> torch.Tensor:
        """Residual stream and attention output [..., T, heads * d] -> next residual stream."""
        if adapt is None:
            x = x + self.out(attended)
            return x + self.mlp(self.mlp_norm(x))
        x = x + adapt(index, "out", attended, self.out(attended))
        normed = self.mlp_norm(x)
        active = activate(adapt(index, "gate_up", normed, self.gate_up(normed)))
        return x + adapt(index, "down", active, self.down(active))
