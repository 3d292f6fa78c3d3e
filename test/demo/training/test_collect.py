# SPDX-License-Identifier: Apache-2.0
"""Frames and their labels: what the expert did, what is true, and the same again from the same seed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training import collect
from oxygen_ros.demo.training.records import HORIZON, NOT_YET, PHASES, RECORD, read_shards, write_shard


def test_a_label_is_what_the_expert_did(small: Any) -> None:
    """The commands of one frame are those of the next, one step on: all came from one run."""
    records = read_shards(small.folder / "data")[0].records
    followed = 0
    for a, b in pairwise(records):
        if a["seed"] == b["seed"] and abs(b["time"] - a["time"] - 0.1) < 1e-3 and a["valid"] > b["valid"]:
            np.testing.assert_array_equal(a["targets"][1 : a["valid"]], b["targets"][: a["valid"] - 1])
            followed += 1
    assert followed > 10
    assert (records["valid"] >= 4).all()
    assert (records["valid"] <= HORIZON).all()


def test_commands_lead_to_the_next_frames(small: Any) -> None:
    """Half a second on, the arm is where it was sent (within what its servos lag)."""
    records = read_shards(small.folder / "data")[0].records
    errors = [
        np.abs(a["targets"][3][:6] - b["joints"][:6]).max()
        for a, b in zip(records[:-4], records[4:], strict=True)
        if a["seed"] == b["seed"] and abs(b["time"] - a["time"] - 0.4) < 1e-3 and a["valid"] >= 5
    ]
    assert len(errors) > 10
    assert np.median(errors) < 0.12


def test_counts_and_phases_are_true(small: Any) -> None:
    records = read_shards(small.folder / "data")[0].records
    for record in records:
        now = int(record["inside"][0])
        assert now != NOT_YET
        assert record["phase"] != PHASES.index("done") or now >= record["count"]
        on_show = record["blocks"][:, 4] == record["colour"]
        assert on_show.sum() + now in (3, 4), "blocks of the color are outside or inside, none is lost"
        holds_back = [int(k) for k in record["inside"] if k != NOT_YET]
        assert holds_back == sorted(holds_back, reverse=True), "blocks do not leave the box"


def test_the_same_seed_makes_the_same_shard(small: Any, tmp_path: Path) -> None:
    assert collect.collect_shard(tmp_path, 0, 40, 32) >= 40
    again = read_shards(tmp_path)[0]
    first = read_shards(small.folder / "data")[0]
    n = 40
    np.testing.assert_array_equal(again.records[:n], first.records[:n])
    np.testing.assert_array_equal(again.frames[:n], first.frames[:n])
    assert collect.collect_shard(tmp_path, 0, 40, 32) == 0, "a shard that exists is left alone"


def test_a_policy_drives_between_labels(tmp_path: Path) -> None:
    """DAgger: frames after the policy's moves are marked, and labeled by the expert."""
    calls: list[int] = []

    def stay(
        pictures: collect.Frames, joints: np.ndarray, task: Task, remembered: int, stamp: int
    ) -> np.ndarray:
        assert set(pictures) == {"top", "wrist"}
        assert remembered in (0, 1, 2, NOT_YET)
        calls.append(stamp)
        return np.repeat(joints[None], HORIZON, axis=0)

    collect.collect_shard(tmp_path, 1, 20, 32, stay, "dagger")
    records = read_shards(tmp_path)[0].records
    assert calls
    assert 0 < records["policy"].mean() < 1
    assert (records["seed"] >= collect.FIRST_SEED).all()


def test_blocks_inside_are_laid_out(rng: np.random.Generator) -> None:
    world = World(0)
    try:
        for already in (0, 1, 2):
            collect.lay_out(world, Task("blue", 2), already, 17, rng)
            world.advance(0.3)
            assert world.blocks_in_box("blue") == already
            assert sum(b.color == "blue" for b in world.state().blocks) in (3, 4)
    finally:
        world.close()


def test_a_push_stays_within_the_joints_ranges(rng: np.random.Generator) -> None:
    world = World(0)
    try:
        for _ in range(30):
            push = collect.draw_push(world.state(), rng)
            path = collect.path_to(world.state().targets, push, 0.2)
            np.testing.assert_allclose(path[-1], push)
            assert (push >= g.JOINT_LOWER).all()
            assert (push <= g.JOINT_UPPER).all()
            speed = np.abs(np.diff(path, axis=0)).max(0) / g.CONTROL_PERIOD
            assert (speed <= g.JOINT_SPEED * 1.05).all()
    finally:
        world.close()


def test_shards_of_another_layout_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path, "demo0000", np.zeros((2, 2, 8, 8, 3), np.uint8), np.zeros(2, RECORD))
    assert len(read_shards(tmp_path)[0].records) == 2
    write_shard(tmp_path, "demo0001", np.zeros((3, 2, 8, 8, 3), np.uint8), np.zeros(2, RECORD))
    with pytest.raises(ValueError, match="2 records for 3 frames"):
        read_shards(tmp_path)
