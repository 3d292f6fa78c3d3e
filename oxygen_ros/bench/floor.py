# SPDX-License-Identifier: Apache-2.0
"""The linear layers of prefill, denoise and decode alone: the floor under each, and what they move.

Here live the network's matrix products with the right number of rows, run one after the other over random
inputs. Attention, norms, activations and everything between are what a component takes beyond its floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.bench.lane import Clock, synchroniser
from oxygen_ros.models.graphs import find_recorder
from oxygen_ros.models.layers import QkvLinear
from oxygen_ros.models.packed import PackedLinear
from oxygen_ros.models.pi05.network import Network


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


def prefill_products(network: Network, cameras: int, prefix_tokens: int) -> list[Product]:
    """Vision tower over all cameras, backbone over the prefix; of the last block only keys and values."""
    patches = cameras * network.config.vision.tokens
    like = network.embedding
    products = _linears(network.vision, like, patches)
    for block in list(network.blocks)[:-1]:
        products += _linears(block, like, prefix_tokens)
    b = network.config.backbone
    first = b.heads * b.head_dim
    qkv = network.blocks[-1].get_submodule("qkv")
    assert isinstance(qkv, QkvLinear | PackedLinear)
    size = (qkv.out_features - first, qkv.in_features)
    products.append(Product(lambda x: qkv.tail(x, first), size, like, prefix_tokens))
    return products


def denoise_products(network: Network, steps: int) -> list[Product]:
    """The action stream's layers, once a step; the modulations were worked out at load."""
    rows, like = network.config.horizon, network.embedding
    expert = network.expert
    products = _linears(expert.action_in, like, rows, steps) + _linears(expert.action_out, like, rows, steps)
    for block in expert.blocks:
        for name, layer in block.named_children():
            if not name.endswith("steer"):
                products += _linears(layer, like, rows, steps)
    return products


def decode_products(network: Network, rows: int) -> list[Product]:
    """The backbone's layers and the head over the rows of one decode step."""
    table = network.embedding
    products = [product for block in network.blocks for product in _linears(block, table, rows)]
    size = (table.shape[0], table.shape[1])
    products.append(Product(lambda x: F.linear(x, table), size, table, rows))
    return products


def _linears(module: nn.Module, like: torch.Tensor, rows: int, times: int = 1) -> list[Product]:
    """What follows a product inside the layer, a GELU, is left out."""
    products = []
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            run = partial(F.linear, weight=layer.weight, bias=layer.bias)
        elif isinstance(layer, PackedLinear):
            run = layer.plain
        else:
            continue
        products.append(Product(run, (layer.out_features, layer.in_features), like, rows, times))
    return products


def flops(products: Iterable[Product]) -> int:
    """Floating-point operations: a multiplication and an addition per weight and row."""
    return sum(2 * p.weights * p.rows * p.times for p in products)


def weight_bytes(products: Iterable[Product]) -> int:
    """Bytes of the weights, each read once a pass."""
    return sum(p.weights * p.like.element_size() * p.times for p in products)


@torch.inference_mode()
def make_run(products: Iterable[Product]) -> Callable[[], torch.Tensor]:
    """All products in order, over random inputs; those of several passes pass by pass, as they are met: the
    same weight ten times in a row would stay in a cache that the others leave nothing of.

    On a GPU they are recorded, as what they are the floor of is: launched one by one, small ones take as long
    as their launch.
    """
    products = list(products)
    inputs = {(p.rows, p.size[1]): p.draw_input() for p in products}

    def multiply() -> torch.Tensor:
        for number in range(max(product.times for product in products)):
            for product in products:
                if number < product.times:
                    out = product.run(inputs[product.rows, product.size[1]])
        return out

    recorder = find_recorder(products[0].like.device)
    return multiply if recorder is None else recorder.record(multiply)


@torch.inference_mode()
def time_products(products: Iterable[Product], repeats: int, clock: Clock = time.perf_counter) -> float:
    """Seconds of all products in order: the median over `repeats` passes, after one that is not counted."""
    products = list(products)
    run, wait = make_run(products), synchroniser(products[0].like.device)
    seconds = []
    for _ in range(repeats + 1):
        wait()
        started = clock()
        run()
        wait()
        seconds.append(clock() - started)
    return sorted(seconds[1:])[repeats // 2]
