# SPDX-License-Identifier: Apache-2.0
"""Attention over the pool against attention written out, for any mix of frames, lengths and rows."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.models import Capacity, Rows
from oxygen_ros.models.layers import Rotary, rotate
from oxygen_ros.models.pool import KvPool, attend, attend_by_products

CPU = torch.device("cpu")
HEADS, DIM, MAX_PREFIX, WORKSPACE = 4, 8, 6, 3
CAPACITY = Capacity(frames=4, suffixes=5, suffix_tokens=7, max_rows=16)


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
    st.tuples(st.integers(0, CAPACITY.frames - 1), st.integers(0, 4), st.integers(1, 3)),
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
    """Each request: (frame, tokens cached, tokens now); suffix slot i belongs to request i."""
    pool = make_pool(over_pool, kv_heads, seed)
    for slot, length in enumerate(lengths):
        pool.open_frame(slot, length)
    rows = Rows(CAPACITY.max_rows, CPU)
    spans: list[tuple[int, int, int]] = []
    at = 0
    for suffix, (frame, cached, now) in sorted(enumerate(asked), key=lambda r: r[1][0]):
        first = at
        for place in range(cached, cached + now):
            rows.frame_slot[at], rows.suffix_slot[at], rows.write_at[at] = frame, suffix, place
            rows.longest = max(rows.longest, place + 1)
            at += 1
        if spans and spans[-1][0] == frame:
            first = spans.pop()[1]
        spans.append((frame, first, at))
    rows.count, rows.frame_spans = at, spans
    generator = torch.Generator().manual_seed(seed + 1)
    q = torch.randn(at, HEADS, DIM, generator=generator)
    k, v = (torch.randn(at, kv_heads, DIM, generator=generator) for _ in range(2))
    view = pool.view(rows)
    before = pool.keys.clone(), pool.values.clone()
    pool.put(1, view.place, k, v)
    out = pool.attend_rows(1, q, view)
    assert torch.equal(pool.keys[0], before[0][0]), "another layer was written to"
    stride, tokens = pool.frame_stride, CAPACITY.suffix_tokens
    base = CAPACITY.frames * stride
    for row in range(at):
        frame, suffix, place = (
            int(field[row]) for field in (rows.frame_slot, rows.suffix_slot, rows.write_at)
        )
        start = base + suffix * tokens
        assert torch.equal(pool.keys[1, :, start + place], k[row])
        assert torch.equal(pool.values[1, :, start + place], v[row])
        seen = [*range(frame * stride, frame * stride + lengths[frame]), *range(start, start + place + 1)]
        expected = written_out(q[row], pool.keys[1][:, seen], pool.values[1][:, seen])
        torch.testing.assert_close(out[row].double(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_attend_is_attention(kv_heads: int) -> None:
    generator = torch.Generator().manual_seed(kv_heads)
    q = torch.randn(5, HEADS, DIM, generator=generator)
    k, v = (torch.randn(kv_heads, 11, DIM, generator=generator) for _ in range(2))
    expected = torch.stack([written_out(row, k, v) for row in q])
    torch.testing.assert_close(attend(q, k, v).double(), expected, atol=1e-5, rtol=1e-5)
    # Padded behind: what nobody may see changes nothing.
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
    for slot in range(CAPACITY.frames):
        pool.open_frame(slot, MAX_PREFIX)
        places = pool.frame_places(slot, workspace=WORKSPACE)
        mine = set(range(places.start, places.stop))
        assert len(mine) == MAX_PREFIX + WORKSPACE
        assert not mine & taken
        taken |= mine
    assert max(taken) < pool.suffix_base
    spare = pool.suffix_base + CAPACITY.suffixes * CAPACITY.suffix_tokens
    assert spare < pool.keys.shape[2], "no place is left for rows of nobody"
    slot = Rows.FIELDS.index("suffix_slot")
    assert pool.suffix_base + int(pool.nobody[slot, 0]) * CAPACITY.suffix_tokens == spare


def test_clear_leaves_zeros_there_and_nowhere_else() -> None:
    pool = make_pool(True, 2, 0)
    pool.keys[:, :, 4:6] = math.nan
    before = pool.keys.clone()
    pool.clear(slice(4, 6))
    assert pool.keys[:, :, 4:6].eq(0).all()
    assert pool.values[:, :, 4:6].eq(0).all()
    before[:, :, 4:6] = 0
    assert torch.equal(pool.keys, before)


def test_rotation_depends_on_distance_alone() -> None:
    """Scores of rotated q and k are a function of how far apart they stand (Su et al. 2021)."""
    table = Rotary(DIM, 10000.0, 64, CPU, torch.float32)
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(1, 1, DIM, generator=generator) for _ in range(2))

    def score(a: int, b: int) -> float:
        at_a, at_b = (rotate(x, table.at(torch.tensor([p]))) for x, p in ((q, a), (k, b)))
        return float((at_a * at_b).sum())

    for distance in (0, 1, 7):
        scores = [score(p + distance, p) for p in (0, 3, 40)]
        assert max(scores) - min(scores) < 1e-4
    assert abs(score(5, 0) - score(0, 5)) > 1e-3, "it has a direction"
    torch.testing.assert_close(rotate(q, table.at(slice(0, 1))), q)
