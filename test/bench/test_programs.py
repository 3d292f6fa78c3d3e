# SPDX-License-Identifier: Apache-2.0
"""The programs beside the benchmark: two processes on one device, the GPU check; figures of a device."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from oxygen_ros.bench import parallel
from oxygen_ros.bench.device import find_energy
from oxygen_ros.bench.floors import count_flops, weight_bytes
from oxygen_ros.bench.pi05 import gpu
from oxygen_ros.bench.pi05.gpu import (
    FULL_HEAD_DIM,
    CallOutputs,
    DeviceCheck,
    compute,
    difference,
    small_preset,
)
from oxygen_ros.bench.pi05.preset import decode_products, denoise_products, prefill_products
from oxygen_ros.models.pi05.network import random_network

ROOT = Path(__file__).resolve().parents[2]
CPU = torch.device("cpu")


def test_parallel(tmp_path: Path) -> None:
    """One acts and one talks; both are measured against isolated execution in the same run."""
    file = tmp_path / "out.json"
    assert parallel.main(["--n", "2", "--seconds", "0.1", "--rounds", "1", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["complete"]
    isolated, both = document["runs"]
    assert (isolated["mode"], both["mode"]) == ("isolated", "parallel")
    assert isolated["ratio_to_isolated"] == 1
    assert both["texts_per_tick"] > 0
    assert both["peak_bytes"] > isolated["peak_bytes"], "two processes hold two sets of weights"


def test_masked_attention_at_full_head_dimension() -> None:
    """The GPU's path, captured and over the whole pool, gives the results of the CPU's path."""
    preset = small_preset(FULL_HEAD_DIM)
    config = preset.config
    assert config.backbone.head_dim == config.expert.head_dim == FULL_HEAD_DIM
    network = random_network(config, seed=4)
    exact = compute(preset, network, CPU, torch.float32, over_pool=False)
    found = compute(preset, network, CPU, torch.float32, over_pool=True, captured=True)
    for part in ("prefill", "denoise", "extend"):
        assert difference(getattr(found, part), getattr(exact, part)) < 1e-5, part


def test_what_is_not_finite_is_never_fine() -> None:
    off = difference(torch.tensor([1.0, torch.nan]), torch.ones(2))
    assert not DeviceCheck("extend", "float32", off, 1.0).ok
    assert DeviceCheck("extend", "float32", difference(torch.ones(2), torch.ones(2)), 0.0).ok


def test_a_way_that_raises_is_wrong_and_the_others_are_compared(monkeypatch) -> None:
    def compute(preset, network, device, dtype, *, over_pool: bool, captured: bool = False) -> CallOutputs:
        if captured:
            raise RuntimeError("cuda:0 cannot capture its passes\nand so on")
        return CallOutputs(torch.ones(2), torch.ones(2), torch.ones(2))

    monkeypatch.setattr(gpu, "compute", compute)
    checks = gpu.compare(CPU)
    wrong = [check for check in checks if not check.ok]
    assert len(wrong) == 2 * 2, "one for each network and dtype"
    assert all(check.name.endswith("cannot capture its passes") for check in wrong)
    assert len(checks) == len(wrong) + 2 * 2 * 2 * 3


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_gpu_check_without_a_gpu(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu_check")], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 2, done.stderr
    assert "sees no NVIDIA GPU here; nothing was checked" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--ticks 0", "ticks must be 1 or more, got 0"),
        ("--json /nowhere/out.json", "folder /nowhere does not exist"),
    ],
)
def test_gpu_check_refuses(arguments: str, words: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "gpu_check"), "--rehearse", *arguments.split()],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "")
    assert words in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_floor_counts_every_product_once() -> None:
    """Demo sizes by hand: the widths are those of the preset, 50 image and 40 prompt tokens."""
    config = small_preset().config
    network = random_network(config, seed=0)
    v, b, e = config.vision, config.backbone, config.expert
    vision = 3 * v.patch_size**2 * v.width + v.width * b.width
    vision += v.depth * (4 * v.width**2 + 2 * v.width * v.mlp_dim)
    qkv = b.width * (b.heads + 2 * b.kv_heads) * b.head_dim
    block = qkv + b.heads * b.head_dim * b.width + 3 * b.width * b.mlp_dim
    kv = b.width * 2 * b.kv_heads * b.head_dim
    prefill = prefill_products(network, 2, 90)
    assert count_flops(prefill) == 2 * (50 * vision + 90 * ((b.depth - 1) * block + kv))
    head = config.vocabulary * b.width
    assert count_flops(decode_products(network, 7)) == 2 * 7 * (b.depth * block + head)
    assert weight_bytes(decode_products(network, 7)) == 4 * (b.depth * block + head)
    expert = e.width * (e.heads + 2 * e.kv_heads) * e.head_dim + e.heads * e.head_dim * e.width
    expert = e.depth * (expert + 3 * e.width * e.mlp_dim) + 2 * config.action_dim * e.width
    assert count_flops(denoise_products(network, 5)) == 5 * 2 * config.horizon * expert


def test_energy_of_a_jetson(tmp_path: Path) -> None:
    """12 V and 2.5 A on the module's rail are 30 W; other rails are parts of it."""
    monitor = tmp_path / "1-0040" / "hwmon" / "hwmon3"
    monitor.mkdir(parents=True)
    for channel, label, millivolts, milliamperes in ((1, "VDD_GPU", 900, 9000), (2, "VIN", 12000, 2500)):
        (monitor / f"in{channel}_label").write_text(f"{label}\n")
        (monitor / f"in{channel}_input").write_text(f"{millivolts}\n")
        (monitor / f"curr{channel}_input").write_text(f"{milliamperes}\n")
    energy = find_energy(CPU, tmp_path)
    assert "VIN" in energy.source
    energy.begin()
    assert energy.end(2.0) == pytest.approx(60)


def test_energy_of_a_jetson_whose_gpu_has_a_rail_of_its_own(tmp_path: Path) -> None:
    """AGX Thor: the 5 V rail is a part; 20 W of the GPU, 8 W of the CPU and 10 W of the rest are 38 W."""
    monitor = tmp_path / "2-0040" / "hwmon" / "hwmon4"
    monitor.mkdir(parents=True)
    rails = (("VDD_GPU", 1000, 20000), ("VDD_CPU_SOC_MSS", 800, 10000), ("VIN_SYS_5V0", 5000, 2000))
    for channel, (label, millivolts, milliamperes) in enumerate(rails, start=1):
        (monitor / f"in{channel}_label").write_text(f"{label}\n")
        (monitor / f"in{channel}_input").write_text(f"{millivolts}\n")
        (monitor / f"curr{channel}_input").write_text(f"{milliamperes}\n")
    energy = find_energy(CPU, tmp_path)
    assert "VDD_GPU + VDD_CPU_SOC_MSS + VIN_SYS_5V0" in energy.source
    assert energy.end(2.0) == pytest.approx(76)


def test_a_device_that_tells_nothing_says_so(tmp_path: Path) -> None:
    energy = find_energy(CPU, tmp_path)
    assert "absent" in energy.source
    energy.begin()
    assert energy.end(1.0) is None
