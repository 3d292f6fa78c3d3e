# SPDX-License-Identifier: Apache-2.0
"""The model that ships does what its page says, on a few unseen layouts; `oxygen_eval` counts hundreds."""

from __future__ import annotations

from pathlib import Path

import pytest

from oxygen_ros.demo.training.evaluate import evaluate
from oxygen_ros.demo.training.rollout import EpisodeSetup
from oxygen_ros.models import load_model

MODEL = Path(__file__).resolve().parents[3] / "resource" / "demo_model"


@pytest.mark.parametrize("task", ["one", "two"])
def test_it_fills_the_box(task: str) -> None:
    """All of them mostly; another CPU rounds differently, so one may fail."""
    setup = EpisodeSetup(hold=2.0, narration=False)
    (run,) = evaluate(
        load_model(MODEL), modes=["oxygen"], tasks=[task], episodes=4, first_seed=1000, setup=setup,
        profiles=MODEL,
    )  # fmt: skip
    assert run.success >= 0.75
