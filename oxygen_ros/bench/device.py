# SPDX-License-Identifier: Apache-2.0
"""What the device is and can do: its name, matrix rate, memory bandwidth, peak memory, energy.

Energy is read from NVIDIA's management library or the power rails of a Jetson. Without either the run
reports that there is no figure.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import resource
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.bench.timing import Clock, make_wait, time_repeats

_GIB = 2**30
_SENSORS = Path("/sys/bus/i2c/drivers/ina3221")
# Rails that together supply the whole module, by the names of different Jetsons; the first present are
# read. Beside an AGX Orin's and a Thor's 5 V rail, GPU and CPU have rails of their own.
_WHOLE = (
    ("VIN",),
    ("VDD_IN",),
    ("VDD_GPU", "VDD_CPU_SOC_MSS", "VIN_SYS_5V0"),
    ("VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0"),
)


def describe(device: torch.device) -> str:
    """The device by name; a CPU with the threads torch uses of it."""
    if device.type == "cuda":
        return f"{torch.cuda.get_device_name(device)} (torch {torch.__version__})"
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    threads = torch.get_num_threads()
    return f"{name}, {threads} thread{'s' * (threads > 1)} (torch {torch.__version__})"


def measure_limits(
    device: torch.device, dtype: torch.dtype, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """GEMM rate [FLOP/s] of a large square product, and bandwidth [B/s] of reading and of copying memory."""
    big = device.type == "cuda"
    size = 8192 if big else 1024
    wait = make_wait(device)
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)

    def best(work: Callable[[], object]) -> float:
        """The fastest of a few, as a limit."""
        return min(time_repeats(work, wait, clock, 5))

    gemm = best(lambda: a @ b)
    bulk = torch.ones((_GIB if big else _GIB // 4) // 4, device=device)
    target = torch.empty_like(bulk)
    read = best(lambda: bulk.sum())
    copy = best(lambda: target.copy_(bulk))
    amount = bulk.numel() * bulk.element_size()
    return {
        "gemm_flops_per_s": 2 * size**3 / gemm,
        "read_bytes_per_s": amount / read,
        "copy_bytes_per_s": 2 * amount / copy,
    }


class MemoryMeter:
    """Bytes held now and at most: of a GPU its allocator's, of a CPU this process's resident pages."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Begin a new peak. Where the system does not allow it, the peak is that of the whole run."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        # Free pages that the C library keeps would count for the next one.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")

    def held(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.memory_allocated(self._device)
        return self._status("VmRSS")

    def peak(self) -> int:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        return self._status("VmHWM")

    @staticmethod
    def _status(field: str) -> int:
        with contextlib.suppress(OSError):
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                if line.startswith(field):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class EnergyMeter:
    """Joules of stretches of work, or None without a source."""

    def __init__(
        self, source: str, read: Callable[[], float] | None = None, *, is_power: bool = False
    ) -> None:
        """source: where the figures come from, or why there are none
        read:   joules since some time ago; is_power: watts now
        """
        self.source = source
        self._read, self._is_power = read, is_power
        self._began = 0.0

    def begin(self) -> None:
        if self._read is not None and not self._is_power:
            self._began = self._read()

    def end(self, seconds: float) -> float | None:
        """Joules since `begin`, over which the device worked for `seconds`."""
        if self._read is None:
            return None
        return self._read() * seconds if self._is_power else self._read() - self._began


def find_energy(device: torch.device, sensors: Path = _SENSORS) -> EnergyMeter:
    """The device's source: a counter of joules, else watts, else none and why."""
    if meter := _find_jetson_rail(sensors):
        return meter
    if device.type != "cuda":
        return EnergyMeter("absent: a CPU tells none here")
    try:
        nvml: Any = import_module("pynvml")
    except ImportError:
        return EnergyMeter("absent: the Python package nvidia-ml-py is not installed")
    try:
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
    except (nvml.NVMLError, AttributeError) as error:
        return EnergyMeter(f"absent: NVML does not know this device ({error})")
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        joules = lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000  # noqa: E731
        return EnergyMeter("NVML energy counter", joules)
    with contextlib.suppress(nvml.NVMLError):
        nvml.nvmlDeviceGetPowerUsage(handle)
        watts = lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000  # noqa: E731
        return EnergyMeter("NVML power after each tick", watts, is_power=True)
    return EnergyMeter("absent: NVML tells neither energy nor power of this device")


def _find_jetson_rail(sensors: Path) -> EnergyMeter | None:
    """A module's supply rails: millivolts times milliamperes of the INA3221 channels with their labels."""
    found = {}
    for label in sorted(sensors.glob("*/hwmon/hwmon*/in*_label")):
        with contextlib.suppress(OSError):
            found[label.read_text(encoding="ascii").strip()] = label
    for names in _WHOLE:
        if all(name in found for name in names):
            power = partial(_read_watts, [found[name] for name in names])
            return EnergyMeter(f"Jetson rail {' + '.join(names)}", power, is_power=True)
    return None


def _read_watts(labels: Sequence[Path]) -> float:
    """Watts now of the channels with these label files together."""
    watts = 0.0
    for label in labels:
        channel = label.name.removeprefix("in").removesuffix("_label")
        volts, amperes = label.with_name(f"in{channel}_input"), label.with_name(f"curr{channel}_input")
        watts += int(volts.read_text()) * int(amperes.read_text()) / 1e6
    return watts
