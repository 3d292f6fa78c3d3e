# SPDX-License-Identifier: Apache-2.0
"""How CUDA graphs are captured, over a stand-in for torch.cuda that keeps its rules; no GPU is needed.

That the device computes the same is `scripts/gpu_check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from oxygen_ros.models import graphs
from oxygen_ros.models.graphs import CudaGraphs, find_capturer

GPU = torch.device("cuda", 0)


class FakeGraph:
    def __init__(self) -> None:
        self.replays = 0

    def replay(self) -> None:
        self.replays += 1


class FakeCuda:
    """The streams and captures of torch.cuda: `graph` leaves its stream behind where its end fails."""

    def __init__(self) -> None:
        self.default = self.now = self._make_stream()
        self.captures: list[tuple[Any, Any]] = []  # (memory, stream)
        self.graphs: list[FakeGraph] = []
        self.is_capturing = False
        self.can_end = True

    def _make_stream(self) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda other: None)

    def Stream(self, device: torch.device) -> SimpleNamespace:
        return self._make_stream()

    def current_stream(self, device: torch.device) -> SimpleNamespace:
        return self.now

    def synchronize(self, device: torch.device) -> None:
        assert not self.is_capturing

    def graph_pool_handle(self) -> object:
        return object()

    def CUDAGraph(self) -> FakeGraph:
        self.graphs.append(FakeGraph())
        return self.graphs[-1]

    @contextmanager
    def stream(self, stream: SimpleNamespace) -> Iterator[None]:
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    @contextmanager
    def graph(self, graph: FakeGraph, pool: object, stream: SimpleNamespace, **_: str) -> Iterator[None]:
        self.captures.append((pool, stream))
        before, self.now, self.is_capturing = self.now, stream, True
        try:
            yield
        finally:
            self.is_capturing = False
            if not self.can_end:
                raise RuntimeError("operation failed due to a previous error during capture")
            self.now = before


@pytest.fixture
def cuda(monkeypatch) -> FakeCuda:
    fake = FakeCuda()
    monkeypatch.setattr(graphs, "torch", SimpleNamespace(cuda=fake, device=torch.device, Tensor=torch.Tensor))
    return fake


def test_work_runs_before_it_is_captured_and_not_again(cuda) -> None:
    runs: list[bool] = []

    def work() -> torch.Tensor:
        assert cuda.now is not cuda.default, "a capture needs a stream of its own, and its warm-up the same"
        runs.append(cuda.is_capturing)
        return torch.tensor(float(len(runs)))

    replay = CudaGraphs(GPU).capture(work)
    assert runs == [False] * (len(runs) - 1) + [True]
    assert len(runs) > 1
    assert cuda.now is cuda.default
    assert replay() is replay()
    assert cuda.graphs[0].replays == 2
    assert replay() == len(runs), "the output is what the captured run put out"


def test_captures_share_memory_and_stream(cuda) -> None:
    """Freed memory of one stream is not given to another: with a stream each, nothing would be shared."""
    capturer, other = CudaGraphs(GPU), CudaGraphs(GPU)
    for one in (capturer, capturer, other):
        one.capture(lambda: torch.zeros(1))
    first, second, third = cuda.captures
    assert first == second
    assert first[0] is not third[0]


def test_a_capture_that_fails_says_why_and_leaves_the_stream(cuda) -> None:
    def work() -> torch.Tensor:
        if cuda.is_capturing:
            cuda.can_end = False
            raise RuntimeError("operation not permitted when stream is capturing")
        return torch.zeros(1)

    with pytest.raises(RuntimeError, match=r"not permitted when stream is capturing.*previous error"):
        CudaGraphs(GPU).capture(work)
    assert cuda.now is cuda.default


def test_an_error_of_the_work_itself_stays_as_it_is(cuda) -> None:
    def work() -> torch.Tensor:
        raise ValueError("no such token")

    with pytest.raises(ValueError, match="no such token"):
        CudaGraphs(GPU).capture(work)
    assert cuda.now is cuda.default


def test_a_gpu_has_a_capturer_and_a_cpu_has_none(cuda) -> None:
    assert isinstance(find_capturer(GPU), CudaGraphs)
    assert find_capturer(torch.device("cpu")) is None
