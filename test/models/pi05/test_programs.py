# SPDX-License-Identifier: Apache-2.0
"""Programs of static shapes give what the passes give that are laid out anew each time.

No GPU is needed: `Traced` captures a program as the list of its kernels, with every number the host knew at
that time frozen in, as a CUDA graph does; a value that should have been read from a static tensor is wrong
in the next run. Nothing here is timed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from models_scene import (
    ROOMY,
    demo_config,
    drive,
    make_model,
    make_network,
    observe,
    prefix_tokens,
    task,
    write_adapter,
)
from torch.fx.experimental.proxy_tensor import make_fx

from oxygen_ros.engine import Budget, Engine, TextTask
from oxygen_ros.models import Guide, Rows
from oxygen_ros.models.graphs import Eager, Work, find_capturer
from oxygen_ros.models.pi05.processor import Pi05Inputs
from oxygen_ros.models.programs import prompt_buckets

HORIZON, DIM = 16, 7


class Traced:
    """Captures kernels over the same tensors; the output keeps its place, as a graph's does."""

    def capture(self, work: Work) -> Work:
        nothing = torch.zeros(1)
        with torch.inference_mode(False), torch.no_grad():
            kernels = make_fx(lambda _: work())(nothing)
            output = kernels(nothing)

        def replay() -> torch.Tensor:
            return output.copy_(kernels(nothing))

        return replay


class Counting(Eager):
    programs = 0

    def capture(self, work: Work) -> Work:
        self.programs += 1
        return super().capture(work)


class Broken:
    def capture(self, work: Work) -> Work:
        raise RuntimeError("operation not permitted when stream is capturing")


def load(network, capturer=None):
    model = make_model(network, over_pool=True, capturer=capturer, denoise_steps=2)
    model.allocate(ROOMY)
    if capturer is not None:
        assert model.prepare(inputs_of(20)) == ""
    return model


@pytest.fixture(scope="module")
def small():
    """Tracing takes its time: two layers of each stream, one of the tower."""
    c = demo_config()
    return make_network(
        vision=replace(c.vision, depth=1),
        backbone=replace(c.backbone, depth=2),
        expert=replace(c.expert, depth=2),
    )


@pytest.fixture(scope="module")
def captured(small):
    return load(small, Traced())


@pytest.fixture(scope="module")
def plain(small):
    return load(small)


def inputs_of(words: int, cameras: int = 2, seed: int = 0) -> Pi05Inputs:
    generator = torch.Generator().manual_seed(seed + words)
    images = torch.rand(cameras, 3, 80, 80, generator=generator) * 2 - 1
    return Pi05Inputs(images, torch.randint(3, 250, (words,), generator=generator))


def noise(seed: int = 0) -> torch.Tensor:
    return torch.randn(HORIZON, DIM, generator=torch.Generator().manual_seed(seed))


def lay_out(rows: Rows, model, parts) -> Rows:
    """Rows of (prefix and suffix slot, tokens, first place, whether logits are wanted)."""
    rows.block.fill_(31)  # what earlier steps left there
    at = wanted = 0
    for slot, tokens, first, is_wanted in parts:
        for place, token in enumerate(tokens, start=first):
            rows.token[at], rows.write_at[at], rows.adapter[at] = token, place, 0
            rows.position[at] = prefix_tokens(model, slot) + place
            rows.prefix_slot[at] = rows.suffix_slot[at] = slot
            if is_wanted:
                rows.wants_logits[wanted] = at
                wanted += 1
            at += 1
    rows.count, rows.wanted = at, wanted
    return rows


def test_buckets_hold_every_prompt() -> None:
    assert prompt_buckets(200) == [*range(16, 200, 16), 200]
    assert prompt_buckets(64) == [16, 32, 48, 64]
    assert prompt_buckets(10) == [10]


@pytest.mark.parametrize("words", [1, 15, 16, 17, 40, 63, 64])
def test_a_padded_prefix_is_the_prefix(captured, plain, words: int) -> None:
    """Whatever the length in its bucket: the same keys, action chunks and words follow, in every slot."""
    slot = words % 5
    inputs = inputs_of(words)
    for model in (captured, plain):
        # A longer prefix was there before.
        model.encode(inputs_of(64, seed=7), slot)
        prefix = model.encode(inputs, slot)
        assert prefix.tokens == prefix.next_position == 50 + words
    places = plain.pool.prefix_places(slot)
    for ours, theirs in ((captured.pool.keys, plain.pool.keys), (captured.pool.values, plain.pool.values)):
        torch.testing.assert_close(ours[:, :, places], theirs[:, :, places], atol=2e-6, rtol=1e-5)
    torch.testing.assert_close(
        captured.denoise(slot, noise(words)), plain.denoise(slot, noise(words)), atol=1e-6, rtol=0
    )
    step = [lay_out(Rows(32, m.device), m, [(slot, [40, 41, 42], 0, True)]) for m in (captured, plain)]
    torch.testing.assert_close(captured.extend(step[0]), plain.extend(step[1]), atol=1e-5, rtol=1e-5)


def test_padding_is_seen_by_nobody() -> None:
    """Another padding token gives the same bits."""
    results = []
    for pad in (256, 77):
        network = make_network()
        object.__setattr__(network.config, "pad_id", pad)
        model = load(network, Eager())
        model.encode(inputs_of(21), 0)
        logits = model.extend(lay_out(Rows(32, model.device), model, [(0, [5, 6, 7], 0, True)])).clone()
        results.append((model.denoise(0, noise()), logits))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])


def test_a_guided_chunk_and_one_after_it_that_is_not(captured, plain) -> None:
    generator = torch.Generator().manual_seed(5)
    previous = torch.randn(HORIZON, DIM, generator=generator)
    weights = torch.rand(HORIZON, DIM, generator=generator)
    for model in (captured, plain):
        model.encode(inputs_of(30), 2)
    for guide in (None, Guide(previous, weights), Guide(previous, weights, max_weight=2.5), None):
        ours, theirs = (model.denoise(2, noise(3), guide) for model in (captured, plain))
        torch.testing.assert_close(ours, theirs, atol=2e-6, rtol=0)


@pytest.mark.parametrize("count", [1, 2, 3, 5, 9, 16, 31])
def test_padded_rows_change_nothing(captured, plain, count: int) -> None:
    """Rows of several prefixes, in buckets that they do not fill; some want no logits."""
    for model in (captured, plain):
        for slot in range(4):
            model.encode(inputs_of(10 + slot), slot)
        model.pool.keys[:, :, model.pool.suffix_base :] = 0.5
        model.pool.values[:, :, model.pool.suffix_base :] = 0.5
    parts, left = [], count
    for slot in range(4):
        share = min(left, max(1, count // 4)) if slot < 3 else left
        if share:
            parts.append((slot, list(range(60, 60 + share)), slot, slot != 1))
        left -= share
    ours, theirs = (m.extend(lay_out(Rows(32, m.device), m, parts)) for m in (captured, plain))
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    spare = captured.pool.suffix_base + ROOMY.suffixes * ROOMY.suffix_tokens
    for a, b in ((captured.pool.keys, plain.pool.keys), (captured.pool.values, plain.pool.values)):
        torch.testing.assert_close(
            a[:, :, captured.pool.suffix_base : spare], b[:, :, plain.pool.suffix_base : spare],
            atol=1e-5, rtol=1e-5,
        )  # fmt: skip
        assert a.isfinite().all(), "a padding row left a value that is not finite in the pool"


def question(tick: int) -> TextTask:
    return task("answer", words={"question": f"what is it at tick {tick}?"}, max_tokens=4)


def sampled(tick: int) -> TextTask:
    return task("subtask", max_tokens=5, temperature=0.8, top_p=0.9, seed=tick)


def test_a_whole_run_is_the_same(demo_network) -> None:
    """Prompts of all lengths, mixed steps, drafts, sampling, one camera at times: texts and chunks."""
    cameras = (("top", "wrist"), ("wrist",), ("top", "wrist"))
    script = {
        tick: (
            observe(tick, cameras=cameras[tick % 3], instruction="stack " * (tick % 4), memory="m"),
            [
                task("memory", max_tokens=6),
                *([task("narration", max_tokens=9)] if tick % 2 else []),
                *([question(tick)] if tick % 5 == 0 else []),
                *([sampled(tick)] if tick % 3 == 0 else []),
            ],
        )
        for tick in range(1, 9)
    }  # fmt: skip
    capturer = Eager()
    runs = []
    for options in ({"capturer": capturer}, {"capturer": capturer, "repeat": True}, {}):
        repeat = options.pop("repeat", None)
        model = make_model(demo_network, over_pool=True, **options)
        engine = Engine(model, ROOMY, draft=0 if repeat else 3, repeat_on_device=repeat)
        assert model.prepare(model.process(script[2][0])) == ""
        runs.append(drive(engine, script, Budget(steps=3, rows=32)))
    *ours, theirs = runs
    for outcome in ours:
        assert outcome.words() == theirs.words()
        for tick, chunk in theirs.chunks.items():
            np.testing.assert_allclose(outcome.chunks[tick], chunk, atol=3e-6, rtol=1e-6)


def test_text_adapters_are_in_the_programs(small, tmp_path) -> None:
    write_adapter(tmp_path / "terse", small)
    logits = []
    for capturer in (Eager(), None):
        model = make_model(small, over_pool=True, capturer=capturer)
        model.load_adapter(tmp_path / "terse")
        model.allocate(ROOMY)
        model.prepare(inputs_of(20))
        model.encode(inputs_of(20), 0)
        rows = lay_out(Rows(32, model.device), model, [(0, [9, 10, 11], 0, True)])
        rows.adapter[1:3] = 1
        logits.append(model.extend(rows).clone())
    torch.testing.assert_close(logits[0], logits[1], atol=1e-5, rtol=1e-5)


def test_other_cameras_than_captured_are_launched_one_by_one(captured, plain) -> None:
    for model in (captured, plain):
        model.encode(inputs_of(12, cameras=1), 1)
    torch.testing.assert_close(captured.denoise(1, noise()), plain.denoise(1, noise()), atol=1e-6, rtol=0)


def test_what_cannot_be_captured_is_said_once_and_runs(small, plain) -> None:
    model = make_model(small, over_pool=True, capturer=Broken(), denoise_steps=2)
    model.allocate(ROOMY)
    words = model.prepare(inputs_of(20))
    assert "cannot capture its passes (operation not permitted" in words
    assert "kernel by kernel" in words
    for m in (model, plain):
        m.encode(inputs_of(20), 0)
    assert torch.equal(model.denoise(0, noise()), plain.denoise(0, noise()))


def test_new_pools_need_new_programs(small) -> None:
    model = load(small, Eager())
    model.encode(inputs_of(20), 0)
    before = model.denoise(0, noise())
    model.allocate(ROOMY)
    model.encode(inputs_of(20), 0)
    torch.testing.assert_close(model.denoise(0, noise()), before, atol=1e-6, rtol=0)


def test_every_capture_has_a_capturer_of_its_own(small, monkeypatch) -> None:
    """Memory of CUDA graphs cannot be captured into again once the last of them is gone."""
    made: list[Counting] = []

    def find(device: torch.device) -> Counting:
        made.append(Counting())
        return made[-1]

    monkeypatch.setattr("oxygen_ros.models.pi05.model.find_capturer", find)
    model = make_model(small, over_pool=True, denoise_steps=2)
    for _ in range(2):
        model.allocate(ROOMY)
        assert model.prepare(inputs_of(20)) == ""
    first, second = made
    assert first.programs == second.programs > 0


def test_on_a_cpu_nothing_is_captured(demo_network) -> None:
    assert find_capturer(torch.device("cpu")) is None
    model = make_model(demo_network)
    model.allocate(ROOMY)
    assert model.prepare(inputs_of(20)) == ""


def test_a_chunk_that_runs_away_leaves_nothing_behind(captured) -> None:
    captured.encode(inputs_of(20), 0)
    sound = captured.denoise(0, noise())
    assert not captured.denoise(0, noise() * math.inf).isfinite().all()
    assert captured.pool.keys.isfinite().all()
    assert torch.equal(captured.denoise(0, noise()), sound)


def test_one_program_for_each_bucket(small) -> None:
    capturer = Counting()
    load(small, capturer)
    # 4 lengths of prompts, the loop, 6 sizes of steps up to 32 rows.
    assert capturer.programs == 4 + 1 + 6
