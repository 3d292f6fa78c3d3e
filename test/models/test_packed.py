# SPDX-License-Identifier: Apache-2.0
"""Packed layers compute what plain ones do, only where they help and the build has them."""

from __future__ import annotations

import weakref
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from models_scene import ROOMY, drive, make_model, make_network, observe, task
from torch import nn

from oxygen_ros.engine import Budget, Engine
from oxygen_ros.models import packed
from oxygen_ros.models.layers import AttentionBlock, GateUpLinear, GeluLinear, QkvLinear
from oxygen_ros.models.packed import PackedLinear, is_packed, pack
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.processor import Pi05Inputs

WIDTH, OUT = 64, 96
DTYPES = (torch.float32, torch.bfloat16)


def need_products(dtype: torch.dtype) -> None:
    """Skip where the CPU has no packed products of this type."""
    if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("this CPU has no bfloat16 products")


@pytest.fixture(autouse=True)
def pack_small_ones_too(monkeypatch) -> None:
    monkeypatch.setattr(packed, "_LARGEST_BY_INPUT", 0)


SiluGateUp = partial(GateUpLinear, silu=True)


def make(kind: type[nn.Linear], dtype: torch.dtype, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    layer = kind(WIDTH, OUT, bias=bias)
    return layer.requires_grad_(False).to(dtype)


def pack_layer(layer: nn.Linear) -> nn.Module:
    need_products(layer.weight.dtype)
    holder = nn.ModuleDict({"layer": layer})
    assert pack(holder) == ""
    assert is_packed(holder)
    return holder["layer"]


@pytest.mark.parametrize("rows", [1, 10, 33], ids="rows{}".format)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("kind", "bias", "call"),
    [
        (nn.Linear, False, lambda layer, x: layer(x)),
        (nn.Linear, True, lambda layer, x: layer(x)),
        (GeluLinear, True, lambda layer, x: layer(x)),
        (QkvLinear, False, lambda layer, x: layer.tail(x, 40)),
        (GateUpLinear, False, lambda layer, x: layer(x)),
        (QkvLinear, True, lambda layer, x: layer.tail(x, 40)),
        (GateUpLinear, False, lambda layer, x: layer.activated(x)),
        (SiluGateUp, False, lambda layer, x: layer.activated(x)),
    ],
    ids=["plain", "bias", "gelu", "tail", "gate and up", "tail with bias", "activated", "silu"],
)
def test_they_are_as_close_to_exact_as_plain_ones(kind, bias: bool, call, dtype, rows: int) -> None:
    layer = make(kind, dtype, bias)
    ours, exact = pack_layer(layer), make(kind, dtype, bias).double()
    x = torch.randn(rows, WIDTH).to(dtype)
    with torch.inference_mode():
        expected = call(exact, x.double())
        errors = [(call(one, x) - expected).abs().mean().item() for one in (ours, layer)]
    assert expected.abs().max() > 0.1
    assert errors[0] <= errors[1] * 1.1 + (1e-7 if dtype == torch.float32 else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", [nn.Linear, GateUpLinear])
def test_the_weights_can_be_read_back(kind, dtype) -> None:
    layer = make(kind, dtype)
    assert torch.equal(pack_layer(layer).weight, layer.weight)


def test_inputs_may_lie_as_they_like() -> None:
    ours = pack_layer(make(nn.Linear, torch.bfloat16))
    x = torch.randn(2, WIDTH, 5).bfloat16().mT
    assert torch.equal(ours(x), ours(x.contiguous()))


def test_small_float32_layers_stay_and_lie_by_input(monkeypatch) -> None:
    monkeypatch.setattr(packed, "_LARGEST_BY_INPUT", 2**20)
    block = AttentionBlock(width=64, heads=4, kv_heads=1, head_dim=32, mlp_dim=96).requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in block.state_dict().items()}
    for _ in range(2):
        assert pack(block) == ""
        assert not is_packed(block)
        assert block.down.weight.mT.is_contiguous()
        assert all(torch.equal(w, block.state_dict()[name]) for name, w in before.items())


# -- a network -----------------------------------------------------------------------------------


def packed_and_plain(dtype: torch.dtype) -> tuple[Network, Network]:
    need_products(dtype)
    networks = make_network(dtype=dtype), make_network(dtype=dtype)
    networks[0].pack()
    assert networks[0].is_packed
    assert not networks[1].is_packed
    return networks


@pytest.mark.parametrize("over_pool", [False, True], ids=["by_prefix", "over_pool"])
def test_a_packed_network_acts_and_talks_as_the_plain_one(over_pool: bool) -> None:
    """In float32: chunks but for roundings, texts token for token; also prefixes of no multiple of 8."""
    script = {
        tick: (observe(tick), [task("memory", max_tokens=8), task("narration", max_tokens=8)])
        for tick in range(1, 5)
    }
    outcomes = []
    for network in packed_and_plain(torch.float32):
        model = make_model(network, over_pool=over_pool)
        outcomes.append(drive(Engine(model, ROOMY), script, Budget(steps=2, rows=32)))
    ours, plain = outcomes
    assert any(model.process(observe(tick)).tokens.shape[0] % 8 for tick in script)
    for tick in script:
        torch.testing.assert_close(
            torch.tensor(ours.chunks[tick]), torch.tensor(plain.chunks[tick]), atol=3e-6, rtol=1e-6
        )
    assert [t.tokens for t in ours.texts.values()] == [t.tokens for t in plain.texts.values()]
    assert sum(len(t.tokens) for t in ours.texts.values()) > 20


def test_hidden_states_are_those_of_the_prefix_alone() -> None:
    hidden = []
    for network in packed_and_plain(torch.float32):
        model = make_model(network)
        model.allocate(ROOMY)
        hidden.append(model.encode_hidden(model.process(observe(1)), 0))
    torch.testing.assert_close(hidden[0], hidden[1], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("words", range(1, 9))
def test_a_packed_prefill_does_not_see_its_padding(dtype: torch.dtype, words: int) -> None:
    """Rows are padded to a multiple of 8: keys and values of every layer are those without padding."""
    tokens, images = torch.arange(60, 60 + words), torch.empty(0, 3, 80, 80, dtype=dtype)
    found = []
    for network in packed_and_plain(dtype):
        model = make_model(network)
        model.allocate(ROOMY)
        model.encode(Pi05Inputs(images, tokens), 0)
        found.append(torch.stack((model.pool.keys, model.pool.values)).float())
    close = 1e-5 if dtype == torch.float32 else 0.05
    torch.testing.assert_close(found[0], found[1], atol=close, rtol=close)
    assert not found[0][:, :, :, words:].any(), "padding was written to the pool"


def test_every_number_of_rows_was_met_before_the_first_tick(monkeypatch) -> None:
    network, _ = packed_and_plain(torch.bfloat16)
    model = make_model(network)
    model.allocate(ROOMY)
    met: set[int] = set()
    products = PackedLinear.plain

    def watch(layer: PackedLinear, x: torch.Tensor) -> torch.Tensor:
        if layer is network.blocks[0].qkv:
            met.add(x.shape[0])
        return products(layer, x)

    monkeypatch.setattr(PackedLinear, "plain", watch)
    assert model.prepare(model.process(observe(1))) == ""
    first = set(met)
    assert set(range(1, ROOMY.max_rows + 1)) <= first
    met.clear()
    for tick in range(1, 5):
        model.encode(model.process(observe(tick)), 0)
    assert met
    assert met <= first


def test_a_packed_network_takes_as_much_memory_and_has_no_state_to_save() -> None:
    def count(network: Network) -> int:
        return sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))

    ours, plain = packed_and_plain(torch.bfloat16)
    assert count(ours) == count(plain)
    assert not [name for name in ours.state_dict() if "qkv" in name]


def test_a_layers_weights_are_gone_before_the_next_ones_are_copied(monkeypatch) -> None:
    """A full-size network would otherwise take its memory twice."""
    need_products(torch.bfloat16)
    try_packing, before = packed._try_packing, []

    def watch(layer: nn.Linear) -> nn.Module | None:
        assert all(weight() is None for weight in before)
        before.append(weakref.ref(layer.weight))
        return try_packing(layer)

    monkeypatch.setattr(packed, "_try_packing", watch)
    make_network(dtype=torch.bfloat16).pack()
    assert len(before) > 30


# -- builds without ------------------------------------------------------------------------------


def _raise(*_: object) -> torch.Tensor:
    raise NotImplementedError("mkldnn::_linear_pointwise is not in this build")


def _lie(x: torch.Tensor, weight: torch.Tensor, *_: object) -> torch.Tensor:
    return torch.full((*x.shape[:-1], weight.shape[0]), float("nan"))


@pytest.mark.parametrize("linear", [_raise, _lie, None], ids=["missing", "wrong", "unknown"])
def test_a_build_without_the_operators_keeps_the_plain_layers(linear, monkeypatch) -> None:
    operators = SimpleNamespace(_reorder_linear_weight=lambda weight, rows: weight)
    if linear is not None:
        operators._linear_pointwise = linear
        linear.binary = lambda x, other, weight, bias, what: linear(x, weight)
    monkeypatch.setattr(packed.torch, "ops", SimpleNamespace(mkldnn=operators))
    network = make_network(dtype=torch.bfloat16)
    layers = list(network.modules())
    network.pack()
    assert list(network.modules()) == layers
    assert not network.is_packed
    assert "dtype float32" in network.packing_problem, "told, not only done without"
    model = make_model(network)
    model.allocate(ROOMY)
    assert model.prepare(model.process(observe(1))) == network.packing_problem
    float32 = make_network()
    float32.pack()
    assert float32.packing_problem == "", "slower only by a little: not worth a warning"
