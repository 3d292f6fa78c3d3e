# SPDX-License-Identifier: Apache-2.0
"""Parameters to the rule of joining: what is set, what warm-up decides, what the model decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.node.parameters import FIXED
from oxygen_ros.node.settings import Settings
from oxygen_ros.robot.overlap import JoinRule

SPEC = ModelSpec(
    family="toy", cameras=("top",), image_size=(2, 2), joints=("a",), action_joints=("a",),
    representation="position", horizon=16, action_dim=1, step=0.1, denoise_steps=5, vocabulary=2,
    eos_ids=(0,), max_prefix=1, cache_bytes_per_token=1,
)  # fmt: skip


def rule(latency: float = 0.0, spec: ModelSpec = SPEC, **changes: Any) -> JoinRule:
    values = {name: row.default for name, row in FIXED.items()}
    return Settings({**values, **changes}).make_join_rule(spec, latency)


def test_by_default_each_chunk_stands_alone_and_what_is_left_would_weigh() -> None:
    default = JoinRule(mode="replace", delay=2, schedule="exp", max_weight=5.0, tolerance=0.5)
    assert rule(0.17) == default


@pytest.mark.parametrize(("latency", "steps"), [(0.0, 0), (0.001, 1), (0.1, 1), (0.101, 2), (99.0, 16)])
def test_the_delay_is_the_latency_in_whole_steps_and_never_less(latency: float, steps: int) -> None:
    assert rule(latency).delay == steps


def test_what_is_set_does_not_depend_on_the_machine() -> None:
    fixed = {"join.delay_steps": 3, "join.overlap": 0.42, "join.max_weight": 2.0, "join.mode": "blend"}
    assert rule(0.01, **fixed) == rule(5.0, **fixed) == JoinRule("blend", 3, 4, "exp", 2.0, 0.5)
    assert rule(0.0, replace(SPEC, step=1.0), **{"join.overlap": 0.1}).overlap == 1
