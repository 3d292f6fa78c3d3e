# SPDX-License-Identifier: Apache-2.0
"""What the device is and can do: its name, matrix rate, memory bandwidth, and peak memory.

Here live measurements of the device itself, none of a model. Energy is `energy`.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.bench.lane import Clock, synchroniser

_GIB = 2**30


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
    wait = synchroniser(device)
    a = torch.randn(size, size, device=device).to(dtype)
    b = torch.randn(size, size, device=device).to(dtype)
    gemm = _best(lambda: a @ b, wait, clock)
    bulk = torch.ones((_GIB if big else _GIB // 4) // 4, device=device)
    target = torch.empty_like(bulk)
    read = _best(lambda: bulk.sum(), wait, clock)
    copy = _best(lambda: target.copy_(bulk), wait, clock)
    amount = bulk.numel() * bulk.element_size()
    return {
        "gemm_flops_per_s": 2 * size**3 / gemm,
        "read_bytes_per_s": amount / read,
        "copy_bytes_per_s": 2 * amount / copy,
    }


def _best(work: Callable[[], Any], wait: Callable[[], None], clock: Clock, repeats: int = 5) -> float:
    """The fastest of a few: a limit is what the device can do, not what it did meanwhile."""
    seconds = []
    for _ in range(repeats + 1):
        wait()
        started = clock()
        work()
        wait()
        seconds.append(clock() - started)
    return min(seconds[1:])


class Memory:
    """Bytes held now and at most: of a GPU its allocator's, of a CPU this process's resident pages."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def reset(self) -> None:
        """Begin a new peak. Where the system does not let it, the peak is that of the whole run."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
            return
        # Free pages that the C library keeps would count for whoever comes next.
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
