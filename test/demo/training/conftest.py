# SPDX-License-Identifier: Apache-2.0
"""A few labeled frames and a network far smaller than the demo's, made once for all training tests."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch

from oxygen_ros.demo.training.batch import Dataset
from oxygen_ros.demo.training.checkpoints import Base, export, write_base
from oxygen_ros.demo.training.collect import collect_shard
from oxygen_ros.demo.training.learn import Trainer, TrainingPlan
from oxygen_ros.demo.training.records import read_shards
from oxygen_ros.models.pi05.config import PRESETS, Pi05Config


def small_config() -> Pi05Config:
    demo = PRESETS["demo"]
    return replace(
        demo,
        vision=replace(demo.vision, width=16, depth=1, mlp_dim=16, heads=2, image_size=32, patch_size=16),
        backbone=replace(demo.backbone, width=32, depth=3, heads=2, head_dim=8, mlp_dim=32),
        expert=replace(demo.expert, width=16, depth=3, heads=2, head_dim=8, mlp_dim=16),
        denoise_steps=2,
    )


@dataclass(frozen=True)
class Small:
    """Frames, the base of a run over them, and an exported network of random weights."""

    folder: Path
    base: Base
    data: Dataset
    model: Path


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Small:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("train")
    collect_shard(folder / "data", 0, 60, 32)
    config = small_config()
    base = write_base(folder / "base", config, read_shards(folder / "data"))
    trainer = Trainer(base, TrainingPlan(seed=3), folder / "random")
    with torch.no_grad():  # unsteered norms would hide mistakes in the steering
        generator = torch.Generator().manual_seed(5)
        for name, tensor in trainer.network.named_parameters():
            if "steer" in name:
                tensor.add_(torch.randn(tensor.shape, generator=generator) * 0.2)
    export(trainer.network, base, folder / "model", "A test model.")
    return Small(folder, base, Dataset(folder / "data", base), folder / "model")


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)
