# SPDX-License-Identifier: Apache-2.0
"""The options of shared layers against the same written out, for the families in models/interface."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from oxygen_ros.models.layers import (
    AttentionBlock,
    DecoderBlock,
    Modulation,
    Rotary,
    layer_norm,
    rms_norm,
    rotate,
)

CPU = torch.device("cpu")
HEADS, KV_HEADS, DIM, WIDTH, TOKENS = 4, 2, 12, 32, 7


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


def written_out_rotation(x: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """x [T, heads, d] whose halves are the real and imaginary parts, turned by angles [T, d / 2]."""
    real, imaginary = x.double().chunk(2, dim=-1)
    turned = torch.complex(real, imaginary) * torch.polar(torch.ones_like(angles), angles)[:, None]
    return torch.cat((turned.real, turned.imag), dim=-1)


def test_rotation_depends_on_distance_alone() -> None:
    """Scores of rotated q and k are a function of how far apart they stand (Su et al. 2021)."""
    table = Rotary(DIM, 10000.0, 64, CPU, torch.float32)
    q, k = torch.randn(1, 1, DIM), torch.randn(1, 1, DIM)

    def score(a: int, b: int) -> float:
        at_a, at_b = (rotate(x, table.at(torch.tensor([p]))) for x, p in ((q, a), (k, b)))
        return float((at_a * at_b).sum())

    for distance in (0, 1, 7):
        scores = [score(p + distance, p) for p in (0, 3, 40)]
        assert max(scores) - min(scores) < 1e-4
    assert abs(score(5, 0) - score(0, 5)) > 1e-3, "it has a direction"
    torch.testing.assert_close(rotate(q, table.at(slice(0, 1))), q)


def test_partial_rotary_leaves_the_rest_of_a_head() -> None:
    """Qwen3.5: the first numbers of a head are rotated, with frequencies of their own count."""
    dim, x, at = 4, torch.randn(TOKENS, HEADS, DIM), torch.arange(3, 3 + TOKENS)
    out = rotate(x, Rotary(dim, 1e7, 64, CPU, torch.float32).at(at))
    assert torch.equal(out[..., dim:], x[..., dim:])
    angles = at[:, None] / 1e7 ** (torch.arange(dim // 2) * 2 / dim).double()
    torch.testing.assert_close(
        out[..., :dim].double(), written_out_rotation(x[..., :dim], angles), atol=1e-5, rtol=0
    )


def test_positions_on_three_axes_are_interleaved() -> None:
    """Qwen3-VL: frequency k turns by the row (h) where k % 3 is 1, by the column (w) where it is 2, else by
    time (t), h and w only among their first sections."""
    sections, base = (2, 2, 1), 10000.0
    x, places = torch.randn(TOKENS, HEADS, 12), torch.randint(0, 50, (3, TOKENS))
    axis = [0, 1, 2, 0, 1, 0]  # of the six frequencies: w has one only
    frequency = base ** (-torch.arange(6).double() / 6)
    angles = torch.stack([places[a] * f for a, f in zip(axis, frequency, strict=True)], dim=-1)
    rotary = Rotary(12, base, 64, CPU, torch.float32, sections)
    out = rotate(x, rotary.at(places))
    torch.testing.assert_close(out.double(), written_out_rotation(x, angles), atol=1e-4, rtol=0)
    # Text stands at the same position on all axes: there sections change nothing.
    plain = Rotary(12, base, 64, CPU, torch.float32).at(places[0])
    for ours in (rotary.at(places[:1].expand(3, -1)), rotary.at(places[0])):
        assert all(torch.equal(a, b) for a, b in zip(ours, plain, strict=True))


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_queries_and_keys_may_be_normalized_per_head_and_have_biases(bias: bool, eps: float) -> None:
    block = AttentionBlock(WIDTH, HEADS, KV_HEADS, DIM, 64, qkv_bias=bias, qk_norm_eps=eps)
    assert (block.qkv.bias is not None) == bias
    assert any("q_norm" in name for name in block.state_dict()) == bool(eps)
    x, turn = torch.randn(TOKENS, WIDTH), Rotary(DIM, 10000.0, 64, CPU, torch.float32).at(slice(0, TOKENS))
    with torch.no_grad():
        if eps:
            block.q_norm.scale.normal_()
            block.k_norm.scale.normal_()
        q, k, v = (part.unflatten(-1, (-1, DIM)) for part in block.qkv(x).split([48, 24, 24], dim=-1))
        if eps:
            q, k = (
                part / (part.square().mean(-1, keepdim=True) + eps).sqrt() * norm.scale
                for part, norm in ((q, block.q_norm), (k, block.k_norm))
            )
        expected = rotate(q.contiguous(), turn), rotate(k.contiguous(), turn), v
        for ours, theirs in zip(block.split(block.qkv(x), turn), expected, strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
        for ours, theirs in zip(block.keys_values(x, turn), expected[1:], strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("silu", [False, True])
def test_the_gate_s_activation(silu: bool) -> None:
    block = DecoderBlock(WIDTH, HEADS, KV_HEADS, DIM, 64, 1e-6, silu=silu)
    x, attended = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS, HEADS * DIM)
    with torch.no_grad():
        stream = x + block.out(attended)
        gate, up = block.gate_up(block.mlp_norm(stream)).chunk(2, dim=-1)
        active = F.silu(gate) if silu else F.gelu(gate, approximate="tanh")
        expected = stream + block.down(active * up)
        torch.testing.assert_close(block.merge(x, attended), expected, atol=1e-5, rtol=1e-5)
        # Text adapters take each linear apart; one that adds nothing changes nothing.
        adapted = block.merge(x, attended, lambda _i, _name, _x, y: y)
        torch.testing.assert_close(adapted, expected, atol=1e-5, rtol=1e-5)


def test_norms() -> None:
    x, scale, shift = torch.randn(TOKENS, WIDTH), torch.randn(WIDTH), torch.randn(WIDTH)
    rms = x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(rms_norm(x, 1e-5, scale), rms * scale)
    torch.testing.assert_close(rms_norm(x, 1e-5, scale, shift), rms * scale + shift)
    centered = x - x.mean(-1, keepdim=True)
    layer = centered / (centered.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(layer_norm(x, 1e-5, scale, shift), layer * scale + shift)


@pytest.mark.parametrize("layer", [False, True], ids=["rms", "layer"])
@pytest.mark.parametrize("order", [("scale", "shift", "gate"), ("scale", "shift"), ("shift", "scale")])
def test_a_modulated_norm(layer: bool, order: tuple[str, ...]) -> None:
    """pi0.5: RMS norm, scale, shift, gate. StarVLA: LayerNorm, in its blocks scale, shift; at its end the
    other way round."""
    steps = 3
    each = {name: torch.randn(steps, WIDTH) for name in order}
    modulation = Modulation.of(torch.cat([each[name] for name in order], dim=-1), order, layer=layer)
    x = torch.randn(TOKENS, WIDTH)
    normed = F.layer_norm(x, (WIDTH,), eps=1e-5) if layer else F.rms_norm(x, (WIDTH,), eps=1e-5)
    for step in range(steps):
        expected = normed * (1 + each["scale"][step]) + each["shift"][step]
        torch.testing.assert_close(modulation.apply(x, step, 1e-5), expected, atol=1e-5, rtol=1e-5)
    assert len(modulation.gate) == (steps if "gate" in order else 0)
    if modulation.gate:
        assert torch.equal(torch.stack(modulation.gate), each["gate"])
    assert math.isfinite(float(modulation.apply(x, 0, 1e-5).sum()))
