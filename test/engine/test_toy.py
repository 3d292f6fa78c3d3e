# SPDX-License-Identifier: Apache-2.0
"""The toy detects every misuse that the other tests rely on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from engine_toy import ToyError, ToyModel, build, chunk_of, prefix_of, recite, see

from oxygen_ros.engine import FinishReason, TextTask
from oxygen_ros.models.interface import Capacity, Rows


@pytest.fixture
def ready() -> tuple[ToyModel, Rows]:
    """Two prefixes in their slots, two suffix slots, and two good rows."""
    model = ToyModel()
    model.allocate(Capacity(prefixes=3, suffixes=2, suffix_tokens=4, max_rows=3))
    for slot in (0, 1):
        model.encode(prefix_of(see(1, slot)), slot)
        model.complete(slot)
        model.fork(slot, slot)
    rows = Rows(3, torch.device("cpu"))
    rows.count, rows.wanted, rows.longest = 2, 2, 1
    rows.token[:2] = torch.tensor([3, 4])
    rows.prefix_slot[:2] = rows.suffix_slot[:2] = rows.wants_logits[:2] = torch.tensor([0, 1])
    rows.prefix_spans = rows.suffix_spans = ((0, 0, 1), (1, 1, 2))
    return model, rows


def test_good_rows_pass(ready: tuple[ToyModel, Rows]) -> None:
    model, rows = ready
    assert model.extend(rows).shape == (2, 16)


def _overwrite(model: ToyModel, rows: Rows) -> None:
    model.encode(prefix_of(see(1, 9)), 1)


def _swap_prefixes(model: ToyModel, rows: Rows) -> None:
    rows.prefix_slot[:2] = torch.tensor([1, 0])
    rows.prefix_spans = ((1, 0, 1), (0, 1, 2))


def _skip_a_place(model: ToyModel, rows: Rows) -> None:
    rows.write_at[1] = 1
    rows.longest = 2


def _leave_the_slot(model: ToyModel, rows: Rows) -> None:
    rows.write_at[1] = 4
    rows.longest = 5


def _wrong_spans(model: ToyModel, rows: Rows) -> None:
    rows.prefix_spans = ((0, 0, 2),)


def _too_many(model: ToyModel, rows: Rows) -> None:
    rows.count = 4


def _same_place(model: ToyModel, rows: Rows) -> None:
    rows.suffix_slot[1] = 0
    rows.suffix_spans = ((0, 0, 1), (0, 1, 2))


def _empty_prefix(model: ToyModel, rows: Rows) -> None:
    rows.prefix_slot[1] = 2
    rows.prefix_spans = ((0, 0, 1), (2, 1, 2))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (_overwrite, "no longer holds what suffix 1"),
        (_swap_prefixes, "no longer holds what suffix 0"),
        (_skip_a_place, "never written"),
        (_leave_the_slot, "write_at outside the slot"),
        (_wrong_spans, "spans do not match"),
        (_too_many, "4 rows, capacity 3"),
        (_same_place, "two rows write one place"),
        (_empty_prefix, "holds no whole prefix"),
    ],
)
def test_bad_rows_are_caught(
    ready: tuple[ToyModel, Rows], spoil: Callable[[ToyModel, Rows], None], words: str
) -> None:
    spoil(*ready)
    with pytest.raises(ToyError, match=words):
        ready[0].extend(ready[1])


def test_a_read_of_a_free_slot_is_caught() -> None:
    engine, model = build()
    encoded = engine.observe(see(1))
    encoded.close()
    with pytest.raises(ToyError, match="used while free"):
        model.denoise(encoded.slot, torch.zeros(4, 3))


def test_contexts_matter() -> None:
    """The reference text depends on content, prompt, adapter and (sampled) on stamp and seed."""
    base = TextTask(kind="memory", prompt="abc", max_tokens=12)
    texts = {
        recite(see(1), base).tokens,
        recite(see(1, 5), base).tokens,
        recite(see(1, memory="x"), base).tokens,
        recite(see(1), TextTask(kind="memory", prompt="abd", max_tokens=12)).tokens,
        recite(see(1), TextTask(kind="memory", prompt="abc", max_tokens=12, adapter="terse")).tokens,
    }
    assert len(texts) == 5
    assert recite(see(2), base) == recite(see(1), base)
    assert not (chunk_of(see(1)) == chunk_of(see(2))).any()
    hot = [TextTask(kind="memory", prompt="abc", max_tokens=12, temperature=2.0, seed=s) for s in (0, 1)]
    assert len({recite(see(stamp), task).tokens for stamp in (1, 2) for task in hot}) == 4
    assert {recite(see(1, c), base).reason for c in range(30)} == {FinishReason.EOS, FinishReason.LENGTH}
