# SPDX-License-Identifier: Apache-2.0
"""The presets' sizes, and config.json there and back."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models_scene import demo_config, make_processor, task

from oxygen_ros.engine import Budget, Engine
from oxygen_ros.models import Capacity
from oxygen_ros.models.pi05.config import PRESETS, from_dimensions, read_config, to_dimensions
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network, random_network
from oxygen_ros.models.pi05.weights import sources
from oxygen_ros.observation import Observation

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "test" / "golden"


def count(preset: str, part: str = "") -> int:
    with torch.device("meta"):
        network = Network(PRESETS[preset])
    return sum(p.numel() for name, p in network.named_parameters() if name.startswith(part))


def test_the_full_preset_is_pi05() -> None:
    """3.35 B in all: SigLIP So400m and its projector, Gemma 2B, an expert of 0.43 B."""
    assert count("pi05") == 3_353_433_872
    assert count("pi05", "vision") == 412_442_352 + 2_361_344
    assert count("pi05", "blocks") + count("pi05", "embedding") + count("pi05", "norm") == 2_508_531_712
    assert count("pi05", "expert") == 430_098_464
    p = PRESETS["pi05"]
    assert (p.vision.tokens, p.max_prefix, p.horizon, p.action_dim) == (256, 968, 50, 32)


def test_the_mini_preset_is_as_the_issue_says() -> None:
    p = PRESETS["pi05_mini"]
    b, e, v = p.backbone, p.expert, p.vision
    assert (b.width, b.depth, b.mlp_dim, b.heads, b.head_dim, b.kv_heads) == (1024, 8, 4096, 8, 128, 1)
    assert (e.width, e.mlp_dim, v.width, v.depth, v.tokens, p.vocabulary) == (512, 1024, 256, 4, 16, 8192)


def test_the_demo_preset_has_the_shipped_model_s_sizes() -> None:
    """But for the special ids, which are its tokenizer's."""
    shipped = json.loads((ROOT / "resource" / "demo_model" / "config.json").read_text())
    p = PRESETS["demo"]
    assert replace(from_dimensions(shipped), pad_id=p.pad_id, eos_id=p.eos_id, bos_id=p.bos_id) == p
    assert count("demo") == 935_111


@pytest.mark.parametrize("preset", PRESETS)
def test_config_json_there_and_back(preset: str) -> None:
    config = PRESETS[preset]
    assert from_dimensions(json.loads(json.dumps(to_dimensions(config)))) == config


@pytest.mark.parametrize("preset", PRESETS)
def test_every_weight_has_a_source(preset: str) -> None:
    with torch.device("meta"):
        names = set(Network(PRESETS[preset]).state_dict())
    assert names == set(sources(PRESETS[preset]))


def test_a_policy_config_of_lerobot() -> None:
    """It names Gemma variants; the sizes are the full preset's, and times are rounded lerobot's way."""
    folder = GOLDEN / "pi05_lerobot"
    config = read_config(folder, json.loads((folder / "config.json").read_text()))
    full = PRESETS["pi05"]
    assert (config.backbone, config.expert) == (full.backbone, full.expert)
    assert config.time_rule == "exact"
    assert config.cameras == full.cameras
    assert (config.horizon, config.action_dim) == (10, 32)


def test_the_mini_preset_ticks_in_an_engine() -> None:
    """Random weights give numbers of ordinary size and text that does not repeat one token."""
    config = replace(PRESETS["pi05_mini"], joints=demo_config().joints, denoise_steps=2, step=0.1)
    network = random_network(config, seed=0)
    engine = Engine(
        Pi05(network, make_processor(config)), Capacity(prefixes=2, suffixes=1, suffix_tokens=32, max_rows=16)
    )
    chance = np.random.default_rng(0)
    images = {name: chance.integers(0, 256, (64, 64, 3), dtype=np.uint8) for name in config.cameras}
    with engine.observe(Observation(1, images, np.zeros(7), "go")) as encoded:
        chunk = engine.act(encoded)
        engine.ask(encoded, task("memory", max_tokens=6))
    (text,) = engine.advance(Budget(steps=8, rows=16))
    engine.check_integrity()
    assert chunk.shape == (50, 7)
    assert np.isfinite(chunk).all()
    actions = engine.model.denoise(
        encoded.slot, torch.randn(50, 32, generator=torch.Generator().manual_seed(0))
    )
    assert 0.1 < actions.std() < 10
    assert len(text.tokens) == 6 or text.finish_reason == "eos"
    assert len(set(text.tokens)) > 1
    assert not math.isnan(text.seconds)


def test_random_networks_come_from_their_seed() -> None:
    a, b, c = (random_network(PRESETS["demo"], seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert not torch.equal(a["embedding"], c["embedding"])
