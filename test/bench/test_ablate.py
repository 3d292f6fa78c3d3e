# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison compute the same; every work gets as many rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oxygen_ros.bench.engine_run import tokens_per_step
from oxygen_ros.bench.pi05.ablation import GatheringPool, TextSpeedUps, ablate, one_row_each, steady_rows
from oxygen_ros.bench.report import describe_ablation
from oxygen_ros.bench.setup import BenchSetup, BenchShared
from oxygen_ros.bench.stopping import Stopped
from oxygen_ros.bench.timing import InterleavedTimer
from oxygen_ros.models import Capacity

torch.set_num_threads(1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def shared() -> BenchShared:
    return BenchShared.make(BenchSetup(seed=5, prompt_tokens=30))


def test_gathered_single_and_pooled_rows_give_the_same_logits(shared: BenchShared) -> None:
    model = shared.model("float32")
    model.allocate(Capacity(7, 6, 40, 64))
    for slot in range(6):
        prefix = model.encode(model.process(shared.scene.at(slot)), slot)
    model.pool.keys[:, :, model.pool.suffix_base :].normal_(generator=torch.Generator().manual_seed(0))
    model.pool.values[:, :, model.pool.suffix_base :].normal_(generator=torch.Generator().manual_seed(1))
    rows = steady_rows(6, prefix.next_position, CPU)
    gathered = GatheringPool.passes_of(model)
    with torch.inference_mode():
        ours = model.extend(rows)
        torch.testing.assert_close(gathered.extend(rows), ours, atol=1e-5, rtol=1e-5)
        singles = torch.cat([model.extend(single) for single in one_row_each(rows)])
    torch.testing.assert_close(singles, ours, atol=1e-5, rtol=1e-5)


def test_drafts_of_repeating_texts_save_steps_and_change_nothing(shared: BenchShared) -> None:
    """The issue's figure: three tokens or more for each request and decode step."""
    texts = TextSpeedUps(shared, "float32")
    for name in texts.runs:
        for _ in range(16):
            texts.tick(name)
    host, device, drafts = (run.finished for run in texts.runs.values())
    assert {t.tokens for t in host} == {t.tokens for t in device} == {t.tokens for t in drafts}
    assert tokens_per_step(host) == pytest.approx(1.0)
    assert tokens_per_step(drafts[8:]) >= 3


def test_a_timer_adds_up_what_belongs_together() -> None:
    timer, runs = InterleavedTimer(CPU), []
    timer.add("a", lambda: runs.append("a"))
    timer.add("b", lambda: runs.append("b"))
    timer.run(3)
    assert sorted(runs) == ["a"] * 4 + ["b"] * 4
    timer.sum("both", "a", "b")
    assert timer.ms("both") >= max(timer.ms("a"), timer.ms("b")) * 0.99
    assert timer.ratio("a", "a") == 1.0


def test_a_timer_that_is_stopped_keeps_its_whole_rounds() -> None:
    timer, runs = InterleavedTimer(CPU), []

    def stop() -> None:
        runs.append("b")
        if len(runs) == 4:
            raise Stopped(130)

    timer.add("a", lambda: None)
    timer.add("b", stop)
    with pytest.raises(Stopped):
        timer.run(10)
    assert timer.rounds == 2
    assert timer.ms("a") >= 0
    assert timer.ratio("b", "b") == 1.0


@pytest.mark.parametrize(("rounds", "texts"), [(1, False), (None, True)])
def test_an_ablation_that_is_stopped_keeps_what_it_has(rounds: int | None, texts: bool) -> None:
    """Stopped in the second round of single calls, and in the last round of ticks with text."""
    shared = BenchShared.make(BenchSetup())
    said: list[str] = []

    def progress(words: str) -> None:
        said.append(words)
        if words == ("round 2 of 2" if rounds else "round 8 of 8"):
            raise Stopped(143)

    found: list[dict[str, Any]] = []
    with pytest.raises(Stopped):
        ablate(shared, "float32", rounds=2, found=found, progress=progress)
    (entry,) = found
    assert entry["rounds"] == (rounds or 2)
    assert {gain["of"] for gain in entry["gains"]} >= {"action chunk", "decode of 30"}
    assert any(gain["of"] == "tick with text" for gain in entry["gains"]) == texts
    assert (entry["speculation"] is not None) == texts
    assert describe_ablation(entry).startswith(f"float32, {entry['rounds']} rounds")
