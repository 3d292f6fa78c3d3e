# SPDX-License-Identifier: Apache-2.0
"""The linear layers of prefill, denoise and decode alone: the floor under each, and what they move.

Here live the network's matrix products with the right number of rows, run one after the other over random
inputs. Attention, norms, activations and everything between are what a component takes beyond its floor.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.bench.lane import Clock, synchroniser
from oxygen_ros.models.pi05.network import Network


@dataclass(frozen=True, slots=True)
class Product:
    """One linear layer: `rows` inputs through `weight` [out, in], `times` times."""

    run: Callable[[torch.Tensor], torch.Tensor]
    weight: torch.Tensor
    rows: int
    times: int = 1


def prefill_products(network: Network, cameras: int, prefix_tokens: int) -> list[Product]:
    """Vision tower over all cameras, backbone over the prefix; of the last block only keys and values."""
    patches = cameras * network.config.vision.tokens
    products = _linears(network.vision, patches)
    for block in list(network.blocks)[:-1]:
        products += _linears(block, prefix_tokens)
    last = network.blocks[-1]
    b = network.config.backbone
    weight = last.get_submodule("qkv").get_parameter("weight")[b.heads * b.head_dim :]
    products.append(Product(lambda x: F.linear(x, weight), weight, prefix_tokens))
    return products


def denoise_products(network: Network, steps: int) -> list[Product]:
    """The action stream's layers, once a step; the modulations were worked out at load."""
    rows = network.config.horizon
    expert = network.expert
    products = _linears(expert.action_in, rows, steps) + _linears(expert.action_out, rows, steps)
    for block in expert.blocks:
        for name, layer in block.named_children():
            if not name.endswith("steer"):
                products += _linears(layer, rows, steps)
    return products


def decode_products(network: Network, rows: int) -> list[Product]:
    """The backbone's layers and the head over the rows of one decode step."""
    products = [product for block in network.blocks for product in _linears(block, rows)]
    table = network.embedding
    products.append(Product(lambda x: F.linear(x, table), table, rows))
    return products


def _linears(module: nn.Module, rows: int, times: int = 1) -> list[Product]:
    return [
        Product(layer, layer.weight, rows, times)
        for layer in module.modules()
        if isinstance(layer, nn.Linear)
    ]


def flops(products: Iterable[Product]) -> int:
    """Floating-point operations: a multiplication and an addition per weight and row."""
    return sum(2 * p.weight.numel() * p.rows * p.times for p in products)


def weight_bytes(products: Iterable[Product]) -> int:
    """Bytes of the weights, each read once a pass."""
    return sum(p.weight.numel() * p.weight.element_size() * p.times for p in products)


@torch.inference_mode()
def time_products(products: Iterable[Product], repeats: int, clock: Clock = time.perf_counter) -> float:
    """Seconds of all products in order: the median over `repeats` passes, after one that is not counted."""
    products = list(products)
    first = products[0].weight
    inputs = {
        (p.rows, p.weight.shape[1]): torch.randn(
            p.rows, p.weight.shape[1], device=first.device, dtype=torch.float32
        ).to(first.dtype)
        for p in products
    }
    wait = synchroniser(first.device)
    seconds = []
    for _ in range(repeats + 1):
        wait()
        started = clock()
        for product in products:
            x = inputs[product.rows, product.weight.shape[1]]
            for _ in range(product.times):
                product.run(x)
        wait()
        seconds.append(clock() - started)
    return sorted(seconds[1:])[repeats // 2]
