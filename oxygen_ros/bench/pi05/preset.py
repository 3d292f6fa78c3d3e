# SPDX-License-Identifier: Apache-2.0
"""The presets of pi0.5: random networks, the served processor over words, the products of each component."""

from __future__ import annotations

from dataclasses import replace
from typing import Self

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import nn

from oxygen_ros.bench.floors import ComponentFloors, Product, linears_of
from oxygen_ros.bench.preset import CAMERAS, WORD, BenchRobot, ModelPreset
from oxygen_ros.models.layers import QkvLinear
from oxygen_ros.models.packed import PackedLinear
from oxygen_ros.models.pi05.config import PRESETS, Pi05Config
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network, random_network
from oxygen_ros.models.pi05.processor import PlainProcessor
from oxygen_ros.observation import Observation


class Pi05Preset(ModelPreset):
    """A preset's sizes with three cameras and a robot's joints."""

    ablation = "oxygen_ros.bench.pi05.ablation"

    def __init__(self, config: Pi05Config, robot: BenchRobot) -> None:
        self.config = config
        self.robot = robot
        self.image_size = (config.vision.image_size, config.vision.image_size)
        self.most_prompt = config.max_prompt

    @classmethod
    def make(
        cls, preset: str, robot: BenchRobot, *, horizon: int | None = None, denoise_steps: int | None = None
    ) -> Self:
        config = PRESETS[preset]
        return cls(
            replace(
                config,
                cameras=CAMERAS,
                joints=robot.joint_names,
                action_dim=max(config.action_dim, robot.actions),
                horizon=config.horizon if horizon is None else horizon,
                denoise_steps=config.denoise_steps if denoise_steps is None else denoise_steps,
            ),
            robot,
        )

    def draw_weights(self, seed: int, dtype: torch.dtype, device: torch.device) -> Network:
        network = random_network(self.config, seed, dtype, device)
        network.pack()
        return network

    def make_model(self, weights: nn.Module) -> Pi05:
        assert isinstance(weights, Network)
        model = Pi05(weights, self.make_processor())
        model.spec = replace(model.spec, eos_ids=())
        return model

    def make_processor(self) -> PlainProcessor:
        """The processor of our own checkpoint folders, over a vocabulary of words: every word and
        sign is one token."""
        tokenizer = Tokenizer(models.WordLevel({"<unk>": 3, WORD: 4}, unk_token="<unk>"))
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()

        def span(count: int) -> dict[str, list[float]]:
            return {"q01": [-1.0] * count, "q99": [1.0] * count}

        raw = {"actions": {"joints": list(self.config.joints[: self.robot.actions])}}
        stats = {"state": span(self.robot.joints), "actions": span(self.robot.actions)}
        return PlainProcessor(self.config, tokenizer, raw, stats)

    def count_prompt(self, observation: Observation) -> int:
        inputs = self.make_processor().process(observation, torch.device("cpu"), torch.float32)
        return inputs.tokens.shape[0]

    def count_prefix(self, prompt_tokens: int) -> int:
        return len(self.robot.cameras) * self.config.vision.tokens + prompt_tokens

    def floors(self, weights: nn.Module, prefix_tokens: int) -> ComponentFloors:
        assert isinstance(weights, Network)
        return ComponentFloors(
            prefill_products(weights, len(self.robot.cameras), prefix_tokens),
            denoise_products(weights, self.config.denoise_steps),
            lambda rows: decode_products(weights, rows),
        )


def prefill_products(network: Network, cameras: int, prefix_tokens: int) -> list[Product]:
    """Vision tower over all cameras, backbone over the prefix; of the last block only keys and values."""
    like, b = network.embedding, network.config.backbone
    products = linears_of(network.vision, like, cameras * network.config.vision.tokens)
    for block in list(network.blocks)[:-1]:
        products += linears_of(block, like, prefix_tokens)
    first = b.heads * b.head_dim
    qkv = network.blocks[-1].get_submodule("qkv")
    assert isinstance(qkv, QkvLinear | PackedLinear)
    size = (qkv.out_features - first, qkv.in_features)
    products.append(Product(lambda x: qkv.tail(x, first), size, like, prefix_tokens))
    return products


def denoise_products(network: Network, steps: int) -> list[Product]:
    """The action stream's layers, once a step; the modulations were computed at load."""
    rows, like, expert = network.config.horizon, network.embedding, network.expert
    products = linears_of(expert.action_in, like, rows, steps) + linears_of(
        expert.action_out, like, rows, steps
    )
    for block in expert.blocks:
        for name, layer in block.named_children():
            if not name.endswith("steer"):
                products += linears_of(layer, like, rows, steps)
    return products


def decode_products(network: Network, rows: int) -> list[Product]:
    """The backbone's layers and the head over the rows of one decode step."""
    table = network.embedding
    products = [product for block in network.blocks for product in linears_of(block, table, rows)]
    products.append(Product(lambda x: F.linear(x, table), (table.shape[0], table.shape[1]), table, rows))
    return products
