# SPDX-License-Identifier: Apache-2.0
"""Energy, where the device tells it: NVIDIA's management library, or the power rails of a Jetson.

Here lives the reading. A device that tells nothing is said to; no figure is made up for it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

_SENSORS = Path("/sys/bus/i2c/drivers/ina3221")
# Rails that together carry the whole module, by the names of different Jetsons; the first that are there are
# read. Beside an AGX Orin's and a Thor's 5 V rail, GPU and CPU have rails of their own.
_WHOLE = (
    ("VIN",),
    ("VDD_IN",),
    ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"),
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
)


class Energy:
    """Joules of stretches of work, or None where nothing tells them."""

    def __init__(
        self, source: str, power: Callable[[], float] | None, total: Callable[[], float] | None
    ) -> None:
        """source: where the figures come from, or why there are none
        power:  watts now; total: joules since some time ago
        """
        self.source = source
        self._power = power
        self._total = total
        self._began = 0.0

    def begin(self) -> None:
        if self._total is not None:
            self._began = self._total()

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`, over which the device worked for `seconds`."""
        if self._total is not None:
            return self._total() - self._began
        return None if self._power is None else self._power() * seconds


def find_energy(device: torch.device, sensors: Path = _SENSORS) -> Energy:
    """What this device offers: a counter of joules, else watts, else nothing and why."""
    rail = _jetson_rail(sensors)
    if rail is not None:
        name, power = rail
        return Energy(f"Jetson rail {name}", power, None)
    if device.type != "cuda":
        return Energy("absent: a CPU tells none here", None, None)
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return Energy("absent: the Python package nvidia-ml-py is not installed", None, None)
    return _nvml(nvml, device)


def _nvml(nvml: Any, device: torch.device) -> Energy:
    try:
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except (nvml.NVMLError, AttributeError) as error:
        return Energy(f"absent: NVML does not know this device ({error})", None, None)
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        return Energy(
            "NVML energy counter", None, lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000
        )
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlDeviceGetPowerUsage(handle)
        return Energy("NVML power after each tick", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000, None)
    return Energy("absent: NVML tells neither energy nor power of this device", None, None)


def _jetson_rail(sensors: Path) -> tuple[str, Callable[[], float]] | None:
    """A module's supply rails: millivolts times milliamperes of the INA3221 channels with their labels."""
    found = {}
    for label in sorted(sensors.glob("*/hwmon/hwmon*/in*_label")):
        with contextlib.suppress(OSError):
            found[label.read_text(encoding="ascii").strip()] = label
    for names in _WHOLE:
        if all(name in found for name in names):
            return " + ".join(names), partial(_read_watts, [found[name] for name in names])
    return None


def _read_watts(labels: Sequence[Path]) -> float:
    """Watts now of the channels with these label files together."""
    watts = 0.0
    for label in labels:
        channel = label.name.removeprefix("in").removesuffix("_label")
        volts, amperes = label.with_name(f"in{channel}_input"), label.with_name(f"curr{channel}_input")
        watts += int(volts.read_text()) * int(amperes.read_text()) / 1e6
    return watts
