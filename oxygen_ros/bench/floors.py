# SPDX-License-Identifier: Apache-2.0
"""The linear layers of a component alone: the floor under its time, and what they move.

The matrix products, with the right number of rows, run one after the other over random inputs. A component's
time beyond its floor is attention, norms and activations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.models.graphs import find_capturer
from oxygen_ros.models.packed import PackedLinear


@dataclass(frozen=True, slots=True)
class Product:
    """One linear layer: `rows` inputs [rows, size[1]] through a weight [out, in] of that size, `times` times.

    like: what its inputs are like in dtype and device
    """

    run: Callable[[torch.Tensor], torch.Tensor]
    size: tuple[int, int]
    like: torch.Tensor
    rows: int
    times: int = 1

    @property
    def weights(self) -> int:
        return self.size[0] * self.size[1]

    def draw_input(self) -> torch.Tensor:
        """Random numbers [rows, in]."""
        return torch.randn(self.rows, self.size[1], device=self.like.device).to(self.like.dtype)


@dataclass(frozen=True, slots=True)
class ComponentFloors:
    """The products of one prefill, one denoise loop, and one decode step of R rows."""

    prefill: Sequence[Product]
    denoise: Sequence[Product]
    decode: Callable[[int], Sequence[Product]]


def linears_of(module: nn.Module, like: torch.Tensor, rows: int, times: int = 1) -> list[Product]:
    """All linear layers in a module. What follows a product inside the layer, a GELU, is left out."""
    runs: list[tuple[Callable[[torch.Tensor], torch.Tensor], nn.Linear | PackedLinear]] = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            runs.append((partial(F.linear, weight=layer.weight, bias=layer.bias), layer))
        elif isinstance(layer, PackedLinear):
            runs.append((layer.plain, layer))
    return [Product(run, (own.out_features, own.in_features), like, rows, times) for run, own in runs]


def count_flops(products: Iterable[Product]) -> int:
    """Floating-point operations: a multiplication and an addition per weight and row."""
    return sum(2 * p.weights * p.rows * p.times for p in products)


def weight_bytes(products: Iterable[Product]) -> int:
    """Bytes of the weights, each read once a pass."""
    return sum(p.weights * p.like.element_size() * p.times for p in products)


@torch.inference_mode()
def make_run(products: Sequence[Product]) -> Callable[[], torch.Tensor]:
    """All products in order, over random inputs. Those of several passes run pass by pass: the same weight
    ten times in a row would stay in a cache.

    On a GPU they are captured, as the component is: launched one by one, small ones take as long as their
    launch.
    """
    inputs = {(p.rows, p.size[1]): p.draw_input() for p in products}

    def multiply() -> torch.Tensor:
        for number in range(max(product.times for product in products)):
            for product in products:
                if number < product.times:
                    out = product.run(inputs[product.rows, product.size[1]])
        return out

    capturer = find_capturer(products[0].like.device)
    return multiply if capturer is None else capturer.capture(multiply)
