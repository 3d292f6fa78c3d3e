# SPDX-License-Identifier: Apache-2.0
"""The plain computation that speed is measured against gives the served actions, with any improvements."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch

from oxygen_ros.bench.pi05.plain import Improvements, PlainActionPath
from oxygen_ros.bench.pi05.preset import Pi05Preset
from oxygen_ros.bench.preset import ROBOTS, Scene
from oxygen_ros.models import Capacity
from oxygen_ros.models.pi05.network import random_network

torch.set_num_threads(1)
NAMES = [field.name for field in fields(Improvements)]


@pytest.fixture(scope="module")
def served():
    """A demo-sized model with the third camera masked, and its actions."""
    preset = Pi05Preset.make("demo", ROBOTS["libero"])
    network = random_network(preset.config, 5)
    model = preset.make_model(network)
    model.allocate(Capacity(2, 1, 8, 1))
    inputs = model.process(Scene(preset, prompt_tokens=30, distinct=1, seed=1).at(0))
    noise = torch.randn(16, network.config.action_dim, generator=torch.Generator().manual_seed(2))
    model.encode(inputs, 0)
    return network, inputs, noise, model.denoise(0, noise)


@pytest.mark.parametrize(
    "on",
    [
        Improvements(),
        *(Improvements(**{name: True}) for name in NAMES),
        Improvements(**dict.fromkeys(NAMES, True)),
    ],
)
def test_every_way_gives_the_served_actions(served, on: Improvements) -> None:
    network, inputs, noise, expected = served
    plain = PlainActionPath(network, on)
    for _ in range(2):  # a second chunk reads the same cache
        actions = plain.denoise(plain.prefill(inputs), noise)
        torch.testing.assert_close(actions, expected, atol=1e-6, rtol=1e-6)


def test_padding_is_computed_unless_packed(served) -> None:
    network, inputs, _, _ = served
    padded, packed = (PlainActionPath(network, Improvements(packed=p)).prefill(inputs) for p in (False, True))
    tokens = network.config.vision.tokens
    assert padded.cache[0][0].shape[0] == 3 * tokens + network.config.max_prompt
    assert packed.cache[0][0].shape[0] == 2 * tokens + 30
    assert padded.position == packed.position == 2 * tokens + 30
