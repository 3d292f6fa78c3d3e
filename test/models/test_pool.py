# SPDX-License-Identifier: Apache-2.0
"""Attention over the pool against attention written out, for any mix of prefixes, lengths and rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.models import Capacity, Rows
from oxygen_ros.models.pool import KvPool, attend, attend_by_products, attend_sources

CPU = torch.device("cpu")
HEADS, DIM, MAX_PREFIX, WORKSPACE = 4, 8, 6, 3
CAPACITY = Capacity(prefixes=4, suffixes=5, suffix_tokens=7, max_rows=16)


def written_out(q, k, v) -> torch.Tensor:
    """One query [heads, d] over keys and values [kv_heads, L, d], in float64."""
    q, k, v = q.double(), k.double(), v.double()
    groups = q.shape[0] // k.shape[0]
    out = []
    for head in range(q.shape[0]):
        weights = (k[head // groups] @ q[head] / math.sqrt(q.shape[1])).softmax(0)
        out.append(weights @ v[head // groups])
    return torch.cat(out)


def make_pool(over_pool: bool, kv_heads: int, seed: int) -> KvPool:
    pool = KvPool(
        CAPACITY, layers=2, heads=HEADS, kv_heads=kv_heads, head_dim=DIM,
        max_prefix=MAX_PREFIX, workspace=WORKSPACE, device=CPU, dtype=torch.float32, over_pool=over_pool,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(seed)
    pool.keys.normal_(generator=generator)
    pool.values.normal_(generator=generator)
    return pool


requests = st.lists(
    st.tuples(st.integers(0, CAPACITY.prefixes - 1), st.integers(0, 4), st.integers(1, 3)),
    min_size=1, max_size=CAPACITY.suffixes,
)  # fmt: skip


@settings(max_examples=40)
@given(
    requests,
    st.lists(st.integers(1, MAX_PREFIX), min_size=4, max_size=4),
    st.sampled_from([1, 2, 4]),
    st.booleans(),
    st.integers(0, 99),
)
def test_rows_attend_to_their_prefix_and_what_came_before(asked, lengths, kv_heads, over_pool, seed) -> None:
    """Each request: (prefix, tokens cached, tokens now); suffix slot i belongs to request i."""
    pool = make_pool(over_pool, kv_heads, seed)
    for slot, length in enumerate(lengths):
        pool.open_prefix(slot, length)
    rows = Rows(CAPACITY.max_rows, CPU)
    spans: list[tuple[int, int, int]] = []
    at = 0
    for suffix, (prefix, cached, now) in sorted(enumerate(asked), key=lambda r: r[1][0]):
        first = at
        for place in range(cached, cached + now):
            rows.prefix_slot[at], rows.suffix_slot[at], rows.write_at[at] = prefix, suffix, place
            rows.longest = max(rows.longest, place + 1)
            at += 1
        if spans and spans[-1][0] == prefix:
            first = spans.pop()[1]
        spans.append((prefix, first, at))
    rows.count, rows.prefix_spans = at, spans
    generator = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(at, HEADS, DIM, generator=generator)
    k, v = (torch.randn(at, kv_heads, DIM, generator=generator) for _ in range(2))
    view = pool.view(rows)
    before = pool.keys.clone(), pool.values.clone()
    pool.put(1, view.place, k, v)
    out = pool.attend_rows(1, q, view)
    assert torch.equal(pool.keys[0], before[0][0]), "another layer was written to"
    stride, tokens = pool.prefix_stride, CAPACITY.suffix_tokens
    base = CAPACITY.prefixes * stride
    for row in range(at):
        prefix, suffix, place = (
            int(field[row]) for field in (rows.prefix_slot, rows.suffix_slot, rows.write_at)
        )
        start = base + suffix * tokens
        assert torch.equal(pool.keys[1, :, start + place], k[row])
        assert torch.equal(pool.values[1, :, start + place], v[row])
        seen = [*range(prefix * stride, prefix * stride + lengths[prefix]), *range(start, start + place + 1)]
        expected = written_out(q[row], pool.keys[1][:, seen], pool.values[1][:, seen])
        torch.testing.assert_close(out[row].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attend_is_attention(kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(kv_heads)
    q = torch.randn(5, HEADS, DIM, generator=generator)
    k, v = (torch.randn(kv_heads, 11, DIM, generator=generator) for _ in range(2))
    expected = torch.stack([written_out(row, k, v) for row in q])
    torch.testing.assert_close(attend(q, k, v).double(), expected, atol=1e-5, rtol=1e-5)
    # Padded at the end: masked places change nothing.
    more = [torch.cat((t, torch.randn(kv_heads, 5, DIM, generator=generator)), dim=1) for t in (k, v)]
    bias = torch.zeros(16).masked_fill(torch.arange(16) >= 11, -math.inf)
    torch.testing.assert_close(attend(q, *more, bias).double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_a_gpus_masked_attention_is_attention(kv_heads: int) -> None:
    """Every query with a mask of its own, as rows have, and one mask for all, as a chunk has."""
    generator = torch.Generator().manual_seed(kv_heads)
    tokens, groups = 5, HEADS // kv_heads
    q = torch.randn(tokens, HEADS, DIM, generator=generator)
    k, v = (torch.randn(kv_heads, 16, DIM, generator=generator) for _ in range(2))
    folded = q.view(tokens, kv_heads, groups, DIM).transpose(0, 1).flatten(1, 2)
    seen = torch.rand(tokens, 16, generator=generator) < 0.5
    seen[:, 3] = True
    for mask in (seen, seen[:1].expand(tokens, -1)):
        bias = torch.zeros(tokens, 16).masked_fill(~mask, -math.inf)
        bias = bias[0] if mask is not seen else bias.repeat_interleave(groups, dim=0)
        out = attend_by_products(folded, k, v, bias)
        ours = out.view(kv_heads, tokens, groups, DIM).transpose(0, 1).reshape(tokens, HEADS * DIM)
        expected = torch.stack([written_out(q[i], k[:, mask[i]], v[:, mask[i]]) for i in range(tokens)])
        torch.testing.assert_close(ours.double(), expected, atol=1e-5, rtol=1e-5)
        rounded = attend_by_products(*(t.bfloat16() for t in (folded, k, v, bias)))
        torch.testing.assert_close(rounded.float(), out, atol=5e-2, rtol=5e-2)


def test_places_of_frames_never_meet() -> None:
    pool = make_pool(False, 1, 0)
    taken: set[int] = set()
    for slot in range(CAPACITY.prefixes):
        pool.open_prefix(slot, MAX_PREFIX)
        places = pool.prefix_places(slot, workspace=WORKSPACE)
        mine = set(range(places.start, places.stop))
        assert len(mine) == MAX_PREFIX + WORKSPACE
        assert not mine & taken
        taken |= mine
    assert max(taken) < pool.suffix_base
    spare = pool.suffix_base + CAPACITY.suffixes * CAPACITY.suffix_tokens
    assert spare < pool.keys.shape[2], "no place is left for padding rows"
    slot = Rows.FIELDS.index("suffix_slot")
    assert pool.suffix_base + int(pool.padding_row[slot, 0]) * CAPACITY.suffix_tokens == spare


def test_clear_leaves_zeros_there_and_nowhere_else() -> None:
    pool = make_pool(True, 2, 0)
    pool.keys[:, :, 4:6] = math.nan
    before = pool.keys.clone()
    pool.clear(slice(4, 6))
    assert pool.keys[:, :, 4:6].eq(0).all()
    assert pool.values[:, :, 4:6].eq(0).all()
    before[:, :, 4:6] = 0
    assert torch.equal(pool.keys, before)


@pytest.mark.parametrize(("prefix_heads", "own_heads"), [(1, 1), (1, 4), (2, 4), (4, 2)])
def test_attention_over_sources_of_other_head_counts_is_attention(prefix_heads: int, own_heads: int) -> None:
    """One softmax over a prefix and an expert's own tokens, each with its number of K/V heads."""
    generator = torch.Generator().manual_seed(prefix_heads)
    q = torch.randn(5, HEADS, DIM, generator=generator)
    prefix = [torch.randn(prefix_heads, 9, DIM, generator=generator) for _ in range(2)]
    own = [torch.randn(own_heads, 5, DIM, generator=generator) for _ in range(2)]
    # No query sees the prefix's last two places; own tokens see themselves and those before.
    unseen = torch.zeros(9).masked_fill(torch.arange(9) >= 7, -math.inf)
    causal = torch.zeros(5, 5).masked_fill(~torch.ones(5, 5).tril().bool(), -math.inf)
    bias = causal.repeat_interleave(HEADS // own_heads, dim=0)
    out = attend_sources(q, [(*prefix, unseen), (*own, bias)])
    for i in range(5):
        k, v = (
            torch.cat([p[:, :7].repeat_interleave(HEADS // prefix_heads, 0),
                       o[:, : i + 1].repeat_interleave(HEADS // own_heads, 0)], dim=1)
            for p, o in zip(prefix, own, strict=True)
        )  # fmt: skip
        torch.testing.assert_close(out[i].double(), written_out(q[i], k, v), atol=1e-5, rtol=1e-5)
    if prefix_heads == own_heads:
        one = [torch.cat(pair, dim=1) for pair in zip(prefix, own, strict=True)]
        torch.testing.assert_close(attend_sources(q, [(*prefix, None), (*own, None)]), attend(q, *one))


def test_a_pool_of_prefixes_alone_has_no_place_for_text() -> None:
    pool = KvPool(CAPACITY, layers=3, kv_heads=2, head_dim=4, max_prefix=20, device=CPU, dtype=torch.float32)
    assert pool.keys.shape == (3, 2, CAPACITY.prefixes * 32, 4)
    assert pool.bytes_per_token == 2 * 3 * 2 * 4 * 4
    assert pool.bytes() == pool.keys.nbytes + pool.values.nbytes
    k, v = torch.randn(2, 20, 2, 4)
    pool.put(1, pool.open_prefix(2, 20), k, v)
    assert pool.prefix_places(2) == slice(64, 84)
    assert torch.equal(pool.keys[1, :, 64:84].transpose(0, 1), k)
