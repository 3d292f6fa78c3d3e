# SPDX-License-Identifier: Apache-2.0
"""A stack of decoder blocks over a K/V pool: prefill of prefixes, rows of text.

For backbones whose state is keys and values. Embeddings and logits are the family's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F

from oxygen_ros.models.interface import Rows
from oxygen_ros.models.layers import DecoderBlock, Rotary, Turn
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.packed import is_packed
from oxygen_ros.models.pool import KvPool, attend

# Rows of a prefill over packed layers are a multiple of it.
PACKED_ROWS = 8


class Decoder:
    """Blocks, their pool and the text adapters. One thread owns it."""

    def __init__(
        self, blocks: Iterable[torch.nn.Module], pool: KvPool, rotary: Rotary, adapters: TextAdapters
    ) -> None:
        self.pool = pool
        self.rotary = rotary
        self._adapters = adapters
        self._blocks = [block for block in blocks if isinstance(block, DecoderBlock)]
        self._is_packed = any(is_packed(block) for block in self._blocks)

    def prefill(
        self,
        x: torch.Tensor,
        places: slice | torch.Tensor,
        bias: torch.Tensor | None = None,
        turn: Turn | None = None,
        *,
        with_hidden: bool = False,
    ) -> torch.Tensor:
        """Keys and values of a prefix [P, width] into the pool's `places`; returns the residual stream.

        bias: [P] -inf for tokens that no query may see; or per query, see `attend` (causal prefixes)
        turn: of the tokens' positions; default 0, 1, 2, ...

        Without `with_hidden` the last block stops at its keys and values; readers need no more.
        """
        count = x.shape[0]
        if self._is_packed and count % PACKED_ROWS and turn is None and (bias is None or bias.dim() == 1):
            # oneDNN creates a kernel for each new number of rows, which takes longer than running it.
            x = F.pad(x, (0, 0, 0, -count % PACKED_ROWS))
            bias = x.new_zeros(count) if bias is None else bias
            bias = F.pad(bias, (0, x.shape[0] - count), value=float("-inf"))
        turn = self.rotary.at(slice(0, x.shape[0])) if turn is None else turn
        for layer, block in enumerate(self._blocks):
            if layer == len(self._blocks) - 1 and not with_hidden:
                k, v = block.keys_values(block.attention_norm(x), turn)
                self.pool.put(layer, places, k[:count], v[:count])
                break
            q, k, v = block.project(x, turn)
            self.pool.put(layer, places, k[:count], v[:count])
            x = block.merge(x, attend(q, k.transpose(0, 1), v.transpose(0, 1), bias))
        return x[:count]

    def extend(self, x: torch.Tensor, rows: Rows) -> torch.Tensor:
        """Residual stream [rows.count, width] of rows whose embeddings are `x`; their K/V go to the pool."""
        live = slice(0, rows.count)
        view = self.pool.view(rows)
        turn = self.rotary.at(rows.position[live])
        adapt = None
        if self._adapters.names:
            self._adapters.select(rows.adapter[live])
            adapt = self._adapters.adapt
        for layer, block in enumerate(self._blocks):
            q, k, v = block.project(x, turn, adapt, layer)
            self.pool.put(layer, view.place, k, v)
            x = block.merge(x, self.pool.attend_rows(layer, q, view), adapt, layer)
        return x

    def create_kernels(self, max_rows: int, prefixes: Sequence[int]) -> None:
        """Run packed layers once with every number of rows that can occur, for oneDNN to create its kernels.

        prefixes: the numbers of tokens that prefixes can have
        """
        if not self._is_packed:
            return
        block = self._blocks[0]
        weight = block.attention_norm.scale
        padded = {count + -count % PACKED_ROWS for count in prefixes}
        for count in (*range(1, max_rows + 1), *sorted(padded)):
            x = torch.zeros(count, block.width, dtype=weight.dtype)
            turn = self.rotary.at(slice(0, count))
            q, _, _ = block.project(x, turn)
            block.merge(x, q.flatten(1))
            block.keys_values(x, turn)
