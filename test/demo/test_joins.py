# SPDX-License-Identifier: Apache-2.0
"""The measurement of joins: it distinguishes modes, is repeatable, and the command writes it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from oxygen_ros.demo.joins import SCATTER, JoinMeasurement, JoinPlan, ScatteredExpert, main
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.observation import Leftover
from oxygen_ros.robot.joining import JoinRule

torch.set_num_threads(1)


def measure(mode: str) -> object:
    return JoinMeasurement(
        JoinPlan(JoinRule(mode), 0.2, horizon=10, period=0.1, seconds=1.2, seed=1)
    ).measure()


def test_joined_chunks_jump_less_and_the_same_run_gives_the_same_figures() -> None:
    replace, blend, rtc = (measure(mode) for mode in ("replace", "blend", "rtc"))
    assert blend.speed_jump[0] < 0.6 * replace.speed_jump[0]
    assert rtc.speed_jump[0] < 0.6 * replace.speed_jump[0]
    assert rtc.acceleration_jump[0] < replace.acceleration_jump[0]
    assert replace.joins == rtc.joins >= 8
    assert measure("rtc") == rtc


def test_the_policy_scatters_about_the_plan_and_follows_a_guide() -> None:
    """Alone as far as it says, one chunk in twenty; held to a way 0.1 rad off, it goes there."""
    state = World(1).state()
    policy = ScatteredExpert(Task(), horizon=6, step=0.05, denoise_steps=10, seed=0)
    chunks, plans = zip(*(policy.act(state, None) for _ in range(12)), strict=True)
    assert all((plan == plans[0]).all() for plan in plans)
    spread = np.std(np.stack(chunks) - plans[0], axis=0)[-1]
    assert spread[:6] == pytest.approx(SCATTER[:6], rel=0.8)
    aim = plans[0] + 0.1
    guided, _ = policy.act(state, Leftover(aim, np.ones(6), 10.0))
    np.testing.assert_allclose(guided[:, :6], aim[:, :6], atol=0.02)


def test_the_command_writes_figures_and_a_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures, picture = tmp_path / "joins.json", tmp_path / "joins.png"
    arguments = ["--delays", "0", "--seconds", "0.5", "--json", str(figures), "--png", str(picture)]
    assert main(arguments) == 0
    rows = json.loads(figures.read_text())
    assert [row["figures"]["mode"] for row in rows] == ["replace", "blend", "rtc"]
    assert rows[0]["plan"]["seconds"] == 0.5
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert len(capsys.readouterr().out.splitlines()) == 5
