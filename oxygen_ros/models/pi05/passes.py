# SPDX-License-Identifier: Apache-2.0
"""The forward passes of pi0.5 over static pools: prefix, one velocity, rows of text.

Here lives the arithmetic, once, for whoever lays out its tensors: `model` with the sizes of the moment,
`programs` with static ones. Nothing here knows a slot or looks at a value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from oxygen_ros.models.interface import Rows
from oxygen_ros.models.layers import DecoderBlock, Rotary, Turn
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pi05.expert import ExpertBlock, ModulationTable
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pool import KvPool, attend

# Rows of a prefill over packed layers are a multiple of it.
PACKED_ROWS = 8


@dataclass(frozen=True, slots=True)
class Reading:
    """What a denoise loop reads and where it puts its own keys.

    keys, values:  [layers, kv_heads, L, d], prefix and the chunk's own
    own:           places of the chunk's own among the L
    turn:          rotary turn of the chunk's positions
    bias:          [L] 0 where every query looks, -inf elsewhere; None: everywhere
    """

    keys: torch.Tensor
    values: torch.Tensor
    own: slice
    turn: Turn
    bias: torch.Tensor | None = None


class Passes:
    """One network over one pool."""

    def __init__(
        self,
        network: Network,
        times: Sequence[float],
        modulation: ModulationTable,
        adapters: TextAdapters,
        pool: KvPool,
        rotary: Rotary,
    ) -> None:
        """times: of the denoise steps; modulation: of these times"""
        self.network = network
        self.times = times
        self.pool = pool
        self.rotary = rotary
        self.dtype = network.embedding.dtype
        self._modulation = modulation
        self._adapters = adapters
        self._eps = network.config.expert.eps
        self._blocks = [block for block in network.blocks if isinstance(block, DecoderBlock)]
        self._experts = [block for block in network.expert.blocks if isinstance(block, ExpertBlock)]

    def embed(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Images [cameras, 3, S, S], all in one batch, and prompt tokens to the prefix [P, width]."""
        words = self.network.embed(tokens)
        if images.shape[0] == 0:
            return words
        return torch.cat((self.network.vision(images).flatten(0, 1), words))

    def prefill(
        self,
        x: torch.Tensor,
        places: slice | torch.Tensor,
        bias: torch.Tensor | None = None,
        *,
        with_hidden: bool = False,
    ) -> torch.Tensor:
        """Keys and values of a prefix [P, width] into the pool's `places`; returns the residual stream.

        bias: [P] -inf for tokens that nobody may see. Without `with_hidden` the last block stops at its
        keys and values: readers take no more of it.
        """
        count = x.shape[0]
        if self.network.is_packed and count % PACKED_ROWS:
            # oneDNN makes a kernel for each number of rows it meets, which takes longer than running it.
            x = F.pad(x, (0, 0, 0, -count % PACKED_ROWS))
            bias = x.new_zeros(count) if bias is None else bias
            bias = F.pad(bias, (0, x.shape[0] - count), value=float("-inf"))
        turn = self.rotary.at(slice(0, x.shape[0]))
        for layer, block in enumerate(self._blocks):
            if layer == len(self._blocks) - 1 and not with_hidden:
                k, v = block.keys_values(block.attention_norm(x), turn)
                self.pool.put(layer, places, k[:count], v[:count])
                break
            q, k, v = block.project(x, turn)
            self.pool.put(layer, places, k[:count], v[:count])
            x = block.merge(x, attend(q, k.transpose(0, 1), v.transpose(0, 1), bias))
        return x[:count]

    def meet(self, rows: Iterable[int]) -> None:
        """Let packed layers see these numbers of rows, for which kernels are then there; see `prefill`."""
        if not self.network.is_packed:
            return
        block, width = self._blocks[0], self.network.config.backbone.width
        for count in rows:
            x = torch.zeros(count, width, dtype=self.dtype)
            turn = self.rotary.at(slice(0, count))
            q, _, _ = block.project(x, turn)
            block.merge(x, q.flatten(1))
            block.keys_values(x, turn)

    def velocity(self, x: torch.Tensor, step: int, reading: Reading) -> torch.Tensor:
        """Velocity [H, D] in float32 of noisy actions x [H, D] at one denoise step."""
        expert, table, eps = self.network.expert, self._modulation, self._eps
        own, turn = reading.own, reading.turn
        stream = expert.action_in(x.to(self.dtype))
        for layer, block in enumerate(self._experts):
            attention, mlp = table.attention[layer], table.mlp[layer]
            keys, values = reading.keys[layer], reading.values[layer]
            q, k, v = block.split(block.qkv(attention.norm(stream, step, eps)), turn)
            keys[:, own] = k.transpose(0, 1)
            values[:, own] = v.transpose(0, 1)
            attended = attend(q, keys, values, reading.bias)
            stream = torch.addcmul(stream, block.out(attended), attention.gate[step])
            stream = torch.addcmul(stream, block.mlp(mlp.norm(stream, step, eps)), mlp.gate[step])
        v_t: torch.Tensor = expert.action_out(table.final.norm(stream, step, eps))
        return v_t.float()

    def extend(self, rows: Rows) -> torch.Tensor:
        """Rows of text, see Model.extend."""
        live = slice(0, rows.count)
        view = self.pool.view(rows)
        turn = self.rotary.at(rows.position[live])
        adapt = None
        if self._adapters.names:
            self._adapters.select(rows.adapter[live])
            adapt = self._adapters.adapt
        x = self.network.embed(rows.token[live])
        for layer, block in enumerate(self._blocks):
            q, k, v = block.project(x, turn, adapt, layer)
            self.pool.put(layer, view.place, k, v)
            x = block.merge(x, self.pool.attend_rows(layer, q, view), adapt, layer)
        return self.network.logits(x[rows.wants_logits[: rows.wanted]])
