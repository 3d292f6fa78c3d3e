# SPDX-License-Identifier: Apache-2.0
"""Slot numbers: random use against a plain model, misuse, and corruption that must be noticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.engine.slots import SlotError, SlotPool


@given(
    size=st.integers(1, 5), moves=st.lists(st.tuples(st.sampled_from("art"), st.integers(0, 4)), max_size=60)
)
def test_random_use_agrees_with_a_plain_model(size: int, moves: list[tuple[str, int]]) -> None:
    pool = SlotPool("prefix", size)
    held: dict[int, int] = {}
    for move, number in moves:
        slot = number % size
        if move == "a":
            got = pool.acquire()
            if len(held) == size:
                assert got is None
            else:
                assert got is not None
                assert got not in held
                assert 0 <= got < size
                held[got] = 1
        elif slot not in held:
            with pytest.raises(SlotError, match=f"prefix {slot}: re"):
                (pool.retain if move == "t" else pool.release)(slot)
        elif move == "t":
            pool.retain(slot)
            held[slot] += 1
        else:
            pool.release(slot)
            held[slot] -= 1
            if held[slot] == 0:
                del held[slot]
        pool.check_integrity()
        assert (pool.used, pool.free) == (len(held), size - len(held))
        assert [pool.references(s) for s in range(size)] == [held.get(s, 0) for s in range(size)]


def test_a_pool_has_at_least_one_slot() -> None:
    with pytest.raises(ValueError, match="suffix: a pool needs at least one slot, got 0"):
        SlotPool("suffix", 0)


def test_integrity_notices_a_slot_freed_twice() -> None:
    pool = SlotPool("prefix", 3)
    pool._free.append(1)
    with pytest.raises(SlotError, match="free list twice"):
        pool.check_integrity()


def test_integrity_notices_a_lost_slot() -> None:
    pool = SlotPool("prefix", 3)
    pool._free.remove(2)
    with pytest.raises(SlotError, match="prefix 2: 0 references"):
        pool.check_integrity()


def test_integrity_notices_a_held_slot_on_the_free_list() -> None:
    pool = SlotPool("prefix", 3)
    slot = pool.acquire()
    assert slot is not None
    pool._free.append(slot)
    with pytest.raises(SlotError, match=f"prefix {slot}: 1 references"):
        pool.check_integrity()
