# SPDX-License-Identifier: Apache-2.0
"""Memory, measured: the pools are all there is, they stay where they are, and a request costs no prefix."""

from __future__ import annotations

import gc
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from models_scene import demo_config, make_model, make_network, observe, task

from oxygen_ros.engine import Budget, Engine, Load, plan_capacity
from oxygen_ros.models import Capacity

BUDGET = Budget(steps=2, rows=32)


def storage() -> int:
    """Bytes of all torch storages that Python can reach, each counted once."""
    gc.collect()
    seen = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and thing.layout == torch.strided:
            held = thing.untyped_storage()
            seen[held.data_ptr()] = held.nbytes()
    return sum(seen.values())


def resident() -> int:
    """Resident bytes of this process (Linux)."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_token_costs_what_the_spec_says(demo_network) -> None:
    """Pool bytes are places x bytes a token, prefixes in whole sixteens, with one place to spare, in whole
    sixteens; nothing else."""
    model = make_model(demo_network)
    for prefixes, suffixes, tokens in ((2, 1, 8), (5, 9, 31)):
        model.allocate(Capacity(prefixes=prefixes, suffixes=suffixes, suffix_tokens=tokens, max_rows=4))
        config = model.config
        prefix = math.ceil((config.max_prefix + config.horizon) / 16) * 16
        places = prefixes * prefix + suffixes * tokens + 1
        assert model.pool_bytes() == math.ceil(places / 16) * 16 * model.pool.bytes_per_token
        assert model.pool_bytes() == model.pool.keys.nbytes + model.pool.values.nbytes


def test_requests_of_one_prefix_share_its_slot(demo_network) -> None:
    """Eight texts over one prefix: one prefill, one prefix slot, no byte more than with one text."""
    capacity = Capacity(prefixes=2, suffixes=8, suffix_tokens=40, max_rows=32)
    engine = Engine(make_model(demo_network), capacity)
    pools = engine.model.pool_bytes()
    with engine.observe(observe(1)) as encoded:
        before = storage()
        for i in range(8):
            engine.ask(encoded, task("narration", max_tokens=20, prompt=f"Part {i}: "))
    ended = engine.advance(Budget(steps=3, rows=32))
    assert engine.live + len(ended) == 8
    assert engine.live >= 4
    assert (engine.prefixes.size - engine.prefixes.free, engine.counters.prefills) == (1, 1)
    assert engine.model.pool_bytes() == pools
    one_prefix = encoded.prefix.tokens * engine.model.pool.bytes_per_token
    assert storage() - before < one_prefix / 4, "eight requests hold memory of their own"


def test_allocating_again_drops_the_earlier_pools(demo_network) -> None:
    model = make_model(demo_network)
    capacity = Capacity(prefixes=8, suffixes=8, suffix_tokens=64, max_rows=8)
    model.allocate(capacity)
    first = storage()
    for _ in range(3):
        model.allocate(capacity)
    assert storage() == first


@pytest.mark.parametrize("over_pool", [False, True], ids=["by_prefix", "over_pool"])
def test_two_hundred_ticks_at_worst_load_take_no_more_memory(over_pool: bool) -> None:
    """Every tick asks for as much as the pools were sized for, and more than they can take.

    One layer of each tower: memory is what is looked at, and it grows with every layer alike.
    """
    config = demo_config()
    towers = {name: replace(getattr(config, name), depth=1) for name in ("vision", "backbone", "expert")}
    network = make_network(**towers)
    loads = [Load(max_tokens=5, prompt_tokens=8), Load(max_tokens=6, prompt_tokens=11)]
    capacity = plan_capacity(loads, BUDGET, draft=2)
    engine = Engine(
        make_model(network, over_pool=over_pool, denoise_steps=1),
        capacity,
        draft=2,
        when_full="drop_oldest",
    )
    pool = engine.model.pool
    stays = [pool.keys, pool.values, engine._runner.rows.block]
    addresses = [tensor.data_ptr() for tensor in stays]
    observations = [observe(tick, cameras=("top",)) for tick in range(10)]
    marks = []
    for tick in range(200):
        with engine.observe(observations[tick % 10]) as encoded:
            engine.act(encoded)
            engine.ask(encoded, task("memory", max_tokens=5))
            engine.ask(encoded, task("narration", max_tokens=6))
        engine.advance(BUDGET)
        if tick in (59, 199):  # the same observation, the same texts under way
            marks.append((storage(), resident()))
    assert engine.counters.ticks == engine.counters.prefills == 200
    assert engine.counters.finished > 200
    assert [tensor.data_ptr() for tensor in stays] == addresses, "a pool was made anew"
    assert engine.model.pool is pool
    (tensors, in_use), (tensors_later, in_use_later) = marks
    assert tensors_later - tensors < 16_384, f"{tensors_later - tensors} bytes of tensors more"
    # The allocator's own play; a leak of one prefix a tick would be 3 MB, of one tick's pixels 11 MB.
    assert in_use_later - in_use < 2_000_000, f"{in_use_later - in_use} bytes more resident"
