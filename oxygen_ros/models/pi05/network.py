# SPDX-License-Identifier: Apache-2.0
"""The pi0.5 network as one module: vision tower, backbone, action expert.

Here lives which weights there are; what runs over them is `model` (served) and training.
Text continues the bidirectional prefix causally; its head is the embedding table.
"""

from __future__ import annotations

import math

import torch
from torch import nn

from oxygen_ros.models.layers import DecoderBlock, RmsNorm
from oxygen_ros.models.packed import is_packed, pack
from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.pi05.expert import ActionExpert
from oxygen_ros.models.pi05.vision import VisionTower


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
        # Why it is slower than it need be; "" when it is not known to be.
        self.lack = ""
        self.is_packed = False

    def pack(self) -> None:
        """Lay the weights out for serving from a CPU, in place; see `models.packed`."""
        self.lack = pack(self)
        self.is_packed = is_packed(self)

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Embeddings [.., width] of token ids, scaled by sqrt(width) as Gemma does."""
        return self.embedding[tokens] * math.sqrt(self.config.backbone.width)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits [.., vocabulary] of hidden states before the final norm."""
        return nn.functional.linear(self.norm(hidden), self.embedding)


def random_network(
    config: Pi05Config,
    seed: int,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Network:
    """A network of random weights with activations of ordinary size, for benchmarks and demos.

    The weights are drawn in `dtype` on `device`: no second copy ever exists. Each device has its own numbers.

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
