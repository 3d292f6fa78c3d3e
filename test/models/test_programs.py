# SPDX-License-Identifier: Apache-2.0
"""Programs of a model with two action experts: each runs its own, into an output of the caller's own.

What a family's passes compute is in its own tests (pi05/test_programs.py).
"""

from __future__ import annotations

from typing import Any

import torch

from oxygen_ros.actions import joint_space
from oxygen_ros.models.flow import Flow
from oxygen_ros.models.graphs import Work
from oxygen_ros.models.interface import ExpertSpec, Rows
from oxygen_ros.models.programs import Programs, StaticPasses, Velocity

EXPERTS = [
    ExpertSpec("arm", joint_space("ab"), horizon=4, width=2, step=0.1, denoise_steps=2),
    ExpertSpec("base", joint_space("a"), horizon=3, width=1, step=0.5, denoise_steps=1),
]
CPU = torch.device("cpu")


class Passes(StaticPasses):
    """An expert's velocity is its number + 1."""

    def __init__(self) -> None:
        self.buckets = [1]
        self.padding_row = torch.zeros(len(Rows.FIELDS), 1, dtype=torch.int64)

    def stage(self, inputs: Any, slot: int) -> int | None:
        return 1

    def prefill(self, bucket: int) -> torch.Tensor:
        return torch.zeros(1)

    def aim(self, slot: int) -> None:
        pass

    def begin_denoise(self, expert: int) -> Velocity:
        return lambda x, step: torch.full_like(x, expert + 1.0)

    def extend(self, rows: Rows) -> torch.Tensor:
        return torch.zeros(rows.wanted, 5)


class Static:
    """Gives the same output tensor every time, as a graph does."""

    def capture(self, work: Work) -> Work:
        output = work().clone()
        return lambda: output.copy_(work())


def test_each_expert_runs_its_own_program() -> None:
    flows = [Flow([1.0, 0.5]), Flow([1.0])]
    programs = Programs(Passes(), list(zip(EXPERTS, flows, strict=True)), Static(), 4, CPU)
    kept = []
    for at, spec in enumerate(EXPERTS):
        for start in (0.0, 3.0):
            noise = torch.full((spec.horizon, spec.width), start)
            # Time runs from 1 to 0 at the velocity.
            kept.append((programs.denoise(0, noise, None, at), noise - (at + 1)))
    for actions, expected in kept:
        torch.testing.assert_close(actions, expected)
