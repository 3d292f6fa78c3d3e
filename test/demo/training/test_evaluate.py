# SPDX-License-Identifier: Apache-2.0
"""Closed-loop evaluation: intervals, the clock, equal actions in all modes, table and files."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.state import State
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training import rollout
from oxygen_ros.demo.training.evaluate import count, evaluate, main, plan_with_expert, same_actions, wilson
from oxygen_ros.demo.training.rollout import EpisodeResult, EpisodeSetup
from oxygen_ros.demo.training.timing import Profile, timing_named
from oxygen_ros.engine.counters import Phases
from oxygen_ros.models import load_model

SHORT = EpisodeSetup(limit=1.2, hold=0.4)
PROFILES = Path(__file__).resolve().parents[3] / "config"


def test_wilson_interval() -> None:
    """Against values worked out by hand (statsmodels' proportion_confint gives the same)."""
    assert wilson(90, 100) == pytest.approx((0.825633, 0.944771), abs=1e-5)
    assert wilson(0, 10) == pytest.approx((0.0, 0.277533), abs=1e-5)
    assert wilson(10, 10) == pytest.approx((0.722467, 1.0), abs=1e-5)
    assert wilson(0, 0) == (0.0, 1.0)


def test_counting() -> None:
    outcomes = [
        EpisodeResult(1, success=True, seconds=4.0, memories=[("a", "a"), ("a", "b")], actions="x"),
        EpisodeResult(2, success=True, seconds=6.0, memories=[("b", "b")], actions="y"),
        EpisodeResult(3, memories=[("", "b")], actions="z"),
    ]
    run = count("oxygen", "one", outcomes)
    assert run.success == pytest.approx(2 / 3)
    assert run.seconds_to_success == 5.0
    assert run.memory_exact_match == 0.5
    assert run.narration_exact_match is None
    assert run.actions == ("x", "y", "z")


def test_all_modes_do_the_same_without_inference_time(small: Any) -> None:
    runs = evaluate(
        load_model(small.model),
        modes=["isolated", "shared", "batched", "oxygen"],
        tasks=["two"],
        episodes=1,
        first_seed=7,
        setup=SHORT,
        profiles=PROFILES,
    )
    assert [run.mode for run in runs] == ["isolated", "shared", "batched", "oxygen"]
    assert same_actions(runs) == {"two": True}
    assert len({run.actions for run in runs}) == 1
    assert len({run.memory_exact_match for run in runs}) == 1


def test_the_profile_slows_the_isolated_mode_down(small: Any) -> None:
    """Under the profile a text inside the tick delays the next tick; ours is bounded."""
    world = World(3)
    ticks = {}
    try:
        for mode in ("isolated", "oxygen"):
            outcome = rollout.run_episode(
                world,
                load_model(small.model),
                Task("red", 1),
                3,
                mode,
                EpisodeSetup(limit=4.0, hold=0.4, steps=4),
                Profile.read(PROFILES / "thor.yaml"),
            )
            ticks[mode] = outcome.ticks
    finally:
        world.close()
    assert ticks["isolated"] < ticks["oxygen"]


def test_a_profile_counts_as_published() -> None:
    thor = Profile.read(PROFILES / "thor.yaml")
    text = SimpleNamespace(tokens=tuple(range(29)))  # and the end token
    report = SimpleNamespace(finished=(text,), phases=Phases(used_steps=4))
    assert thor("isolated", report) == pytest.approx((0.198, 0.822))
    assert thor("oxygen", report) == pytest.approx((0.198, 4 * 0.039))
    with pytest.raises(ValueError, match='not for "shared"'):
        thor("shared", report)


def test_a_bad_profile_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        timing_named("toaster", tmp_path)
    (tmp_path / "bad.yaml").write_text("name: x\nact: 0.1\n")
    with pytest.raises(ValueError, match="must have exactly the entries"):
        timing_named("bad", tmp_path)
    thor = (PROFILES / "thor.yaml").read_text()
    (tmp_path / "slow.yaml").write_text(thor.replace("0.198", "-1"))
    with pytest.raises(ValueError, match="act must be a number above 0"):
        timing_named("slow", tmp_path)


def test_an_expert_in_the_policys_place_succeeds(small: Any) -> None:
    """The loop itself can do the task: chunks planned by the expert, through the same splicing."""
    world = World(11)
    setup = EpisodeSetup(narration=False, hold=1.0)
    moments: list[float] = []
    try:
        outcome = rollout.run_episode(
            world,
            load_model(small.model),
            Task("green", 1),
            11,
            setup=setup,
            driver=plan_with_expert,
            watch=lambda episode: moments.append(episode.time),
        )
    finally:
        world.close()
    assert outcome.success
    assert outcome.inside == 1
    assert outcome.seconds is not None
    assert 2.0 < outcome.seconds < 15.0
    np.testing.assert_allclose(np.diff(moments), 0.01)


# What stands in the box is decided by hand: (from second, blocks of the task's color, blocks of another).
BOXES = {
    "right and stays so": ([(0.5, 1, 0)], 0.8),
    "right at the second attempt": ([(0.5, 1, 0), (1.3, 0, 0), (1.7, 1, 0)], 2.0),
    "a block too many": ([(0.5, 2, 0)], None),
    "one too many before it was right for long": ([(0.5, 1, 0), (1.3, 2, 0)], None),
    "another color besides": ([(0.5, 1, 1)], None),
    "another color alone": ([(0.5, 0, 1)], None),
    "right, but not for the hold time": ([(0.5, 1, 0), (1.7, 0, 0)], None),
    "twice right, never for the hold time": ([(0.5, 1, 0), (1.3, 0, 0), (1.7, 1, 0), (2.5, 0, 0)], None),
    "right only after the time is up": ([(3.3, 1, 0)], None),
}


@pytest.mark.parametrize("name", BOXES)
def test_success_is_the_right_blocks_for_the_hold_time(small: Any, name: str) -> None:
    """Success is refused as strictly as it is given. It is looked at between ticks, every 0.4 s."""
    changes, since = BOXES[name]
    task, world = Task("red", 1), World(3)
    left = list(changes)
    places: list[tuple[float, float, float]] = []

    def put(episode: rollout.Episode) -> None:
        if not places:
            places.extend(block.position for block in world.state().blocks)
        if left and episode.time >= left[0][0]:
            _, mine, others = left.pop(0)
            wanted = {True: mine, False: others}
            corners = iter([(-0.035, 0.0), (0.035, 0.0)])
            for index, block in enumerate(world.state().blocks):
                is_mine = block.color == task.color
                wanted[is_mine] -= 1
                if wanted[is_mine] >= 0:
                    dx, dy = next(corners)
                    world.place_block(index, (g.BOX_CENTER[0] + dx, g.BOX_CENTER[1] + dy, g.BLOCK / 2))
                else:
                    world.place_block(index, places[index])

    def stay(state: State, task: Task) -> np.ndarray:
        return np.repeat(state.targets[None], 16, axis=0)

    setup = EpisodeSetup(narration=False, limit=3.0, hold=1.2)
    try:
        outcome = rollout.run_episode(
            world, load_model(small.model), task, 3, setup=setup, driver=stay, watch=put
        )
    finally:
        world.close()
    assert not left or name == "right only after the time is up"
    assert outcome.success == (since is not None)
    assert outcome.seconds == (None if since is None else pytest.approx(since, abs=0.02))


def test_the_command_writes_its_files(small: Any, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "eval.json"
    words = f"--model {small.model} --episodes 1 --tasks one --modes oxygen,isolated --period 8"
    status = main([*words.split(), "--json", str(out), "--png", str(tmp_path / "eval.png")])
    assert status == 0
    content = json.loads(out.read_text())
    assert [(r["mode"], r["task"], r["episodes"]) for r in content["runs"]] == [
        ("oxygen", "one", 1),
        ("isolated", "one", 1),
    ]
    expected = {"mode", "task", "episodes", "success", "ci95", "memory_exact_match", "seconds_to_success"}
    assert expected <= set(content["runs"][0])
    assert content["same_actions"] == {"one": True}
    assert (tmp_path / "eval.png").stat().st_size > 1000
    assert "identical, action for action" in capsys.readouterr().out
    assert main(["--model", str(tmp_path / "nothing"), "--episodes", "1"]) == 1
    assert "does not exist" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--modes", "telepathic"])
    with pytest.raises(SystemExit):
        main(["--first-seed", "1000000"])
