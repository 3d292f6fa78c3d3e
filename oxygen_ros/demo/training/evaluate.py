# SPDX-License-Identifier: Apache-2.0
"""`oxygen_eval`: closed-loop episodes on held-out layouts, counted per mode and task.

Counting, the table, the JSON and the picture; `rollout` runs one episode.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from tqdm import tqdm

from oxygen_ros.demo.sim.expert import plan
from oxygen_ros.demo.sim.geometry import COLORS
from oxygen_ros.demo.sim.render import GraphicsUnavailable
from oxygen_ros.demo.sim.state import State
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training.collect import FIRST_SEED
from oxygen_ros.demo.training.records import HORIZON, STEP
from oxygen_ros.demo.training.rollout import Driver, EpisodeResult, EpisodeSetup, run_episode
from oxygen_ros.demo.training.timing import timing_named
from oxygen_ros.engine import MODES
from oxygen_ros.models import Model, ModelError, load_model

TASKS: Final = {"one": 1, "two": 2}
_RESOURCES: Final = Path(__file__).resolve().parents[3]
_Z: Final = 1.959963984540054


@dataclass(frozen=True, slots=True)
class TaskScore:
    """Episodes of one mode and task, counted. Field names are those of the JSON."""

    mode: str
    task: str
    episodes: int
    success: float
    ci95: tuple[float, float]
    memory_exact_match: float | None
    narration_exact_match: float | None
    seconds_to_success: float | None
    actions: tuple[str, ...]


def wilson(successes: int, episodes: int) -> tuple[float, float]:
    """95 % interval of a proportion (Wilson 1927)."""
    if episodes == 0:
        return 0.0, 1.0
    p, n = successes / episodes, episodes
    middle = (p + _Z**2 / (2 * n)) / (1 + _Z**2 / n)
    half = _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n * n)) / (1 + _Z**2 / n)
    return max(0.0, middle - half), min(1.0, middle + half)


def count(mode: str, task: str, outcomes: Sequence[EpisodeResult]) -> TaskScore:
    """Outcomes to figures; means, None without values."""
    successes = [o.seconds for o in outcomes if o.success and o.seconds is not None]
    return TaskScore(
        mode=mode,
        task=task,
        episodes=len(outcomes),
        success=len(successes) / len(outcomes),
        ci95=wilson(len(successes), len(outcomes)),
        memory_exact_match=_share([pair for o in outcomes for pair in o.memories]),
        narration_exact_match=_share([pair for o in outcomes for pair in o.narrations]),
        seconds_to_success=float(np.mean(successes)) if successes else None,
        actions=tuple(o.actions for o in outcomes),
    )


def _share(pairs: Sequence[tuple[str, str]]) -> float | None:
    return sum(said == true for said, true in pairs) / len(pairs) if pairs else None


def evaluate(
    model: Model,
    *,
    modes: Sequence[str],
    tasks: Sequence[str],
    episodes: int,
    first_seed: int,
    setup: EpisodeSetup,
    inference_time: str = "zero",
    profiles: Path,
    driver: Driver | None = None,
    bar: Any = None,
) -> list[TaskScore]:
    """All episodes: a seed is a layout and a color, the same for every mode. `driver` as in `rollout`."""
    timing = timing_named(inference_time, profiles)
    world = World(first_seed)
    runs = []
    try:
        for task in tasks:
            for mode in modes:
                outcomes = []
                for seed in range(first_seed, first_seed + episodes):
                    wanted = Task(COLORS[seed % len(COLORS)], TASKS[task])
                    outcomes.append(run_episode(world, model, wanted, seed, mode, setup, timing, driver))
                    if bar is not None:
                        bar.set_postfix_str(
                            f"{mode} {task}: {sum(o.success for o in outcomes)}/{len(outcomes)}"
                        )
                        bar.update()
                runs.append(count(mode, task, outcomes))
    finally:
        world.close()
    return runs


def plan_with_expert(state: State, task: Task) -> NDArray[np.float64]:
    """The scripted expert's chunk, as a perfect policy's."""
    return plan(state, task, HORIZON, STEP)


def same_actions(runs: Sequence[TaskScore]) -> dict[str, bool]:
    """Per task: whether all modes did the same, action for action."""
    tasks = dict.fromkeys(run.task for run in runs)
    return {task: len({run.actions for run in runs if run.task == task}) == 1 for task in tasks}


def table(runs: Sequence[TaskScore], title: str) -> Table:
    out = Table(title=title)
    for name in ("task", "mode", "episodes", "success", "95 %", "seconds", "memory exact", "narration exact"):
        out.add_column(name, justify="left" if name in ("task", "mode") else "right")
    for r in runs:
        out.add_row(
            r.task,
            r.mode,
            str(r.episodes),
            f"{r.success:.0%}",
            f"{r.ci95[0]:.0%}-{r.ci95[1]:.0%}",
            _shown(r.seconds_to_success, "{:.1f}"),
            _shown(r.memory_exact_match, "{:.1%}"),
            _shown(r.narration_exact_match, "{:.1%}"),
        )
    return out


def _shown(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)


def to_json(runs: Sequence[TaskScore], facts: dict[str, Any]) -> dict[str, Any]:
    """The content of --json: the runs without their digests, and the settings."""
    rows = []
    for run in runs:
        row = asdict(run)
        del row["actions"]
        rows.append(row)
    return {"runs": rows, "same_actions": same_actions(runs), **facts}


def draw(runs: Sequence[TaskScore], picture: Path, title: str) -> None:
    """Success with its interval, memory and time, per task and mode, as a PNG."""
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 3), dpi=110, layout="constrained")
        axes = figure.subplots(1, 3)
        names = [f"{r.task}\n{r.mode}" for r in runs]
        low = [r.success - r.ci95[0] for r in runs]
        high = [r.ci95[1] - r.success for r in runs]
        axes[0].bar(names, [r.success for r in runs], yerr=[low, high], color="#56b4e9", capsize=3)
        axes[1].bar(names, [r.memory_exact_match or 0 for r in runs], color="#7a5195")
        axes[2].bar(names, [r.seconds_to_success or 0 for r in runs], color="#2f9e6e")
        for axis, label in zip(axes, ("success", "memory exact match", "seconds to success"), strict=True):
            axis.set_title(label)
        axes[0].set_ylim(0, 1)
        axes[1].set_ylim(0, 1)
        figure.suptitle(title)
        figure.savefig(picture)


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="oxygen_eval", description="Closed-loop success of a demo policy.")
    parser.add_argument("--model", type=Path, default=_RESOURCES / "resource" / "demo_model")
    parser.add_argument("--episodes", type=int, default=100, help="of each task and mode")
    parser.add_argument("--modes", default="oxygen", help=f"comma-separated, of {', '.join(MODES)}")
    parser.add_argument("--tasks", default="one,two", help="comma-separated, of one, two")
    parser.add_argument("--first-seed", type=int, default=1000, help="of the layouts, all below a million")
    parser.add_argument(
        "--inference-time", default="zero", help="zero, measured, or a profile in --profiles (thor)"
    )
    parser.add_argument("--profiles", type=Path, default=_RESOURCES / "config", help="folder of profiles")
    parser.add_argument("--period", type=float, default=EpisodeSetup().period, help="seconds between ticks")
    parser.add_argument("--steps", type=int, default=EpisodeSetup().steps, help="decode steps a tick")
    parser.add_argument("--max-tokens", type=int, default=EpisodeSetup().max_tokens, help="of a text")
    parser.add_argument(
        "--every", type=int, default=EpisodeSetup().every, help="texts are asked every so many ticks"
    )
    parser.add_argument("--picture", type=int, default=0, help="px of the cameras; default the model's")
    parser.add_argument(
        "--driver",
        choices=("policy", "expert"),
        default="policy",
        help="expert: plans of the scripted expert in place of the model's chunks; the model only talks",
    )
    parser.add_argument("--limit", type=float, default=EpisodeSetup().limit, help="seconds for each block")
    parser.add_argument("--no-feedback", action="store_true", help="keep memories out of the prompt")
    parser.add_argument("--adapter", type=Path, help="text adapter for memories")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--png", type=Path)
    options = parser.parse_args(arguments)
    for name, known in (("modes", MODES), ("tasks", TASKS)):
        chosen = getattr(options, name).split(",")
        if unknown := [c for c in chosen if c not in known]:
            parser.error(f"--{name}: {unknown[0]!r} is not one of {', '.join(known)}")
        setattr(options, name, chosen)
    if options.episodes < 1 or not 0 <= options.first_seed <= FIRST_SEED - options.episodes:
        parser.error(f"episodes must be 1 or more, on seeds below {FIRST_SEED}: the others were trained on")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))
    setup = EpisodeSetup(
        period=options.period,
        steps=options.steps,
        max_tokens=options.max_tokens,
        every=options.every,
        picture=options.picture,
        limit=options.limit,
        feedback=not options.no_feedback,
        memory_adapter=options.adapter.name if options.adapter else "",
    )
    try:
        model = load_model(options.model, adapters=[options.adapter] if options.adapter else [])
        total = options.episodes * len(options.modes) * len(options.tasks)
        with tqdm(total=total, unit="episode", disable=None) as bar:
            runs = evaluate(
                model,
                modes=options.modes,
                tasks=options.tasks,
                episodes=options.episodes,
                first_seed=options.first_seed,
                setup=setup,
                inference_time=options.inference_time,
                profiles=options.profiles,
                driver=plan_with_expert if options.driver == "expert" else None,
                bar=bar,
            )
    except KeyboardInterrupt:
        return 130
    except (ModelError, ValueError, GraphicsUnavailable) as error:
        print(f"oxygen_eval: {error}", file=sys.stderr)
        return 1
    title = f"inference time: {options.inference_time}; memory feedback {'on' if setup.feedback else 'off'}"
    title += "; moved by the expert" if options.driver == "expert" else ""
    console = Console()
    console.print(table(runs, title))
    for task, same in same_actions(runs).items():
        if len(options.modes) > 1:
            console.print(f"{task}: modes {'identical, action for action' if same else 'differ'}")
    facts = {
        "inference_time": options.inference_time,
        "driver": options.driver,
        "first_seed": options.first_seed,
        "setup": asdict(setup),
    }
    if options.json:
        options.json.write_text(json.dumps(to_json(runs, facts), indent=1) + "\n", encoding="utf-8")
    if options.png:
        draw(runs, options.png, title)
    return 0


if __name__ == "__main__":
    sys.exit(main())
