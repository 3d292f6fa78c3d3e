# SPDX-License-Identifier: Apache-2.0
"""Recording work on a device once and running it again with one call: CUDA graphs.

Here lives what knows of CUDA. What is recorded, and over which static tensors, is each family's; a
recorder that only remembers the work (`Again`) runs the same code on any device, so that tests on CPUs
see what a graph would compute.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], torch.Tensor]

# Runs before a recording: lazy initialisation and the choice of kernels must be over by then.
_WARM_UP = 3


class Recorder(Protocol):
    """Turns work into something that repeats it.

    The work reads and writes static tensors only: same addresses, same shapes, no look at a value.
    What `record` returns runs it and gives its output, which stands until any work of this recorder runs.
    """

    def record(self, work: Work) -> Work: ...


class Again:
    """Records nothing: a run is the work itself, done again."""

    def record(self, work: Work) -> Work:
        return work


class CudaGraphs:
    """Records CUDA graphs; all of one recorder share the memory of their intermediate results.

    They may: they run one after the other, on one stream. The memory goes with the last of them, and torch
    takes its handle no second time: a recorder is for one set of programs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()
        # One for all recordings: what one has freed, the allocator gives to others of the same stream only.
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def record(self, work: Work) -> Work:
        """Raises RuntimeError where the device or a kernel cannot be recorded."""
        here, aside = torch.cuda.current_stream(self._device), self._aside
        aside.wait_stream(here)
        # Around the recording as well: torch's own context leaves its stream behind where a recording fails.
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                work()
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            try:
                # Other threads (the executor's) may use the device meanwhile; only this one records.
                with torch.cuda.graph(
                    graph, pool=self._memory, stream=aside, capture_error_mode="thread_local"
                ):
                    output = work()
            except RuntimeError as error:
                if error.__context__ is None:
                    raise
                # A recording that failed cannot be ended either: that error hides the one that counts.
                raise RuntimeError(f"{error.__context__}; {error}") from error

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


def find_recorder(device: torch.device) -> Recorder | None:
    """The recorder of a device; None where running work anew costs no more (CPU)."""
    return CudaGraphs(device) if device.type == "cuda" else None
