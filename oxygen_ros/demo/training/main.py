# SPDX-License-Identifier: Apache-2.0
"""The command `oxygen_train`: collect frames, fit the network, export it, train the memory adapter.

Everything is under one folder, --work; a command that was stopped (Ctrl-C, SIGTERM, kill) continues when
given again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from tqdm import tqdm

from oxygen_ros.demo.training.adapter import AdapterPlan, train_adapter
from oxygen_ros.demo.training.batch import Dataset
from oxygen_ros.demo.training.check import check, draw_curve
from oxygen_ros.demo.training.checkpoints import Base, export, write_base
from oxygen_ros.demo.training.collect import collect_shard
from oxygen_ros.demo.training.learn import Losses, Trainer, TrainingPlan, learn
from oxygen_ros.demo.training.policy import load_policy
from oxygen_ros.demo.training.records import read_shards
from oxygen_ros.demo.training.views import collect_views
from oxygen_ros.demo.training.vision_pretraining import learn_to_see
from oxygen_ros.models.pi05.config import PRESETS

_HELD_OUT: Final = 9000
"""Shards from this number on are for checking, never for training."""


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="oxygen_train", description=__doc__.split("\n\n")[0])
    parser.add_argument("--work", type=Path, required=True, help="folder for data, state and curves")
    parser.add_argument("--threads", type=int, default=1, help="of torch; more than one only on idle cores")
    commands = parser.add_subparsers(dest="command", required=True)

    collect = commands.add_parser("collect", help="simulate episodes, keep labeled frames")
    collect.add_argument("--shards", default="0:20", metavar="FIRST:END[:STRIDE]", help="default %(default)s")
    collect.add_argument("--frames", type=int, default=1024, help="least frames of a shard")
    collect.add_argument("--policy", type=Path, help="checkpoint folder that drives between labels (DAgger)")
    collect.add_argument("--held-out", action="store_true", help="for checking, not for training")

    collect.add_argument("--views", action="store_true", help="one layout a frame, nothing moved")

    see = commands.add_parser("see", help="first stage: the vision tower alone learns where blocks are")
    see.add_argument("--minutes", type=float, default=10.0)

    fit = commands.add_parser("fit", help="train the network, from what `see` left if it was run")
    defaults = TrainingPlan()
    fit.add_argument("--steps", type=int, default=defaults.steps)
    fit.add_argument("--batch", type=int, default=defaults.batch)
    fit.add_argument("--draws", type=int, default=defaults.draws, help="noises for every prefix")
    fit.add_argument("--talk", type=int, default=defaults.talk, help="train text every so many steps")
    fit.add_argument("--rate", type=float, default=defaults.rate, help="learning rate")
    fit.add_argument(
        "--fall", type=float, default=defaults.fall, help="part of the steps the rate falls over"
    )
    fit.add_argument("--minutes", type=float, help="stop after this long; give the command again to go on")
    fit.add_argument("--seed", type=int, default=defaults.seed)
    fit.add_argument("--compile", action="store_true", help="1.7 times as fast; needs a C++ compiler")

    out = commands.add_parser("export", help="write the averaged weights as a checkpoint folder")
    out.add_argument("folder", type=Path)
    out.add_argument("--note", default="", help="a sentence about the model, shown by the demo")

    look = commands.add_parser("check", help="errors on held-out frames, from the state or from --model")
    look.add_argument("--model", type=Path, help="checkpoint folder; default the run's averaged weights")
    look.add_argument("--frames", type=int, default=512)

    lora = commands.add_parser("adapter", help="LoRA on memory rows of a frozen model, PEFT's format")
    lora.add_argument("model", type=Path)
    lora.add_argument("folder", type=Path)
    lora.add_argument("--steps", type=int, default=AdapterPlan().steps)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    torch.set_num_threads(options.threads)
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # states are saved on the way out
    try:
        commands = {
            "collect": _collect,
            "see": _see,
            "fit": _fit,
            "export": _export,
            "check": _check,
            "adapter": _adapter,
        }
        commands[options.command](options)
    except KeyboardInterrupt:
        return 130
    except (ValueError, OSError) as error:
        print(f"oxygen_train: {error}", file=sys.stderr)
        return 1
    return 0


def _collect(options: argparse.Namespace) -> None:
    numbers = [int(n) for n in options.shards.split(":")]
    size = PRESETS["demo"].vision.image_size
    policy = load_policy(options.policy) if options.policy else None
    folder = options.work / "data"
    prefix = "held" if options.held_out else "dagger" if policy else "demo"
    first = _HELD_OUT if options.held_out else 0
    with tqdm(range(*numbers), unit="shard", disable=None) as bar:
        for number in bar:
            if options.views:
                made = collect_views(folder, number, options.frames, size)
            else:
                made = collect_shard(folder, first + number, options.frames, size, policy, prefix)
            bar.set_postfix(frames=made)


def _see(options: argparse.Namespace) -> None:
    trainer = _trainer(options)
    if trainer.step:
        raise ValueError(f"{trainer.state_file} has been fitted for {trainer.step} steps: seeing comes first")
    data = Dataset(options.work / "data", trainer.base, match=("view", "demo"))
    with tqdm(unit="step", mininterval=5.0) as bar:

        def tell(step: int, loss: float) -> None:
            bar.update()
            bar.set_postfix_str(f"spot {loss:.3f} frames {len(data)}", refresh=False)

        learn_to_see(trainer, data, seconds=60 * options.minutes, tell=tell)


def _base(work: Path) -> Base:
    folder = work / "base"
    if (folder / "norm_stats.json").exists():
        return Base.read(folder)
    shards = [s for s in read_shards(work / "data") if s.name.startswith(("demo", "dagger"))]
    if not shards:
        raise ValueError(f"{work / 'data'} holds no shard: run `oxygen_train --work {work} collect` first")
    return write_base(folder, PRESETS["demo"], shards)


def _trainer(options: argparse.Namespace, *, compiled: bool = False, **plan: Any) -> Trainer:
    return Trainer(_base(options.work), TrainingPlan(**plan), options.work / "state", compiled=compiled)


def _fit(options: argparse.Namespace) -> None:
    names = ("steps", "batch", "draws", "talk", "rate", "fall", "seed")
    trainer = _trainer(options, compiled=options.compile, **{name: getattr(options, name) for name in names})
    data = Dataset(options.work / "data", trainer.base, match=("demo", "dagger", "view"))
    with tqdm(total=trainer.plan.steps, initial=trainer.step, unit="step", mininterval=5.0) as bar:

        def tell(trainer: Trainer, losses: Losses) -> None:
            bar.update()
            if trainer.step % 20 == 0:
                _, action, text, spot = trainer.curve[-1]
                shown = f"action {action:.3f} text {text:.3f} spot {spot:.3f} frames {len(data)}"
                bar.set_postfix_str(shown, refresh=False)
            if trainer.step % 200 == 0:
                draw_curve(trainer.curve, options.work / "curve.png")

        seconds = 60 * options.minutes if options.minutes else float("inf")
        learn(trainer, data, tell=tell, seconds=seconds)
    draw_curve(trainer.curve, options.work / "curve.png")


def _export(options: argparse.Namespace) -> None:
    trainer = _trainer(options)
    note = options.note or "Trained on the simulated arm's scripted expert."
    export(trainer.averaged(), trainer.base, options.folder, note)
    print(f"wrote {options.folder} (step {trainer.step})")


def _check(options: argparse.Namespace) -> None:
    base = Base.read(options.model) if options.model else _base(options.work)
    network = None if options.model else _trainer(options).averaged()
    data = Dataset(options.work / "data", base, match=("held",))
    if not len(data):
        raise ValueError("no held-out frames: run `collect --held-out --shards 0:1` first")
    for name, value in check(base, network, data, options.frames).items():
        print(f"{name:28s} {value:.4f}")


def _adapter(options: argparse.Namespace) -> None:
    base = Base.read(options.model)
    data = Dataset(options.work / "data", base, match=("demo", "dagger", "view"))
    with tqdm(total=options.steps, unit="step", mininterval=5.0) as bar:
        loss = train_adapter(base, data, options.folder, AdapterPlan(steps=options.steps), bar.update)
    print(f"wrote {options.folder} (last loss {loss:.4f} nats a token)")


if __name__ == "__main__":
    sys.exit(main())
