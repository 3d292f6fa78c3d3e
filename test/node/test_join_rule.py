# SPDX-License-Identifier: Apache-2.0
"""Parameters to the rule of joining: what is set, what warm-up decides, what the model decides."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from oxygen_ros.actions import joint_space
from oxygen_ros.models.interface import ExpertSpec
from oxygen_ros.node.settings import make_settings
from oxygen_ros.robot.joining import JoinRule

EXPERT = ExpertSpec("arm", joint_space(["a"]), horizon=16, width=1, step=0.1, denoise_steps=5)


def rule(latency: float = 0.0, expert: ExpertSpec = EXPERT, **changes: Any) -> JoinRule:
    return make_settings(changes).join.make_rule(expert, latency)


def test_by_default_each_chunk_stands_alone_and_what_is_left_would_weigh() -> None:
    default = JoinRule(mode="replace", delay=2, schedule="exp", max_weight=5.0, tolerance=0.5)
    assert rule(0.17) == default


@pytest.mark.parametrize(("latency", "steps"), [(0.0, 0), (0.001, 1), (0.1, 1), (0.101, 2), (99.0, 16)])
def test_the_delay_is_the_latency_in_whole_steps_and_never_less(latency: float, steps: int) -> None:
    assert rule(latency).delay == steps


def test_what_is_set_does_not_depend_on_the_machine() -> None:
    fixed = {"join.delay_steps": 3, "join.overlap": 0.42, "join.max_weight": 2.0, "join.mode": "blend"}
    assert rule(0.01, **fixed) == rule(5.0, **fixed) == JoinRule("blend", 3, 4, "exp", 2.0, 0.5)
    assert rule(0.0, replace(EXPERT, step=1.0), **{"join.overlap": 0.1}).overlap == 1
