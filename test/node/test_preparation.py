# SPDX-License-Identifier: Apache-2.0
"""What configure finds out before the first tick, without ROS."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oxygen_ros.engine import Engine
from oxygen_ros.engine.budget import bucket_of
from oxygen_ros.models import load_model
from oxygen_ros.node.parameters import FIXED, ParameterProblem
from oxygen_ros.node.poison import is_poisoned
from oxygen_ros.node.preparation import PreparationError, check_device, prepare, resolve_folder
from oxygen_ros.node.settings import Settings

MODEL = Path(__file__).resolve().parents[2] / "resource" / "demo_model"
VALUES = {
    **{name: row.default for name, row in FIXED.items()},
    "cameras.top.topic": "/top",
    "cameras.wrist.topic": "/wrist",
    "text.memory.max_tokens": 8,
    "text.answer.max_tokens": 8,
    "budget.max_rows": 16,
}


def _prepare(**changes: object) -> Engine:
    settings = Settings({**VALUES, **changes})
    model = load_model(MODEL)
    prepared = prepare(settings, model, settings.describe_robot(model.spec), lambda: False)
    assert prepared.latency.chunk > 0
    return prepared.engine


@pytest.mark.parametrize("mode", ["oxygen", "isolated"])
def test_the_warm_up_leaves_nothing_behind(mode: str) -> None:
    engine = _prepare(mode=mode)
    assert engine.mode == mode
    assert engine.live == 0
    assert engine.frames.used == engine.suffixes.used == 0
    assert engine.counters.ticks == engine.counters.prefills == engine.counters.finished == 0
    engine.check_integrity()


def test_the_warm_up_knows_the_cost_of_every_size() -> None:
    engine = _prepare()
    measured = {bucket_of(rows) for rows in (1, 2, 4, 8, 16)}
    assert measured <= set(engine.costs._seconds)
    assert engine.costs.predict(16) > 0


def test_texts_that_cannot_be_asked_are_found_before_the_first_tick() -> None:
    with pytest.raises(PreparationError, match=r"text\.narration\.adapter.*'polite'.*there are none"):
        _prepare(**{"text.narration.adapter": "polite"})
    with pytest.raises(PreparationError, match=r"text\.memory\.prompt"):
        _prepare(**{"text.memory.prompt": ""})


def test_a_period_longer_than_the_chunk_is_refused_with_both_numbers() -> None:
    with pytest.raises(PreparationError, match=r"'period'.*= 5.* s, but a chunk covers 16 x 0\.1 = 1\.6 s"):
        _prepare(period=5.0)


def test_devices() -> None:
    check_device("cpu")
    with pytest.raises(ParameterProblem, match="'device' is 'gpu'"):
        check_device("gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ParameterProblem, match="sees 0 CUDA devices"):
            check_device("cuda:0")
    assert not is_poisoned(torch.device("cpu"), RuntimeError("CUDA error: an illegal memory access"))


def test_a_torch_without_code_for_the_gpu_is_refused_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenRAL/openral PR#167: a build without sm_110 would fail at every operation on a Jetson Thor."""
    built = ["sm_80", "sm_90"]
    cuda = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda device: (11, 0),
        "get_device_name": lambda device: "Thor",
        "get_arch_list": lambda: built,
    }
    for name, answer in cuda.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    with pytest.raises(
        ParameterProblem, match=r"built for sm_80, sm_90, but cuda:0 \(Thor\) is sm_110; install"
    ):
        check_device("cuda:0")
    for enough in ("sm_110", "sm_110a", "compute_90"):
        built[:] = ["sm_80", enough]
        check_device("cuda:0")


def test_folders_of_packages() -> None:
    assert resolve_folder("/models/a") == "/models/a"
    with pytest.raises(PreparationError, match="package 'no_such_package' is not installed"):
        resolve_folder("package://no_such_package/resource/model")
    assert resolve_folder("package://oxygen_ros/resource/demo_model").endswith("/resource/demo_model")
