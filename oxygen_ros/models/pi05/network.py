# SPDX-License-Identifier: Apache-2.0
"""The pi0.5 network: SigLIP vision tower (Zhai et al. 2023), Gemma backbone, action expert.

The weights only; the forward passes are in `passes` (serving) and in training. Text continues the
bidirectional prefix causally; its head is the embedding table. The action expert is a narrow Gemma stream
whose norms are modulated by the denoise time (adaRMS).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.models.layers import AttentionBlock, DecoderBlock, GeluLinear, Modulation, RmsNorm
from oxygen_ros.models.packed import is_packed, pack
from oxygen_ros.models.pi05.config import Pi05Config, VisionConfig


class VisionBlock(nn.Module):
    """Pre-LayerNorm transformer block; q, k and v are one weight."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.mlp_norm = nn.LayerNorm(config.width, eps=config.eps)
        self.up = GeluLinear(config.width, config.mlp_dim)
        self.down = nn.Linear(config.mlp_dim, config.width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        qkv = self.qkv(self.attention_norm(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = qkv.transpose(1, 3).unbind(2)  # each [cameras, heads, tokens, d]
        attended = F.scaled_dot_product_attention(q, k, v)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        y: torch.Tensor = x + self.down(self.up(self.mlp_norm(x)))
        return y


class VisionTower(nn.Module):
    """Images [cameras, 3, S, S] in -1..1 to image tokens [cameras, tokens, backbone width]."""

    def __init__(self, config: VisionConfig, out_width: int) -> None:
        super().__init__()
        self.patch_size = config.patch_size
        self.patch = nn.Linear(3 * config.patch_size**2, config.width)
        self.position = nn.Parameter(torch.zeros(config.tokens, config.width))
        self.blocks = nn.ModuleList(VisionBlock(config) for _ in range(config.depth))
        self.norm = nn.LayerNorm(config.width, eps=config.eps)
        self.projector = nn.Linear(config.width, out_width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        # The patch convolution does not overlap: it is one matrix product over flattened patches.
        patches = F.pixel_unshuffle(images, self.patch_size).flatten(2).mT
        x = self.patch(patches) + self.position
        for block in self.blocks:
            x = block(x)
        tokens: torch.Tensor = self.projector(self.norm(x))
        return tokens


def embed_time(times: torch.Tensor, width: int, shortest: float, longest: float) -> torch.Tensor:
    """Sines, then cosines [S, width] of times [S]; periods spaced geometrically, both ends included."""
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
        """The modulations of denoise times [S], once for all chunks."""
        condition = self.condition(times)
        blocks = [block for block in self.blocks if isinstance(block, ExpertBlock)]
        return ModulationTable(
            attention=[Modulation.of(block.attention_steer(condition)) for block in blocks],
            mlp=[Modulation.of(block.mlp_steer(condition)) for block in blocks],
            final=Modulation.of(self.final_steer(condition)),
        )


class Network(nn.Module):
    """All weights of a pi0.5 checkpoint that a computation reads."""

    def __init__(self, config: Pi05Config) -> None:
        super().__init__()
        b = config.backbone
        self.config = config
        self.vision = VisionTower(config.vision, b.width)
        self.embedding = nn.Parameter(torch.zeros(config.vocabulary, b.width))
        self.blocks = nn.ModuleList(
            DecoderBlock(b.width, b.heads, b.kv_heads, b.head_dim, b.mlp_dim, b.eps) for _ in range(b.depth)
        )
        self.norm = RmsNorm(b.width, b.eps)
        self.expert = ActionExpert(config)
        # Why products are slower than necessary, else "".
        self.packing_problem = ""
        self.is_packed = False

    def pack(self) -> None:
        """Lay the weights out for serving from a CPU, in place; see `models.packed`."""
        self.packing_problem = pack(self)
        self.is_packed = is_packed(self)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeddings [.., width] of token ids, scaled by sqrt(width) as Gemma does."""
        return self.embedding[tokens] * math.sqrt(self.config.backbone.width)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [.., vocabulary] of hidden states before the final norm."""
        return F.linear(self.norm(hidden), self.embedding)


def random_network(
    config: Pi05Config,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Network:
    """A network of random weights with activations of ordinary size, for benchmarks and demos.

    The weights are drawn in `dtype` on `device`, without a second copy. Each device gives other numbers.

    The final norm's signs are random: with a tied head and all of them equal, a residual stream
    that is mostly its own input makes greedy text repeat one token for ever.
    """
    with torch.device("meta"):
        network = Network(config).to(dtype)
    network.to_empty(device=device)
    generator = torch.Generator(device).manual_seed(seed)
    with torch.no_grad():
        for name, tensor in network.named_parameters():
            if name.endswith(("norm.weight", "norm.scale")):
                tensor.fill_(1.0)
            elif tensor.dim() == 1:
                tensor.zero_()
            else:
                tensor.normal_(0.0, tensor.shape[-1] ** -0.5, generator=generator)
        signs = torch.randint(0, 2, (config.backbone.width,), generator=generator, device=device) * 2 - 1
        network.norm.scale.copy_(signs)
    return network.requires_grad_(False)
