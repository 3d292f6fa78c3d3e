# SPDX-License-Identifier: Apache-2.0
"""The static K/V pool: every slot's keys and values in one tensor per layer, and attention over it.

    place:   0 ....... prefixes * prefix_stride ....... + suffixes * suffix_tokens
             | prefix 0 | prefix 1 | ...  | suffix 0 | suffix 1 | ...  | spare
    prefix:  | tokens (max_prefix) | workspace |

A prefix slot's workspace lets an action expert put its own keys beside the prefix it reads, so that one
attention call reads both without copying either. Text never reads a workspace. The spare place is for rows
that pad a decode step to a captured size.

An expert with other heads or sizes than the backbone has a pool of its own over the same prefix slots,
without suffixes (`heads=0`); `attend_sources` attends to keys of different head counts at once.

Memory and attention only; the engine assigns the slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from oxygen_ros.models.interface import Capacity, Rows

# Keys and values [kv_heads, L, d], and the bias of their places as in `attend`
Source = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]


def attend(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """Attention of q [T, heads, d] over keys and values [kv_heads, L, d] -> [T, heads * d].

    bias: 0 where a query looks, -inf where it does not: [L] for all alike, or [T * heads / kv_heads, L],
          heads of a token together; None: all look everywhere

    The query heads that share a K/V head are folded into the token axis: one read of the keys.
    """
    kv_heads, _, dim = keys.shape
    if q.is_cuda and bias is not None:
        out = attend_by_products(_fold(q, kv_heads), keys, values, bias)
    elif q.is_cuda or q.dtype != torch.float32:
        folded = _fold(q, kv_heads)
        mask = None if bias is None else bias.expand(1, 1, folded.shape[1], -1)
        out = F.scaled_dot_product_attention(folded[None], keys[None], values[None], attn_mask=mask)[0]
    else:
        # The scores of one chunk or one prefix are few: two matrix products beat the blocked kernel.
        scores = _fold(q * dim**-0.5, kv_heads) @ keys.mT
        if bias is not None:
            scores += bias
        out = scores.softmax(dim=-1) @ values
    return _unfold(out, q.shape[0]).flatten(1)


def _fold(x: torch.Tensor, kv_heads: int) -> torch.Tensor:
    """[T, heads, n] -> [kv_heads, T * groups, n]"""
    return x.view(x.shape[0], kv_heads, -1, x.shape[-1]).transpose(0, 1).flatten(1, 2)


def _unfold(x: torch.Tensor, tokens: int) -> torch.Tensor:
    """[kv_heads, T * groups, n] -> [T, heads, n]"""
    return x.view(x.shape[0], tokens, -1, x.shape[-1]).transpose(0, 1).flatten(1, 2)


def attend_by_products(
    q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    """Masked attention on GPUs: q [kv_heads, N, d] -> [kv_heads, N, d]; bias [L] or [N, L].

    The fused kernels that take a mask go through all keys on one multiprocessor for each few dozen queries:
    a decode step over the pool has hardly more, so that most of the GPU would be idle. Products spread the
    keys over all of it, and their kernels do not depend on the build of cuDNN.
    """
    scores = torch.baddbmm(bias, q, keys.mT, alpha=q.shape[-1] ** -0.5)
    return scores.softmax(dim=-1) @ values


def attend_sources(q: torch.Tensor, sources: Sequence[Source]) -> torch.Tensor:
    """As `attend`, over several sources that may differ in their number of K/V heads: one softmax over all.

    The prefix has the backbone's K/V heads, an expert's own tokens the expert's.
    """
    scores, tokens = [], q.shape[0]
    for keys, _, bias in sources:
        score = _fold(q * q.shape[-1] ** -0.5, keys.shape[0]) @ keys.mT
        scores.append(_unfold(score if bias is None else score + bias, tokens))
    weights = torch.cat(scores, -1).softmax(-1)
    out, first = torch.zeros_like(q), 0
    for _, values, _ in sources:
        last = first + values.shape[1]
        out += _unfold(_fold(weights[..., first:last], values.shape[0]) @ values, tokens)
        first = last
    return out.flatten(1)


def align(places: int) -> int:
    """The next multiple of 16: a GPU's products read rows of other lengths less well, and masked attention to
    other numbers of keys takes a CPU in bfloat16 up to three times as long."""
    return -(-places // 16) * 16


@dataclass(frozen=True, slots=True)
class PrefixRun:
    """Prefixes in neighboring slots with equally many rows each: one product reads them in place.

    base:      first place of the first prefix
    prefixes:  how many; `length`: tokens of the longest
    first, last:  rows of all of them, from .. to one past the end
    unseen:    [prefixes, 1, length] True beyond the end of shorter ones; None when all are as long
    """

    base: int
    prefixes: int
    length: int
    first: int
    last: int
    unseen: torch.Tensor | None


@dataclass(slots=True)
class RowView:
    """What the attention of one `extend` needs in every layer, computed once.

    place:   [R] place in the pool that each row's own K/V goes to
    runs:    prefixes that one product reads together; empty for attention over the whole pool
    suffix:  [R, longest] places of each row's suffix; with `runs`
    unseen:  [R, longest] True where a row must not look: after itself; with `runs`
    bias:    [R * groups, places] 0 where a row looks, -inf elsewhere, for attention over the whole pool
    """

    place: torch.Tensor
    runs: list[PrefixRun]
    suffix: torch.Tensor | None = None
    unseen: torch.Tensor | None = None
    bias: torch.Tensor | None = None


class KvPool:
    """Keys and values of all prefixes and suffixes; made once, never grown."""

    def __init__(
        self,
        capacity: Capacity,
        *,
        layers: int,
        kv_heads: int,
        head_dim: int,
        max_prefix: int,
        device: torch.device,
        dtype: torch.dtype,
        heads: int = 0,
        workspace: int = 0,
        over_pool: bool = False,
    ) -> None:
        """heads:  query heads of the text rows; 0: a pool of prefixes alone, for an expert
        over_pool: rows attend over the whole pool under a mask (static shapes, one read of each
                   prefix per layer); else prefix by prefix, which does no work for free slots
        """
        suffixes = capacity.suffixes if heads else 0
        self.prefix_stride = align(max_prefix + workspace)
        self.suffix_tokens = capacity.suffix_tokens
        self.suffix_base = capacity.prefixes * self.prefix_stride
        places = align(self.suffix_base + suffixes * capacity.suffix_tokens + (1 if heads else 0))
        # Zeros, not empty: a masked place is still multiplied by zero, and 0 * NaN is NaN.
        self.keys = torch.zeros(layers, kv_heads, places, head_dim, device=device, dtype=dtype)
        self.values = torch.zeros_like(self.keys)
        self.over_pool = over_pool
        self._groups = heads // kv_heads
        # The fields of a row that pads a step, see Rows: its suffix slot begins at the spare place.
        self.padding_row = torch.zeros(len(Rows.FIELDS), 1, dtype=torch.int64, device=device)
        self.padding_row[Rows.FIELDS.index("suffix_slot")] = suffixes
        self._lengths = [0] * capacity.prefixes
        self._lengths_on_device = torch.zeros(capacity.prefixes, dtype=torch.int64, device=device)
        self._column = torch.arange(capacity.suffix_tokens, device=device)
        self._place = torch.arange(places, device=device)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token takes over all layers."""
        layers, kv_heads, _, head_dim = self.keys.shape
        return 2 * layers * kv_heads * head_dim * self.keys.element_size()

    def bytes(self) -> int:
        return self.bytes_per_token * self.keys.shape[2]

    def open_prefix(self, slot: int, tokens: int) -> slice:
        """Places of a prefix that is about to be written with `tokens` tokens."""
        self._lengths[slot] = tokens
        self._lengths_on_device[slot] = tokens
        base = slot * self.prefix_stride
        return slice(base, base + tokens)

    def prefix_places(self, slot: int, workspace: int = 0) -> slice:
        """Places of a prefix, with the first `workspace` places after it."""
        base = slot * self.prefix_stride
        return slice(base, base + self._lengths[slot] + workspace)

    def clear(self, places: slice) -> None:
        """Write zeros. Attention over the whole pool multiplies masked places by zero, so one value that is
        not finite, left by a diverged chunk, would make every text NaN."""
        self.keys[:, :, places] = 0
        self.values[:, :, places] = 0

    def view(self, rows: Rows) -> RowView:
        """Prepare the attention of a step; see RowView."""
        live = slice(0, rows.count)
        start = self.suffix_base + rows.suffix_slot[live] * self.suffix_tokens
        place = start + rows.write_at[live]
        if self.over_pool:
            return RowView(place, [], bias=self._hide_others(rows.prefix_slot[live], start, place))
        column = self._column[: rows.longest]
        return RowView(
            place,
            self._find_runs(rows),
            suffix=start[:, None] + column,
            unseen=column > rows.write_at[live, None],
        )

    def _find_runs(self, rows: Rows) -> list[PrefixRun]:
        # With several K/V heads a batched product would copy the keys first: one prefix at a time then.
        may_join = self.keys.shape[1] == 1
        groups: list[list[tuple[int, int, int]]] = []
        for slot, first, last in rows.prefix_spans:
            if groups and may_join:
                before, begin, end = groups[-1][-1]
                if slot == before + 1 and first == end and last - first == end - begin:
                    groups[-1].append((slot, first, last))
                    continue
            groups.append([(slot, first, last)])
        return [self._make_run(group) for group in groups]

    def _make_run(self, spans: list[tuple[int, int, int]]) -> PrefixRun:
        lengths = [self._lengths[slot] for slot, _, _ in spans]
        longest = max(lengths)
        unseen = None
        if min(lengths) < longest:
            ends = torch.tensor(lengths, device=self._place.device)
            unseen = (self._place[:longest] >= ends[:, None]).unsqueeze(1)
        first, last = spans[0][1], spans[-1][2]
        return PrefixRun(spans[0][0] * self.prefix_stride, len(spans), longest, first, last, unseen)

    def _hide_others(self, prefix: torch.Tensor, start: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        base = prefix[:, None] * self.prefix_stride
        length = self._lengths_on_device[prefix]
        in_prefix = (self._place >= base) & (self._place < base + length[:, None])
        in_suffix = (self._place >= start[:, None]) & (self._place <= place[:, None])
        bias = torch.zeros(in_prefix.shape, dtype=self.keys.dtype, device=self.keys.device)
        bias.masked_fill_(~(in_prefix | in_suffix), float("-inf"))
        return bias.repeat_interleave(self._groups, dim=0)

    def put(self, layer: int, places: slice | torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
        """Write k and v [T, kv_heads, d] to their places."""
        keys, values = self.keys[layer], self.values[layer]
        if isinstance(places, slice):
            keys[:, places] = k.transpose(0, 1)
            values[:, places] = v.transpose(0, 1)
        else:
            keys.index_copy_(1, places, k.transpose(0, 1))
            values.index_copy_(1, places, v.transpose(0, 1))

    def attend_rows(self, layer: int, q: torch.Tensor, view: RowView) -> torch.Tensor:
        """Rows q [R, heads, d] over their prefixes and suffixes -> [R, heads * d]."""
        keys, values = self.keys[layer], self.values[layer]
        if view.bias is not None:
            return attend(q, keys, values, view.bias)
        assert view.suffix is not None
        assert view.unseen is not None
        count, heads, dim = q.shape
        kv_heads = keys.shape[0]
        grouped = (q * dim**-0.5).view(count, kv_heads, -1, dim).transpose(0, 1)  # [kv, R, groups, d]
        # Keys are the left operand: in bfloat16 a product copies its transposed operand, and they are large.
        suffix_scores = (keys[:, view.suffix] @ grouped.mT).mT  # [kv, R, groups, longest]
        suffix_scores.masked_fill_(view.unseen[None, :, None], float("-inf"))
        out = torch.empty_like(grouped)
        suffix_weights = torch.empty_like(suffix_scores)
        for run in view.runs:
            rows = slice(run.first, run.last)
            places = slice(run.base, run.base + run.prefixes * self.prefix_stride)
            apart = (kv_heads, run.prefixes, self.prefix_stride, dim)
            prefix_keys = keys[:, places].view(apart)[:, :, : run.length]
            prefix_values = values[:, places].view(apart)[:, :, : run.length]
            mine = grouped[:, rows].reshape(kv_heads, run.prefixes, -1, dim)
            scores = (prefix_keys @ mine.mT).mT  # [kv, prefixes, rows * groups, length]
            if run.unseen is not None:
                scores.masked_fill_(run.unseen, float("-inf"))
            own = suffix_scores[:, rows].reshape(*mine.shape[:3], -1)
            weights = torch.cat((scores, own), dim=-1).softmax(dim=-1)
            prefix_part = weights[..., : run.length] @ prefix_values
            out[:, rows] = prefix_part.view(out[:, rows].shape)
            suffix_weights[:, rows] = weights[..., run.length :].view(suffix_weights[:, rows].shape)
        out += suffix_weights @ values[:, view.suffix]
        return out.transpose(0, 1).reshape(count, heads * dim)
