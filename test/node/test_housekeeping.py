# SPDX-License-Identifier: Apache-2.0
"""Garbage collection happens between ticks, never inside one, and memory stays bounded all the same."""

from __future__ import annotations

import gc
import time

import pytest

from oxygen_ros.node import housekeeping
from oxygen_ros.node.housekeeping import Housekeeper


class Knot:
    """Garbage that only a collection finds."""

    alive = 0

    def __init__(self) -> None:
        self.me = self
        Knot.alive += 1

    def __del__(self) -> None:
        Knot.alive -= 1


@pytest.fixture(autouse=True)
def _clean():
    gc.collect()
    Knot.alive = 0
    yield
    assert gc.isenabled(), "left switched off"


def litter(count: int) -> None:
    for _ in range(count):
        Knot()


def test_nothing_is_collected_inside_a_tick_and_all_of_it_in_the_pause() -> None:
    with Housekeeper() as keeper:
        litter(housekeeping.WORTH_IT * 3)
        assert Knot.alive == housekeeping.WORTH_IT * 3
        before = time.perf_counter()
        left = keeper.rest(5.0)
        spent = time.perf_counter() - before
        assert Knot.alive == 0
        assert 5.0 - spent <= left < 5.0, "the pause is shorter by what was spent"
        assert keeper.forced == 0


def test_a_pause_too_short_is_left_alone_until_there_is_too_much() -> None:
    with Housekeeper() as keeper:
        done = keeper.collections
        litter(housekeeping.WORTH_IT * 3)
        assert keeper.rest(0.0) == 0.0
        assert keeper.collections == done
        litter(housekeeping.TOO_MANY)
        assert keeper.rest(0.0) < 0.0
        assert Knot.alive == 0
        assert keeper.forced == 1


def test_little_garbage_costs_nothing() -> None:
    with Housekeeper() as keeper:
        done = keeper.collections
        litter(10)
        assert keeper.rest(10.0) == 10.0
        assert keeper.collections == done


def test_what_lives_at_the_start_is_not_looked_at_again() -> None:
    """A large heap makes no collection slow: it is set aside, and comes back at the end."""
    heap = [[i] for i in range(200_000)]
    with Housekeeper():
        assert gc.get_freeze_count() >= len(heap)
        assert not gc.isenabled()
    assert gc.get_freeze_count() == 0


def test_an_error_leaves_collection_on() -> None:
    with pytest.raises(RuntimeError, match="tick"), Housekeeper():
        raise RuntimeError("tick")
    assert gc.isenabled()
