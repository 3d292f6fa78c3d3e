# SPDX-License-Identifier: Apache-2.0
"""The two sides of a comparison compute the same; a race gives every work as many rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from oxygen_ros.bench.ablate import ablate, show
from oxygen_ros.bench.race import Race
from oxygen_ros.bench.robots import ROBOTS, Scene, make_config, make_model, suffix_of
from oxygen_ros.bench.setup import Setup, Shared
from oxygen_ros.bench.stopping import Stopped
from oxygen_ros.bench.texts import GatheringPool, TextLane, one_row_each, steady_rows
from oxygen_ros.models import Capacity
from oxygen_ros.models.pi05.network import random_network

torch.set_num_threads(1)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def made():
    robot = ROBOTS["libero"]
    network = random_network(make_config("demo", robot), 5)
    scene = Scene(network.config, robot, prompt_tokens=30, distinct=4, seed=1)
    return network, robot, scene


def test_gathered_single_and_pooled_rows_give_the_same_logits(made) -> None:
    network, robot, scene = made
    model = make_model(network, robot)
    model.allocate(Capacity(7, 6, 40, 64))
    for slot in range(6):
        prefix = model.encode(model.process(scene.at(slot)), slot)
    model.pool.keys[:, :, model.pool.suffix_base :].normal_(generator=torch.Generator().manual_seed(0))
    model.pool.values[:, :, model.pool.suffix_base :].normal_(generator=torch.Generator().manual_seed(1))
    rows = steady_rows(6, prefix.next_position, 30, CPU)
    gathered = GatheringPool.passes_of(model)
    with torch.inference_mode():
        ours = model.extend(rows)
        torch.testing.assert_close(gathered.extend(rows), ours, atol=1e-5, rtol=1e-5)
        singles = torch.cat([model.extend(single) for single in one_row_each(rows, CPU)])
    torch.testing.assert_close(singles, ours, atol=1e-5, rtol=1e-5)


def test_drafts_of_repeating_texts_save_steps_and_change_nothing(made) -> None:
    """The issue's figure: three tokens or more for each request and decode step."""
    network, robot, _ = made
    still = Scene(network.config, robot, prompt_tokens=30, distinct=1, seed=1)
    lanes = [
        TextLane(make_model(network, robot), Capacity(8, 8, 42, 64), still, suffix_of(2), 30, 5, **options)
        for options in ({"repeat": False}, {"repeat": True}, {"repeat": False, "draft": 8})
    ]
    for lane in lanes:
        for _ in range(16):
            lane.tick()
    plain, repeated, drafted = lanes
    assert set(plain.texts) == set(repeated.texts) == set(drafted.texts)
    assert plain.tokens_per_step() == pytest.approx(1.0)
    drafted.finished = drafted.finished[8:]
    assert drafted.tokens_per_step() >= 3


def test_a_race_adds_up_what_belongs_together() -> None:
    race, runs = Race(CPU), []
    race.add("a", lambda: runs.append("a"))
    race.add("b", lambda: runs.append("b"))
    race.run(3)
    assert sorted(runs) == ["a"] * 4 + ["b"] * 4
    race.sums({"both": ("a", "b")})
    assert race.ms("both") >= max(race.ms("a"), race.ms("b")) * 0.99
    assert race.ratio("a", "a") == 1.0


def test_a_race_that_is_stopped_keeps_its_whole_rounds() -> None:
    race, runs = Race(CPU), []

    def stop() -> None:
        runs.append("b")
        if len(runs) == 4:
            raise Stopped(130)

    race.add("a", lambda: None)
    race.add("b", stop)
    with pytest.raises(Stopped):
        race.run(10)
    assert race.rounds == 2
    assert race.ms("a") >= 0
    assert race.ratio("b", "b") == 1.0


@pytest.mark.parametrize(("rounds", "texts"), [(1, False), (None, True)])
def test_an_ablation_that_is_stopped_keeps_what_it_has(rounds: int | None, texts: bool) -> None:
    """Stopped in the second round of single calls, and in the last round of ticks with text."""
    shared = Shared.make(Setup())
    said: list[str] = []

    def beat(words: str) -> None:
        said.append(words)
        if words == ("round 2 of 2" if rounds else "round 8 of 8"):
            raise Stopped(143)

    found: list[dict[str, Any]] = []
    with pytest.raises(Stopped):
        ablate(shared, "float32", rounds=2, found=found, beat=beat)
    (entry,) = found
    assert entry["rounds"] == (rounds or 2)
    assert {gain["of"] for gain in entry["gains"]} >= {"action chunk", "decode of 30"}
    assert any(gain["of"] == "tick with text" for gain in entry["gains"]) == texts
    assert (entry["speculation"] is not None) == texts
    assert show(entry).startswith(f"float32, {entry['rounds']} rounds")
