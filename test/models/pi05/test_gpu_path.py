# SPDX-License-Identifier: Apache-2.0
"""What runs on GPUs alone, run without one: tensors say that they are on a GPU.

That the GPU's kernels compute the same is `scripts/gpu_check`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from models_scene import ROOMY, demo_config, make_model, make_network
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from oxygen_ros.models import Guide, Rows
from oxygen_ros.models.graphs import Eager, Work
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.processor import Pi05Inputs


class AsOnGpu(TorchFunctionMode):
    """Tensors answer True to `is_cuda`."""

    def __torch_function__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        if function == torch.Tensor.is_cuda.__get__:
            return True
        return function(*arguments, **(named or {}))


class StaysOn(TorchDispatchMode):
    """Every operator takes and gives tensors of one device only; counts them."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        self.operators = 0

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
        out = function(*arguments, **(named or {}))
        self.operators += 1
        for tensor in find_tensors([arguments, list((named or {}).values()), out]):
            assert tensor.device == self.device, f"{function}: {tensor.shape} on {tensor.device}"
        return out


def find_tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, list | tuple):
        for one in found:
            yield from find_tensors(one)


class Watched(Eager):
    """Runs what is captured once, under a watch."""

    def __init__(self, watch: StaysOn) -> None:
        self.watch = watch

    def capture(self, work: Work) -> Work:
        with self.watch:
            work()
        return work


def draw_inputs(device: str = "cpu", words: int = 20) -> Pi05Inputs:
    generator = torch.Generator().manual_seed(words)
    images = torch.rand(2, 3, 80, 80, generator=generator) * 2 - 1
    return Pi05Inputs(images.to(device), torch.randint(3, 250, (words,), generator=generator).to(device))


def fill_rows(model: Pi05, position: int) -> Rows:
    """Two requests of prefix 0 and one of prefix 1."""
    rows = Rows(32, model.device)
    columns = torch.tensor([[41, 0, 0, 0, 0], [42, 0, 0, 1, 1], [43, 0, 1, 0, 2], [44, 1, 2, 0, 3]])
    rows.token[:4], rows.prefix_slot[:4], rows.suffix_slot[:4] = columns[:, :3].T
    rows.write_at[:4], rows.wants_logits[:4] = columns[:, 3:].T
    rows.position[:4] = position + columns[:, 3]
    rows.count = rows.wanted = 4
    rows.longest, rows.prefix_spans = 2, [(0, 0, 3), (1, 3, 4)]
    return rows


@pytest.mark.parametrize("capturer", [Eager(), None], ids=["captured", "launched"])
def test_the_branches_of_gpus_give_the_same(capturer: Eager | None) -> None:
    network = make_network()
    results = []
    for mode in (AsOnGpu(), None):
        model = make_model(network, over_pool=True, capturer=capturer if mode else None)
        model.allocate(ROOMY)
        with mode or nullcontext():
            assert torch.zeros(1).is_cuda == bool(mode)
            model.prepare(draw_inputs())
            prefixes = [model.encode(draw_inputs(words=words), slot) for slot, words in enumerate((20, 33))]
            noise = torch.randn(16, 7, generator=torch.Generator().manual_seed(1))
            guide = Guide(noise.roll(1, 0), torch.full_like(noise, 0.5))
            chunks = [model.denoise(slot, noise, given) for slot, given in ((0, None), (1, guide))]
            results.append((*chunks, model.extend(fill_rows(model, prefixes[0].next_position)).clone()))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_captured_work_asks_the_host_for_nothing(dtype: torch.dtype) -> None:
    """No value is looked at (there are none: the tensors have a shape alone), no tensor of the host taken."""
    c = demo_config()
    config = replace(c, vision=replace(c.vision, depth=2))
    device = torch.device("meta")
    with device:
        network = Network(config).to(dtype).requires_grad_(False)
    watch = StaysOn(device)
    with AsOnGpu():
        model = Pi05(network, None, over_pool=True, capturer=Watched(watch))
        model.allocate(ROOMY)
        inputs = draw_inputs("meta")
        assert model.prepare(Pi05Inputs(inputs.images.to(dtype), inputs.tokens)) == ""
    assert watch.operators > 1000
