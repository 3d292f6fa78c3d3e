# SPDX-License-Identifier: Apache-2.0
"""Capturing work on a device once and running it again with one call: CUDA graphs.

What is captured, and over which static tensors, is in `programs` and in each family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], torch.Tensor]

# Runs before a capture: lazy initialization and the choice of kernels must be over by then.
_WARM_UP = 3


class Capturer(Protocol):
    """Turns work into a call that repeats it.

    The work reads and writes static tensors only: same addresses, same shapes, no look at a value.
    What `capture` returns runs it and gives its output, valid until any work of this capturer runs.
    """

    def capture(self, work: Work) -> Work: ...


class Eager:
    """Captures nothing: a run is the work itself. For tests of captured work on CPUs."""

    def capture(self, work: Work) -> Work:
        return work


class CudaGraphs:
    """Captures CUDA graphs; all of one capturer share the memory of their intermediate results.

    They run one after the other, on one stream. The memory is freed with the last of them, and torch does not
    take its handle again: a capturer is for one set of programs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory = torch.cuda.graph_pool_handle()
        # One for all captures: the allocator reuses freed memory only within a stream.
        self._aside = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def capture(self, work: Work) -> Work:
        """Raises RuntimeError where the device or a kernel cannot be captured."""
        here, aside = torch.cuda.current_stream(self._device), self._aside
        aside.wait_stream(here)
        # Around the capture as well: torch's own context leaves its stream behind where a capture fails.
        with torch.cuda.stream(aside):
            for _ in range(_WARM_UP):
                work()
            torch.cuda.synchronize(self._device)
            graph = torch.cuda.CUDAGraph()
            try:
                # Other threads (the executor's) may use the device meanwhile; only this one captures.
                with torch.cuda.graph(
                    graph, pool=self._memory, stream=aside, capture_error_mode="thread_local"
                ):
                    output = work()
            except RuntimeError as error:
                if error.__context__ is None:
                    raise
                # Ending a failed capture fails too, and that error hides the first one.
                raise RuntimeError(f"{error.__context__}; {error}") from error

        def replay() -> torch.Tensor:
            graph.replay()
            return output

        return replay


def find_capturer(device: torch.device) -> Capturer | None:
    """The capturer of a device; None where running work anew costs no more (CPU)."""
    return CudaGraphs(device) if device.type == "cuda" else None
