# SPDX-License-Identifier: Apache-2.0
"""One prefill and one slot for all readers of a prefix; actions that do not depend on text."""

from __future__ import annotations

import numpy as np
import pytest
from engine_toy import build, chunk_of, recite, see

from oxygen_ros.engine import MODES, Budget, Engine, FinishReason, TextTask
from oxygen_ros.observation import Observation

KINDS = ("memory", "narration", "answer")


def _ask(engine: Engine, stamp: int, texts: int, **limits: object) -> None:
    with engine.observe(see(stamp, stamp % 3)) as encoded:
        engine.act(encoded)
        for number in range(texts):
            task = TextTask(kind=KINDS[number % 3], prompt=f"ask {number}", max_tokens=20, **limits)  # type: ignore[arg-type]
            engine.ask(encoded, task)


@pytest.mark.parametrize("texts", [0, 1, 2, 3])
@pytest.mark.parametrize("mode", sorted(MODES))
def test_prefills_of_a_tick(mode: str, texts: int) -> None:
    """One where prefixes are shared; else one for the actions and one for each text."""
    engine, model = build(mode=mode, prefixes=20, suffixes=20)
    for tick in range(1, 6):
        _ask(engine, tick, texts)
        engine.advance(Budget(steps=4))
        each = 1 if mode in ("shared", "oxygen") else 1 + texts
        assert engine.counters.prefills == model.calls["encode"] == each * tick


@pytest.mark.parametrize(("mode", "prefixes"), [("oxygen", 1), ("batched", 3)])
def test_requests_of_one_frame_share_its_slot(mode: str, prefixes: int) -> None:
    engine, _ = build(mode=mode, when_full="reject_new")
    _ask(engine, 1, 3)
    engine.advance(Budget(steps=0))
    slots = {request.encoded.slot for request in engine._scheduler.live}
    assert (engine.prefixes.used, engine.suffixes.used, len(slots)) == (prefixes, 3, prefixes)


def test_reference_counts_of_a_shared_slot() -> None:
    engine, _ = build()
    encoded = engine.observe(see(1))
    counts = [engine.prefixes.references(encoded.slot)]
    ids = []
    for number in range(3):
        ids.append(engine.ask(encoded, TextTask(kind="memory", prompt=f"{number}", max_tokens=20)))
        counts.append(engine.prefixes.references(encoded.slot))
    assert counts == [1, 2, 3, 4]
    encoded.close()
    engine.advance(Budget(steps=1))
    assert engine.prefixes.references(encoded.slot) == 3
    for left, request_id in zip((2, 1, 0), ids, strict=True):
        engine.cancel(FinishReason.CANCELLED, request_id)
        assert engine.prefixes.references(encoded.slot) == left
        engine.check_integrity()
    assert engine.prefixes.used == 0


def test_a_paused_text_costs_its_suffix_slot_and_is_never_recomputed() -> None:
    """However many ticks it waits, each of its tokens goes through the model once."""
    engine, model = build(suffix_tokens=64)
    observation = next(o for o in (see(1, c) for c in range(99)) if len(_alone(o)) == 20)
    with engine.observe(observation) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="ask 0", max_tokens=20))
    for tick in range(2, 80):
        engine.observe(see(tick, 1)).close()
        if engine.advance(Budget(steps=1 if tick % 3 == 0 else 0)):
            break
    assert sum(model.steps) == 5 + 19  # the prompt's five letters and all tokens but the last
    assert model.calls["encode"] == engine.counters.ticks


def _alone(observation: Observation) -> tuple[int, ...]:
    return recite(observation, TextTask(kind="memory", prompt="ask 0", max_tokens=20)).tokens


@pytest.mark.parametrize("mode", sorted(MODES))
@pytest.mark.parametrize("adapter", ["", "terse"])
def test_actions_are_bitwise_the_same_whatever_the_text(mode: str, adapter: str) -> None:
    quiet, _ = build(mode=mode, prefixes=20, suffixes=20, seed=3)
    busy, _ = build(mode=mode, prefixes=20, suffixes=20, seed=3)
    for tick in range(1, 15):
        observation = see(tick, tick % 3)
        with quiet.observe(observation) as encoded:
            expected = quiet.act(encoded)
        with busy.observe(observation) as encoded:
            before = busy.act(encoded)
            for kind in KINDS:
                busy.ask(encoded, TextTask(kind=kind, prompt=kind, max_tokens=9, adapter=adapter))
            busy.advance(Budget(steps=3))
            after = busy.act(encoded)
        assert np.array_equal(before, expected)
        assert np.array_equal(after, expected)
        assert np.array_equal(expected, chunk_of(observation, seed=3))


def test_the_prefix_in_the_slot_is_not_changed_by_its_readers() -> None:
    engine, model = build()
    with engine.observe(see(1)) as encoded:
        content = model.prefixes[encoded.slot].copy()
        engine.ask(encoded, TextTask(kind="memory", prompt="abc", max_tokens=9))
        engine.advance(Budget(steps=20))
        engine.act(encoded)
        assert np.array_equal(model.prefixes[encoded.slot], content)


def test_a_frame_lives_as_long_as_its_last_reader() -> None:
    """The `with` block may end before the text, and the text before the block."""
    engine, _ = build()
    with engine.observe(see(1)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="abc", max_tokens=1))
        engine.advance(Budget(steps=2))
        assert engine.live == 0
        assert engine.prefixes.references(encoded.slot) == 1
    assert engine.prefixes.used == 0
    with engine.observe(see(2)) as encoded:
        engine.ask(encoded, TextTask(kind="memory", prompt="abc", max_tokens=1))
    assert engine.prefixes.references(encoded.slot) == 1
    engine.advance(Budget(steps=2))
    assert engine.prefixes.used == 0


@pytest.mark.parametrize("spoil", ["prefix", "suffix", "finished", "pending", "long"])
def test_integrity_notices_what_is_wrong(spoil: str) -> None:
    engine, _ = build()
    _ask(engine, 1, 2)
    engine.advance(Budget(steps=1))
    engine.check_integrity()
    request = engine._scheduler.live[0]
    if spoil == "prefix":
        engine.prefixes.retain(request.encoded.slot)
    elif spoil == "suffix":
        engine.suffixes.acquire()
    elif spoil == "finished":
        request.finish_reason = FinishReason.EOS
    elif spoil == "pending":
        request.pending = []
    else:
        request.cached = 64
    words = {
        "prefix": r"references, \d holders",
        "suffix": "1 references, 0 requests",
        "finished": "request 1: LIVE, finish reason eos, where it should be LIVE and unfinished",
        "pending": "nothing to run",
        "long": "its slot holds 64",
    }
    with pytest.raises(RuntimeError, match=words[spoil]):
        engine.check_integrity()
