# SPDX-License-Identifier: Apache-2.0
"""Linear layers of a block for a CPU: weights laid out once as products of few rows read them.

`F.linear` lays a bfloat16 weight out anew in every call, and a product of few rows costs little more than
that. oneDNN takes weights laid out before, and applies GELU and the product with `up` to the float32 sums
while they are in registers: one rounding instead of three. In float32 the plain layers stay, and their
weights lie by input instead of by output: the same numbers, no second copy, and a product of 50 rows takes
0.80 to 0.91 of the time (measured; one of hundreds of rows as long as before, so the backbone is left alone).

The operators are torch's own, made for its compiler, and no public name reaches them. So `pack` tries them
against the plain layers, and gives the plain block back where a build lacks them or they say anything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol
from weakref import WeakKeyDictionary

import torch
from torch import nn

from oxygen_ros.models.layers import AttentionBlock

# Largest difference of a packed product from the plain one, relative to the largest number: roundings alone.
_CLOSE = 2e-2


class Products(Protocol):
    """The products of a block, packed or plain; see AttentionBlock."""

    def qkv(self, x: torch.Tensor, /) -> torch.Tensor: ...
    def out(self, x: torch.Tensor, /) -> torch.Tensor: ...
    def mlp(self, x: torch.Tensor, /) -> torch.Tensor: ...


class PackedBlock:
    """A block's weights once more, laid out for products of about `rows` rows. Inputs are contiguous."""

    def __init__(self, block: AttentionBlock, rows: int) -> None:
        gate, up = block.gate_up.weight.chunk(2)
        self._linear = torch.ops.mkldnn._linear_pointwise
        lay_out = torch.ops.mkldnn._reorder_linear_weight
        self._qkv, self._out, self._gate, self._up, self._down = (
            lay_out(weight.detach(), rows)
            for weight in (block.qkv.weight, block.out.weight, gate, up, block.down.weight)
        )

    def qkv(self, x: torch.Tensor, /) -> torch.Tensor:
        return self._plain(x, self._qkv)

    def out(self, x: torch.Tensor, /) -> torch.Tensor:
        return self._plain(x, self._out)

    def mlp(self, x: torch.Tensor, /) -> torch.Tensor:
        gate = self._linear(x, self._gate, None, "gelu", [], "tanh")
        return self._plain(self._linear.binary(x, gate, self._up, None, "mul"), self._down)

    def _plain(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        product: torch.Tensor = self._linear(x, weight, None, "none", [], "")
        return product


# Models of one network share what was packed; it goes with the network.
_packed: WeakKeyDictionary[nn.Module, PackedBlock] = WeakKeyDictionary()


@torch.inference_mode()
def pack(block: AttentionBlock, rows: int) -> Products:
    """The block packed for products of about `rows` rows; itself in float32, on GPUs, in builds without.

    Its weights must not change afterwards.
    """
    weight = block.qkv.weight
    if weight.device.type != "cpu":
        return block
    if weight.dtype == torch.float32:
        _lay_by_input(block)
    if weight.dtype != torch.bfloat16:
        return block
    if block not in _packed:
        packed = _try_packing(block, rows)
        if packed is None:
            return block
        _packed[block] = packed
    return _packed[block]


def what_lacks(products: Sequence[Products]) -> str:
    """Why products that `pack` gave are slower than they need be; "" when they are not."""
    if any(isinstance(p, AttentionBlock) and p.qkv.weight.dtype == torch.bfloat16 for p in products):
        return (
            f"torch {torch.__version__} on this CPU lacks oneDNN's bfloat16 products: action "
            "chunks take up to twice as long; use another build of torch, or dtype float32"
        )
    return ""


def _lay_by_input(block: AttentionBlock) -> None:
    for layer in (block.qkv, block.out, block.gate_up, block.down):
        layer.weight.data = layer.weight.data.mT.contiguous().mT


def _try_packing(block: AttentionBlock, rows: int) -> PackedBlock | None:
    try:
        packed = PackedBlock(block, rows)
        width = block.qkv.in_features
        x = torch.linspace(-1, 1, rows * width, dtype=torch.bfloat16).view(rows, width)
        pairs = [(packed.qkv(x), block.qkv(x)), (packed.mlp(x), block.mlp(x))]
    except (AttributeError, NotImplementedError, RuntimeError):
        return None
    for ours, plain in pairs:
        if not (ours - plain).abs().max() <= _CLOSE * plain.abs().max():  # a NaN is no match
            return None
    return packed
