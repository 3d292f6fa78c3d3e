# SPDX-License-Identifier: Apache-2.0
"""Layers that transformer families share: rotary positions, norms, gated MLP, a pre-norm attention block.

Arithmetic on [..., tokens, width] without cache or mask. A block has two halves, `project` and `merge`: each
reader puts its own attention between them. The options are those of the families in `interface`; the defaults
are Gemma's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import nn

# (block index, name of the fused linear, its input, its output) -> output with a text adapter added
Adapt = Callable[[int, str, torch.Tensor, torch.Tensor], torch.Tensor]
# Cosines of the tokens' positions, and their sines with the first half's sign turned, from `Rotary.at`
Turn = tuple[torch.Tensor, torch.Tensor]


class Rotary:
    """Rotary positions (Su et al. 2021), first half of the rotated numbers against the second half."""

    def __init__(
        self,
        dim: int,
        base: float,
        positions: int,
        device: torch.device,
        dtype: torch.dtype,
        sections: Sequence[int] = (),
    ) -> None:
        """dim:   rotated numbers of a head: all of them, or the first ones (partial rotary)
        sections:  of the frequencies (t, h, w), for positions on three axes (interleaved mRoPE, Qwen3-VL):
                   frequency k belongs to axis h if k % 3 == 1 and k < 3 * sections[1], to w if k % 3 == 2
                   and k < 3 * sections[2], else to t
        """
        exponent = torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim
        angle = torch.arange(positions, dtype=torch.float32, device=device)[:, None] / (base**exponent)
        cos, sin = angle.cos(), angle.sin()
        self.cos = torch.cat((cos, cos), dim=-1).to(dtype)
        self.sin = torch.cat((-sin, sin), dim=-1).to(dtype)
        self._axis: torch.Tensor | None = None
        if sections:
            of = [k % 3 if k < 3 * sections[k % 3] else 0 for k in range(dim // 2)]
            self._axis = torch.tensor(of * 2, device=device)

    def at(self, positions: torch.Tensor | slice) -> Turn:
        """Cosines and signed sines [tokens, 1, dim] of positions: a slice or [tokens]; with sections also
        [3, tokens], one row for each axis."""
        if self._axis is not None and isinstance(positions, torch.Tensor) and positions.dim() == 2:
            numbers = torch.arange(len(self._axis), device=positions.device)
            places = positions[self._axis].mT  # [tokens, dim]
            return self.cos[places, numbers].unsqueeze(-2), self.sin[places, numbers].unsqueeze(-2)
        return self.cos[positions].unsqueeze(-2), self.sin[positions].unsqueeze(-2)


def rotate(x: torch.Tensor, turn: Turn) -> torch.Tensor:
    """Rotate [..., tokens, heads, head_dim] by `Rotary.at` of the tokens' positions.

    Three passes over the numbers, without splitting the halves. Numbers beyond the rotated ones stay.
    """
    cos, sin = turn
    dim = cos.shape[-1]
    if dim < x.shape[-1]:
        return torch.cat((rotate(x[..., :dim], turn), x[..., dim:]), dim=-1)
    return torch.addcmul(x.roll(dim // 2, dims=-1).mul_(sin), x, cos)


def rms_norm(
    x: torch.Tensor, eps: float, scale: torch.Tensor, shift: torch.Tensor | None = None
) -> torch.Tensor:
    """x / sqrt(mean(x^2) + eps) * scale + shift over the last axis.

    torch's own norm is one kernel on GPUs. On CPUs it is seven with a rounding between them, a seventh of a
    small model's chunk: there it is computed here, in float32 whatever x is.
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


def layer_norm(x: torch.Tensor, eps: float, scale: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    """(x - mean(x)) / sqrt(var(x) + eps) * scale + shift over the last axis."""
    return torch.addcmul(shift, F.layer_norm(x, (x.shape[-1],), None, None, eps), scale)


class RmsNorm(nn.Module):
    """x / sqrt(mean(x^2) + eps) * scale; `scale` is Gemma's and Qwen3.5's 1 + weight, Qwen3-VL's weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.eps, self.scale)


@dataclass(frozen=True, slots=True)
class Modulation:
    """A norm that the denoise time controls (adaptive norm): scale (1 + scale), shift and gate, each [width]
    for each of the S steps. The S times are fixed, so they are computed once, at load.

    gate:   of the branch behind the norm; empty where a family has none
    norm:   `rms_norm` or `layer_norm`
    """

    scale: tuple[torch.Tensor, ...]
    shift: tuple[torch.Tensor, ...]
    gate: tuple[torch.Tensor, ...] = ()
    norm: Callable[[torch.Tensor, float, torch.Tensor, torch.Tensor], torch.Tensor] = rms_norm

    @classmethod
    def of(
        cls, parts: torch.Tensor, order: Sequence[str] = ("scale", "shift", "gate"), *, layer: bool = False
    ) -> Modulation:
        """parts [S, len(order) * width]: what the network gives for the S times, in `order`; layer: a
        modulated LayerNorm instead of an RMS norm."""
        each = dict(zip(order, (p.contiguous() for p in parts.chunk(len(order), dim=-1)), strict=True))
        gate = each["gate"].unbind() if "gate" in each else ()
        norm = layer_norm if layer else rms_norm
        return cls((1 + each["scale"]).unbind(), each["shift"].unbind(), gate, norm)

    def apply(self, x: torch.Tensor, step: int, eps: float) -> torch.Tensor:
        return self.norm(x, eps, self.scale[step], self.shift[step])


class GeluLinear(nn.Linear):
    """A linear layer with the tanh form of the GELU behind it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.gelu(super().forward(x), approximate="tanh")


class QkvLinear(nn.Linear):
    """Queries, keys and values of a block in one product."""

    def tail(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """Only the outputs from `first` on."""
        return F.linear(x, self.weight[first:], None if self.bias is None else self.bias[first:])


class GateUpLinear(nn.Linear):
    """Gate and up of a gated MLP in one product, gate first, without bias.

    silu: the gate's activation is SiLU (Qwen) instead of GELU (Gemma)
    """

    def __init__(self, width: int, outputs: int, *, silu: bool = False, bias: bool = False) -> None:
        super().__init__(width, outputs, bias=bias)
        self.silu = silu

    def activated(self, x: torch.Tensor) -> torch.Tensor:
        """activation(gate) * up"""
        return activate(self(x), silu=self.silu)


def activate(gate_up: torch.Tensor, *, silu: bool = False) -> torch.Tensor:
    """activation(gate) * up of both halves; the activation is SiLU or the tanh form of the GELU."""
    gate, up = gate_up.chunk(2, dim=-1)
    return (F.silu(gate) if silu else F.gelu(gate, approximate="tanh")) * up


class AttentionBlock(nn.Module):
    """Projections and gated MLP of one transformer block; q/k/v and gate/up are one weight each.

    The norms around them are the caller's: a backbone's and an action expert's differ there.

    qkv_bias:     biases of q, k and v
    qk_norm_eps:  > 0: q and k are RMS-normalized per head before they are rotated
    silu:         see GateUpLinear
    """

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        mlp_dim: int,
        *,
        qkv_bias: bool = False,
        qk_norm_eps: float = 0.0,
        silu: bool = False,
    ) -> None:
        super().__init__()
        self.width, self.heads, self.kv_heads, self.head_dim = width, heads, kv_heads, head_dim
        self.mlp_dim, self.silu = mlp_dim, silu
        self.qkv = QkvLinear(width, (heads + 2 * kv_heads) * head_dim, bias=qkv_bias)
        self.out = nn.Linear(heads * head_dim, width, bias=False)
        self.gate_up = GateUpLinear(width, 2 * mlp_dim, silu=silu)
        self.down = nn.Linear(mlp_dim, width, bias=False)
        self.q_norm = self.k_norm = None
        if qk_norm_eps:
            self.q_norm, self.k_norm = RmsNorm(head_dim, qk_norm_eps), RmsNorm(head_dim, qk_norm_eps)

    def split(self, qkv: torch.Tensor, turn: Turn) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Fused projection [..., T, *] -> q [..., T, heads, d] and k, rotated, v [..., T, kv_heads, d]."""
        parts = qkv.view(*qkv.shape[:-1], -1, self.head_dim)
        qk = parts[..., : self.heads + self.kv_heads, :]
        if self.q_norm is not None and self.k_norm is not None:
            q, k = qk[..., : self.heads, :], qk[..., self.heads :, :]
            qk = torch.cat((self.q_norm(q), self.k_norm(k)), dim=-2)
        turned = rotate(qk, turn)
        return turned[..., : self.heads, :], turned[..., self.heads :, :], parts[..., -self.kv_heads :, :]

    def keys_values(self, x: torch.Tensor, turn: Turn) -> tuple[torch.Tensor, torch.Tensor]:
        """Only k and v, for a block whose output is not read."""
        both = self.qkv.tail(x, self.heads * self.head_dim)
        k, v = both.view(*both.shape[:-1], -1, self.head_dim).chunk(2, dim=-2)
        return rotate(k if self.k_norm is None else self.k_norm(k), turn), v

    def mlp(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down(self.gate_up.activated(x))
        return out


class DecoderBlock(AttentionBlock):
    """A pre-norm block of a backbone: RMS norms with a learned scale. `options` are AttentionBlock's."""

    def __init__(
        self,
        width: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        mlp_dim: int,
        eps: float,
        **options: bool | float,
    ) -> None:
        super().__init__(width, heads, kv_heads, head_dim, mlp_dim, **options)  # type: ignore[arg-type]
        self.attention_norm = RmsNorm(width, eps)
        self.mlp_norm = RmsNorm(width, eps)

    def project(
        self, x: torch.Tensor, turn: Turn, adapt: Adapt | None = None, index: int = 0
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
        active = activate(adapt(index, "gate_up", normed, self.gate_up(normed)), silu=self.silu)
        return x + adapt(index, "down", active, self.down(active))
