# SPDX-License-Identifier: Apache-2.0
"""Views for the vision tower: another layout in every frame, arms where they can stand, a loss that falls."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training.batch import Dataset
from oxygen_ros.demo.training.learn import Trainer, TrainingPlan
from oxygen_ros.demo.training.records import read_shards
from oxygen_ros.demo.training.views import collect_views, draw_arm
from oxygen_ros.demo.training.vision_pretraining import learn_to_see


def test_every_view_is_another_layout(tmp_path: Path) -> None:
    assert collect_views(tmp_path, 0, 24, 32) == 24
    shard = read_shards(tmp_path)[0]
    assert len(set(shard.records["seed"].tolist())) == 24
    labeled = shard.records[shard.records["valid"] > 0]
    assert len(labeled) > 15
    ways = np.abs(labeled["targets"][:, 0, :6] - labeled["joints"][:, :6])
    assert (ways <= g.JOINT_SPEED[:6] * 0.1 * 1.01).all(), "labels begin where the arm is"
    colors = shard.records["blocks"][:, :, 4]
    assert {0.0, 1.0, 2.0} <= set(colors.flatten().tolist())
    held = np.abs(shard.records["joints"][:, 6] - g.BLOCK) < 1e-6
    assert 0 < held.mean() < 0.6
    assert collect_views(tmp_path, 0, 24, 32) == 0, "a shard that exists is left alone"


def test_an_arm_put_down_stands_still(rng: np.random.Generator) -> None:
    """Open fingers are beside blocks, not in them: nothing is pushed away when time goes on."""
    world = World(0)
    try:
        for seed in range(30):
            world.reset(seed)
            arm = draw_arm(world.state(), rng, to_box=False)
            if arm is None:
                continue
            world.place_arm(arm)
            before = world.state()
            world.advance(0.2)
            after = world.state()
            np.testing.assert_allclose(after.positions, arm, atol=0.02)
            moved = [
                np.linalg.norm(np.subtract(a.position, b.position))
                for a, b in zip(before.blocks, after.blocks, strict=True)
            ]
            assert max(moved) < 0.01
    finally:
        world.close()


def test_the_tower_learns_alone(small: Any, tmp_path: Path) -> None:
    """Nothing but the tower changes, in what is trained and in what would be exported."""
    data = Dataset(small.folder / "data", small.base)
    trainer = Trainer(small.base, TrainingPlan(), tmp_path)
    before = {k: v.clone() for k, v in trainer.average.items()}
    losses: list[float] = []
    ticks = itertools.count()  # 60 steps, however fast the machine is
    learn_to_see(
        trainer, data, seconds=60, batch=16, tell=lambda step, loss: losses.append(loss),
        clock=lambda: float(next(ticks)),
    )  # fmt: skip
    assert len(losses) in (59, 60)
    assert np.mean(losses[-5:]) < 0.8 * np.mean(losses[:3])
    again = Trainer(small.base, TrainingPlan(), tmp_path)
    assert again.step == 0
    for name, tensor in again.average.items():
        assert torch.equal(tensor, before[name]) != name.startswith("vision."), name
