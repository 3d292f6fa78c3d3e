# SPDX-License-Identifier: Apache-2.0
"""A packed block computes what the plain one does, is used only where it helps, and falls back."""

from __future__ import annotations

import weakref
from types import SimpleNamespace

import pytest
import torch

from oxygen_ros.models import packed
from oxygen_ros.models.layers import AttentionBlock
from oxygen_ros.models.packed import PackedBlock, pack, what_lacks

ROWS = 10


def make_block(dtype: torch.dtype = torch.bfloat16) -> AttentionBlock:
    torch.manual_seed(0)
    block = AttentionBlock(width=64, heads=4, kv_heads=1, head_dim=32, mlp_dim=96)
    return block.to(dtype).requires_grad_(False)


def skip_where_missing() -> None:
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 products")


@pytest.mark.parametrize("rows", [1, ROWS, 33], ids="rows{}".format)
def test_it_is_closer_to_exact_than_the_plain_block(rows: int) -> None:
    skip_where_missing()
    block = make_block()
    ours = pack(block, ROWS)
    assert isinstance(ours, PackedBlock)
    exact = make_block(torch.float64)
    exact.load_state_dict({name: tensor.double() for name, tensor in block.state_dict().items()})
    for name, width in (("qkv", 64), ("out", 128), ("mlp", 64)):
        x = torch.randn(rows, width, dtype=torch.bfloat16)
        with torch.inference_mode():
            expected = getattr(exact, name)(x.double())
            errors = [(getattr(b, name)(x) - expected).abs().mean() for b in (ours, block)]
        assert errors[0] <= errors[1] * 1.05, name


def test_a_block_is_packed_once_for_all_models() -> None:
    block = make_block()
    assert pack(block, ROWS) is pack(block, ROWS)


def test_what_was_packed_goes_with_its_block() -> None:
    skip_where_missing()
    block = make_block()
    gone = weakref.ref(pack(block, ROWS))
    assert gone() is not None
    del block
    assert gone() is None


def test_float32_stays_plain_and_lies_by_input() -> None:
    block, before = make_block(torch.float32), make_block(torch.float32)
    for _ in range(2):  # models share a network
        assert pack(block, ROWS) is block
        assert block.down.weight.mT.is_contiguous()
        assert all(torch.equal(w, block.state_dict()[name]) for name, w in before.state_dict().items())


def _raise(*_: object) -> torch.Tensor:
    raise NotImplementedError("mkldnn::_linear_pointwise is not in this build")


def _lie(x: torch.Tensor, weight: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.full((*x.shape[:-1], weight.shape[0]), float("nan"))


@pytest.mark.parametrize("linear", [_raise, _lie, None], ids=["missing", "wrong", "unknown"])
def test_a_build_without_the_operators_keeps_the_plain_block(linear, monkeypatch) -> None:
    operators = SimpleNamespace(_reorder_linear_weight=lambda weight, rows: weight)
    if linear is not None:
        operators._linear_pointwise = linear
        linear.binary = lambda x, other, weight, bias, what: linear(x, weight)
    monkeypatch.setattr(packed.torch, "ops", SimpleNamespace(mkldnn=operators))
    block = make_block()
    assert pack(block, ROWS) is block
    assert "dtype float32" in what_lacks([block]), "told, not only done without"


def test_nothing_lacks_where_products_are_packed_or_need_not_be() -> None:
    skip_where_missing()
    assert what_lacks([pack(make_block(dtype), ROWS) for dtype in (torch.bfloat16, torch.float32)]) == ""
