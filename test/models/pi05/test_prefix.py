# SPDX-License-Identifier: Apache-2.0
"""The prefix in its slot: read-only for all readers, packed, bounded, and safe from diverged values."""

from __future__ import annotations

import math

import pytest
import torch
from models_scene import ROOMY, demo_config, make_model, make_network, observe, prefix_tokens

from oxygen_ros.models import Guide, Rows
from oxygen_ros.models.pi05.processor import Pi05Inputs

HORIZON, DIM = 16, 7


def noise(seed: int = 0) -> torch.Tensor:
    return torch.randn(HORIZON, DIM, generator=torch.Generator().manual_seed(seed))


def rows_for(model, prefixes: list[int], place: int = 0) -> Rows:
    """One row for each prefix, in a suffix slot of the prefix's number, at `place`."""
    rows = Rows(ROOMY.max_rows, model.device)
    count = len(prefixes)
    prefix = torch.tensor(prefixes)
    rows.token[:count] = 40 + prefix
    rows.write_at[:count] = place
    rows.position[:count] = torch.tensor([prefix_tokens(model, f) for f in prefixes]) + place
    rows.prefix_slot[:count] = rows.suffix_slot[:count] = prefix
    rows.wants_logits[:count] = torch.arange(count)
    rows.count = rows.wanted = count
    rows.longest = place + 1
    rows.prefix_spans = [(f, i, i + 1) for i, f in enumerate(prefixes)]
    return rows


def loaded(network, *, over_pool: bool = False, prefixes: int = 3):
    model = make_model(network, over_pool=over_pool)
    model.allocate(ROOMY)
    for slot in range(prefixes):
        model.encode(model.process(observe(slot + 1, instruction="go " * slot)), slot)
    return model


def whole_prefix(model, slot: int) -> torch.Tensor:
    """A copy of all prefix places of a prefix, the unused ones too."""
    first = slot * model.pool.prefix_stride
    region = slice(first, first + model.config.max_prefix)
    return torch.stack((model.pool.keys[:, :, region], model.pool.values[:, :, region])).clone()


both_ways = pytest.mark.parametrize("over_pool", [False, True], ids=["by_prefix", "over_pool"])


@both_ways
def test_nobody_writes_into_a_prefix(demo_network, over_pool: bool) -> None:
    model = loaded(demo_network, over_pool=over_pool)
    before = [whole_prefix(model, slot) for slot in range(3)]
    for slot in (0, 1, 2):
        model.denoise(slot, noise(slot))
    model.denoise(1, noise(1), Guide(torch.ones(HORIZON, DIM), torch.ones(HORIZON, DIM)))
    for place in range(5):
        model.extend(rows_for(model, [0, 1, 2], place))
    for slot in range(3):
        assert torch.equal(whole_prefix(model, slot), before[slot]), f"prefix {slot} was written to"


@both_ways
def test_a_prefill_touches_its_own_slot_alone(demo_network, over_pool: bool) -> None:
    model = loaded(demo_network, over_pool=over_pool)
    model.extend(rows_for(model, [0, 1, 2]))
    before = model.pool.keys.clone(), model.pool.values.clone()
    model.encode(model.process(observe(9)), 1)
    own = slice(model.pool.prefix_stride, model.pool.prefix_stride + model.config.max_prefix)
    for now, then in zip((model.pool.keys, model.pool.values), before, strict=True):
        then[:, :, own] = now[:, :, own]
        assert torch.equal(now, then)


@both_ways
def test_text_never_reads_a_workspace(demo_network, over_pool: bool) -> None:
    """Whatever large numbers stand there. (That they are finite is the next test's.)"""
    model = loaded(demo_network, over_pool=over_pool)
    expected = model.extend(rows_for(model, [0, 1, 2]))
    for slot in range(ROOMY.prefixes):
        first = slot * model.pool.prefix_stride + model.config.max_prefix
        model.pool.keys[:, :, first : first + HORIZON] = 1e6
        model.pool.values[:, :, first : first + HORIZON] = -1e6
    assert torch.equal(model.extend(rows_for(model, [0, 1, 2])), expected)


def test_by_prefix_a_free_slot_or_workspace_is_never_touched(demo_network) -> None:
    model = loaded(demo_network)
    expected = model.extend(rows_for(model, [0, 2]))
    stride = model.pool.prefix_stride
    for slot in range(ROOMY.prefixes):
        used = model.pool.prefix_places(slot) if slot in (0, 2) else slice(slot * stride, slot * stride)
        model.pool.keys[:, :, used.stop : (slot + 1) * stride] = math.nan
        model.pool.values[:, :, used.stop : (slot + 1) * stride] = math.nan
    assert torch.equal(model.extend(rows_for(model, [0, 2])), expected)


@both_ways
@pytest.mark.parametrize("bad", [math.nan, math.inf, 3e38])
def test_a_chunk_that_runs_away_ends_no_text(demo_network, over_pool: bool, bad: float) -> None:
    """A guide or noise that is not finite gives a chunk that is not; it must
    leave nothing behind for attention over the whole pool to multiply by zero."""
    model = loaded(demo_network, over_pool=over_pool)
    expected = model.extend(rows_for(model, [0, 1, 2]))
    sound = model.denoise(2, noise())
    ones = torch.ones(HORIZON, DIM)
    assert not model.denoise(2, noise(), Guide(ones * bad, ones, max_weight=1e3)).isfinite().all()
    assert not model.denoise(0, noise() * bad).isfinite().all()
    assert model.pool.keys.isfinite().all()
    assert model.pool.values.isfinite().all()
    assert torch.equal(model.extend(rows_for(model, [0, 1, 2])), expected)
    assert torch.equal(model.denoise(2, noise()), sound)


@both_ways
def test_a_slot_remembers_nothing_of_its_last_frame(demo_network, over_pool: bool) -> None:
    """A short prefix after a long one, and a suffix slot used again."""
    short = observe(2, cameras=("wrist",), instruction="")
    fresh, used = loaded(demo_network, over_pool=over_pool), loaded(demo_network, over_pool=over_pool)
    used.encode(used.process(observe(8, instruction="x" * 30)), 1)
    for place in range(6):
        used.extend(rows_for(used, [0, 1, 2], place))
    results = []
    for model in (fresh, used):
        model.encode(model.process(short), 1)
        actions = model.denoise(1, noise())
        results.append((actions, [model.extend(rows_for(model, [1], place)) for place in range(3)]))
    assert torch.equal(results[0][0], results[1][0])
    for a, b in zip(results[0][1], results[1][1], strict=True):
        torch.testing.assert_close(a, b, atol=0 if not over_pool else 1e-6, rtol=0)


@pytest.mark.parametrize("cameras", [("top", "wrist"), ("top",), ("wrist",)])
def test_a_packed_prefix_holds_what_is_there(demo_network, cameras) -> None:
    model = make_model(demo_network)
    model.allocate(ROOMY)
    inputs = model.process(observe(1, cameras=cameras))
    prefix = model.encode(inputs, 3)
    assert prefix.tokens == prefix.next_position == 25 * len(cameras) + inputs.tokens.shape[0]


def test_a_prefix_of_words_alone(demo_network, recompute) -> None:
    """Every camera masked: the network takes it, though the processor asks for one image."""
    model = make_model(demo_network)
    model.allocate(ROOMY)
    inputs = Pi05Inputs(torch.empty(0, 3, 80, 80), torch.tensor([258, 70, 71]))
    assert model.encode(inputs, 0).tokens == 3
    logits = model.extend(rows_for(model, [0]))
    torch.testing.assert_close(logits.double(), recompute.logits(inputs, [40]), atol=1e-4, rtol=1e-5)


def test_a_prefix_at_its_longest(demo_network, recompute) -> None:
    """Full slots side by side, the last one too; the last action and word positions are in the table."""
    model = make_model(demo_network)
    model.allocate(ROOMY)
    most = demo_config().max_prompt
    tokens = torch.arange(most) % 250
    inputs = Pi05Inputs(model.process(observe(1)).images, tokens)
    for slot in (ROOMY.prefixes - 2, ROOMY.prefixes - 1):
        assert model.encode(inputs, slot).tokens == model.config.max_prefix == 50 + most
    actions = model.denoise(ROOMY.prefixes - 1, noise())
    expected = recompute.actions(inputs, noise(), [1.0, 0.8, 0.6, 0.4, 0.2])
    torch.testing.assert_close(actions.double(), expected, atol=2e-5, rtol=2e-5)
    slot = ROOMY.prefixes - 1
    for place in range(ROOMY.suffix_tokens):
        logits = model.extend(rows_for(model, [slot], place))
    told = recompute.logits(inputs, [40 + slot] * ROOMY.suffix_tokens)
    torch.testing.assert_close(logits[0].double(), told[-1], atol=1e-4, rtol=1e-5)


def test_a_prefix_too_long_is_an_error_and_changes_nothing(demo_network) -> None:
    model = loaded(demo_network)
    before = model.pool.keys.clone()
    inputs = Pi05Inputs(model.process(observe(1)).images, torch.zeros(65, dtype=torch.int64))
    with pytest.raises(ValueError, match="a prefix of 115 tokens does not fit a slot of 114"):
        model.encode(inputs, 0)
    with pytest.raises(ValueError, match="a prefix of 0 tokens"):
        model.encode(Pi05Inputs(torch.empty(0, 3, 80, 80), torch.empty(0, dtype=torch.int64)), 0)
    assert torch.equal(model.pool.keys, before)
    assert model.denoise(0, noise()).isfinite().all()


def test_heads_that_share_keys_in_groups() -> None:
    """Two key heads for four query heads: the fold of the query heads is right for more than one."""
    from dataclasses import replace

    from models_reference import Recompute

    config = demo_config()
    two = {
        "backbone": replace(config.backbone, kv_heads=2, depth=2),
        "expert": replace(config.expert, kv_heads=2, depth=2),
    }
    network = make_network(**two)
    inputs = make_model(network).process(observe(1))
    for over_pool in (False, True):
        model = make_model(network, over_pool=over_pool)
        model.allocate(ROOMY)
        model.encode(inputs, 1)
        actions = model.denoise(1, noise())
        truth = Recompute(network)
        expected = truth.actions(inputs, noise(), [1.0, 0.8, 0.6, 0.4, 0.2])
        torch.testing.assert_close(actions.double(), expected, atol=2e-5, rtol=2e-5)
        logits = model.extend(rows_for(model, [1]))
        torch.testing.assert_close(logits.double(), truth.logits(inputs, [41]), atol=1e-4, rtol=1e-5)
