# SPDX-License-Identifier: Apache-2.0
"""The forward passes of pi0.5 over static pools: prefix, one velocity, rows of text.

`Passes` is the arithmetic; its callers lay out the tensors: `model` with the current sizes,
`Pi05StaticPasses` with static ones that can be captured. `Passes` uses no slot numbers and reads no value.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from oxygen_ros.models.decoder import Decoder
from oxygen_ros.models.interface import Rows
from oxygen_ros.models.layers import Rotary, Turn
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pi05.network import ExpertBlock, ModulationTable, Network
from oxygen_ros.models.pi05.processor import Pi05Inputs
from oxygen_ros.models.pool import KvPool, align, attend
from oxygen_ros.models.programs import StaticPrefix, Velocity, hide, prompt_buckets


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
        modulation: ModulationTable,
        adapters: TextAdapters,
        pool: KvPool,
        rotary: Rotary,
    ) -> None:
        """modulation: of the denoise times"""
        self.network = network
        self.pool = pool
        self.rotary = rotary
        self.decoder = Decoder(network.blocks, pool, rotary, adapters)
        self.dtype = network.embedding.dtype
        self._modulation = modulation
        self._eps = network.config.expert.eps
        self._experts = [block for block in network.expert.blocks if isinstance(block, ExpertBlock)]

    def embed(self, images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        """Images [cameras, 3, S, S], all in one batch, and prompt tokens to the prefix [P, width]."""
        prompt = self.network.embed(tokens)
        if images.shape[0] == 0:
            return prompt
        return torch.cat((self.network.vision(images).flatten(0, 1), prompt))

    def velocity(self, x: torch.Tensor, step: int, reading: Reading) -> torch.Tensor:
        """Velocity [H, D] in float32 of noisy actions x [H, D] at one denoise step."""
        expert, table, eps = self.network.expert, self._modulation, self._eps
        own, turn = reading.own, reading.turn
        stream = expert.action_in(x.to(self.dtype))
        for layer, block in enumerate(self._experts):
            attention, mlp = table.attention[layer], table.mlp[layer]
            keys, values = reading.keys[layer], reading.values[layer]
            q, k, v = block.split(block.qkv(attention.apply(stream, step, eps)), turn)
            keys[:, own] = k.transpose(0, 1)
            values[:, own] = v.transpose(0, 1)
            attended = attend(q, keys, values, reading.bias)
            stream = torch.addcmul(stream, block.out(attended), attention.gate[step])
            stream = torch.addcmul(stream, block.mlp(mlp.apply(stream, step, eps)), mlp.gate[step])
        v_t: torch.Tensor = expert.action_out(table.final.apply(stream, step, eps))
        return v_t.float()

    def extend(self, rows: Rows) -> torch.Tensor:
        """Rows of text, see Model.extend."""
        x = self.decoder.extend(self.network.embed(rows.token[: rows.count]), rows)
        return self.network.logits(x[rows.wants_logits[: rows.wanted]])


class Pi05StaticPasses:
    """The passes over static tensors, see `programs.StaticPasses`."""

    def __init__(self, passes: Passes, cameras: int) -> None:
        """cameras: images of every prefix; others have no program"""
        self._passes = passes
        self._config = c = passes.network.config
        device = passes.network.embedding.device
        self.buckets = prompt_buckets(c.max_prompt)
        self.padding_row = passes.pool.padding_row
        size = c.vision.image_size
        self._images = torch.zeros(cameras, 3, size, size, device=device, dtype=passes.dtype)
        self._tokens = torch.full((c.max_prompt,), c.pad_id, dtype=torch.int64, device=device)
        self._prefix = StaticPrefix(align(c.max_prefix + c.horizon), device)

    def stage(self, inputs: Pi05Inputs, slot: int) -> int | None:
        count = inputs.tokens.shape[0]
        if inputs.images.shape != self._images.shape or not 0 < count <= self._config.max_prompt:
            return None
        self._images.copy_(inputs.images)
        self._tokens[:count] = inputs.tokens
        self._tokens[count:] = self._config.pad_id
        self.aim(slot)
        return next(bucket for bucket in self.buckets if count <= bucket)

    def prefill(self, bucket: int) -> torch.Tensor:
        x = self._passes.embed(self._images, self._tokens[:bucket])
        column = self._prefix.column[: x.shape[0]]
        unseen = hide(column >= self._prefix.length, self._passes.dtype)
        return self._passes.decoder.prefill(x, self._prefix.base + column, unseen)

    def aim(self, slot: int) -> None:
        places = self._passes.pool.prefix_places(slot)
        count = places.stop - places.start
        self._prefix.point(places.start, count, count)

    def begin_denoise(self, expert: int) -> Velocity:
        """The prefix's keys are copied once for the loop, to places that a captured program can read."""
        c, pool, prefix = self._config, self._passes.pool, self._prefix
        places = prefix.base + prefix.column
        own = slice(c.max_prefix, c.max_prefix + c.horizon)
        is_own = (prefix.column >= own.start) & (prefix.column < own.stop)
        unseen = (prefix.column >= prefix.length) & ~is_own
        reading = Reading(
            keys=pool.keys.index_select(2, places),
            values=pool.values.index_select(2, places),
            own=own,
            turn=self._passes.rotary.at(prefix.position + prefix.column[: c.horizon]),
            bias=hide(unseen, self._passes.dtype),
        )
        return lambda x, step: self._passes.velocity(x, step, reading)

    def extend(self, rows: Rows) -> torch.Tensor:
        return self._passes.extend(rows)
