# SPDX-License-Identifier: Apache-2.0
"""The SigLIP vision tower (Zhai et al. 2023) with the projector into the backbone's width.

Here lives the image side of a prefix; all cameras of a tick go through in one batch.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.models.layers import GeluLinear
from oxygen_ros.models.pi05.config import VisionConfig


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
