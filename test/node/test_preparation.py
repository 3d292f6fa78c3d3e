# SPDX-License-Identifier: Apache-2.0
"""What configure finds out before the first tick, without ROS."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oxygen_ros.engine import Engine
from oxygen_ros.engine.budget import bucket_of
from oxygen_ros.models import load_model
from oxygen_ros.node.device import is_device_lost
from oxygen_ros.node.layout import make_layout
from oxygen_ros.node.parameters import ParameterProblem
from oxygen_ros.node.preparation import PreparationError, load, prepare, resolve_folder
from oxygen_ros.node.settings import make_settings

MODEL = Path(__file__).resolve().parents[2] / "resource" / "demo_model"
VALUES = {
    "cameras.top.topic": "/top",
    "cameras.wrist.topic": "/wrist",
    "text.memory.max_tokens": 8,
    "text.answer.max_tokens": 8,
    "budget.max_rows": 16,
}


def _prepare(**changes: object) -> Engine:
    settings = make_settings({**VALUES, **changes})
    model = load_model(MODEL)
    prepared = prepare(settings, model, make_layout(settings, model.spec), lambda: False)
    assert prepared.latency.chunk > 0
    return prepared.engine


@pytest.mark.parametrize("mode", ["oxygen", "isolated"])
def test_the_warm_up_leaves_nothing_behind(mode: str) -> None:
    engine = _prepare(mode=mode)
    assert engine.mode == mode
    assert engine.live == 0
    assert engine.prefixes.used == engine.suffixes.used == 0
    assert engine.counters.ticks == engine.counters.prefills == engine.counters.finished == 0
    engine.check_integrity()


def test_the_warm_up_knows_the_cost_of_every_size() -> None:
    engine = _prepare()
    measured = {bucket_of(rows) for rows in (1, 2, 4, 8, 16)}
    assert measured <= set(engine.costs._steps)
    assert engine.costs.predict(16) > 0


def test_slots_are_planned_for_the_answers_that_may_be_under_way_together() -> None:
    few, many = (_prepare(**{"text.answer.at_once": count}).suffixes.size for count in (1, 5))
    assert many - few == 4


def test_texts_that_cannot_be_asked_are_found_before_the_first_tick() -> None:
    with pytest.raises(PreparationError, match=r"text\.narration\.adapter.*'polite'.*there are none"):
        _prepare(**{"text.narration.adapter": "polite"})
    with pytest.raises(PreparationError, match=r"text\.memory\.prompt"):
        _prepare(**{"text.memory.prompt": ""})


def test_a_period_longer_than_the_chunk_is_refused_with_both_numbers() -> None:
    with pytest.raises(PreparationError, match=r"'period'.*= 5.* s, but a chunk covers 16 x 0\.1 = 1\.6 s"):
        _prepare(period=5.0)


def test_a_device_that_cannot_compute_is_named() -> None:
    """What is wrong with it is models.loading's `check_device`."""
    with pytest.raises(ParameterProblem, match="parameter 'device': device \"gpu\" is no torch device"):
        load(make_settings({**VALUES, "device": "gpu"}), load_model, lambda: False)
    assert not is_device_lost(torch.device("cpu"), RuntimeError("CUDA error: an illegal memory access"))


def test_folders_of_packages() -> None:
    assert resolve_folder("/models/a") == "/models/a"
    with pytest.raises(PreparationError, match="package 'no_such_package' is not installed"):
        resolve_folder("package://no_such_package/resource/model")
    assert resolve_folder("package://oxygen_ros/resource/demo_model").endswith("/resource/demo_model")
