# SPDX-License-Identifier: Apache-2.0
"""A short film of the arm with the model's texts: python -m oxygen_ros.demo.training.clip FILE.webp

The episode is a `rollout`. The film shows whether policy or expert moves the arm.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from PIL import Image, ImageDraw, ImageFont

from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training.evaluate import plan_with_expert
from oxygen_ros.demo.training.rollout import Episode, EpisodeSetup, run_episode
from oxygen_ros.models import Model, load_model

_SIZE: Final = (360, 480)
_CAPTION: Final = 66
_EVERY: Final = 12
"""Control periods between two pictures."""
_RESOURCES: Final = Path(__file__).resolve().parents[3]


def film(model: Model, task: Task, seed: int, driver: str, seconds: float) -> list[Image.Image]:
    """Pictures of one episode, every 0.12 s. driver: "policy" or "expert"."""
    world = World(seed)
    pictures: list[Image.Image] = []
    periods = 0

    def watch(episode: Episode) -> None:
        nonlocal periods
        periods += 1
        if periods % _EVERY == 1:
            view = Image.fromarray(world.render("side", *_SIZE))
            pictures.append(_caption(view, task, episode, driver))

    setup = EpisodeSetup(limit=seconds / task.count, hold=2.0)
    by_expert = plan_with_expert if driver == "expert" else None
    try:
        run_episode(world, model, task, seed, setup=setup, driver=by_expert, watch=watch)
    finally:
        world.close()
    return pictures


def _caption(view: Image.Image, task: Task, episode: Episode, driver: str) -> Image.Image:
    out = Image.new("RGB", (view.width, view.height + _CAPTION), "white")
    out.paste(view)
    draw, font = ImageDraw.Draw(out), ImageFont.load_default(15)
    lines = (
        (f'"{task.instruction}"   {episode.time:.1f} s, moved by the {driver}', "#555555"),
        (f"memory: {episode.heard.get('memory', '')}", "#7a5195"),
        (f"narration: {episode.heard.get('narration', '')}", "#2f9e6e"),
    )
    for i, (line, color) in enumerate(lines):
        draw.text((8, view.height + 4 + 20 * i), line, fill=color, font=font)
    return out


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="clip", description=__doc__.split(":", maxsplit=1)[0])
    parser.add_argument("file", type=Path, help="a .webp or .gif")
    parser.add_argument("--model", type=Path, default=_RESOURCES / "resource" / "demo_model")
    parser.add_argument("--task", default=Task().instruction)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--driver", choices=("policy", "expert"), default="policy")
    parser.add_argument("--seconds", type=float, default=24.0, help="at most; ends when the task is done")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    model, task = load_model(options.model), Task.parse(options.task)
    pictures = film(model, task, options.seed, options.driver, options.seconds)
    duration = 10 * _EVERY  # ms
    pictures[0].save(
        options.file, save_all=True, append_images=pictures[1:], duration=duration, loop=0, quality=60
    )
    print(f"{options.file}: {len(pictures)} pictures, {options.file.stat().st_size / 1e6:.2f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
