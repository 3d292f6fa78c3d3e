# SPDX-License-Identifier: Apache-2.0
"""The command line of `oxygen_bench` and its error messages.

The settings' own rules are in `setup`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oxygen_ros.bench.families import PRESETS
from oxygen_ros.bench.preset import ROBOTS
from oxygen_ros.bench.results import check_writable
from oxygen_ros.bench.setup import CLOCKS, BenchSetup, use_threads
from oxygen_ros.bench.workload import ARRIVALS
from oxygen_ros.engine import MODES
from oxygen_ros.models import ModelError
from oxygen_ros.models.loading import DTYPES

SWEEP_N = (5, 10, 20, 30)
SWEEP_K = (1, 2, 5, 10)
# Settings that are options of the same name.
_SETTINGS = (
    "preset", "robot", "device", "requests", "denoise_steps", "horizon", "prompt_tokens", "suffix_tokens",
    "arrivals", "burst_every", "seed", "clock",
)  # fmt: skip
# Options that a kind of run does not use: they are refused, not ignored.
_TEXT = ("n", "k", "sweep", "requests", "arrivals", "burst_every", "suffix_tokens")
_TABLES = ("modes", "speculate", "tick_ms", "no_components", "repeats", "clock")
_PACE = ("period_ms", "margin_ms")
_NO_USE = {
    "--ablate": (*_TEXT, *_TABLES, *_PACE, "png"),
    "--deadline": ("sweep", *_TABLES),
    "a run without --deadline": _PACE,
}


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """A run and what is made of it. Times in seconds.

    tick:        the user's tick time for which a k is recommended, or None
    components:  measure the table of components at every row bucket
    """

    setup: BenchSetup
    tick: float | None
    components: bool
    repeats: int
    json: Path | None
    png: Path | None
    ablate: bool
    deadline: bool
    period: float | None
    margin: float


def parse(arguments: Sequence[str] | None) -> BenchOptions:
    """Options of a command line; a mistake ends the program with a line about what is allowed."""
    parser = _parser()
    given = parser.parse_args(arguments)
    sweep = given.sweep
    try:
        _check_use(parser, given)
        if given.repeats < 1:
            raise ValueError(f"repeats must be 1 or more, got {given.repeats}")
        # Before the settings: the clock depends on it.
        use_threads(given.threads)
        setup = BenchSetup(
            modes=_names(given.modes),
            dtypes=_names(given.dtype),
            n=(SWEEP_N if sweep else (30,)) if given.n is None else _numbers("n", given.n),
            k=(SWEEP_K if sweep else (5,)) if given.k is None else _numbers("k", given.k),
            ticks=given.ticks or (5000 if given.deadline else 20),
            draft=given.speculate,
            **{name: getattr(given, name) for name in _SETTINGS},
        )
        for what, value in (("tick-ms", given.tick_ms), ("period-ms", given.period_ms)):
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{what} must be above 0, got {value}")
        if not 0 <= given.margin_ms < math.inf:
            raise ValueError(f"margin-ms must be 0 or more, got {given.margin_ms}")
        if given.ticks is not None and given.ticks < 1:
            raise ValueError(f"ticks must be 1 or more, got {given.ticks}")
        if not setup.pairs:
            raise ValueError(
                f"no k in {list(setup.k)} is as small as any N in {list(setup.n)}: more steps than a text "
                f"has tokens do nothing; name a k of {max(setup.n)} or less"
            )
        if given.deadline:
            for what, values in (("n", setup.n), ("k", setup.k), ("dtype", setup.dtypes)):
                if len(values) > 1:
                    raise ValueError(f"--deadline takes one {what}, got {', '.join(map(str, values))}")
            if setup.k == (0,):
                raise ValueError(
                    "--deadline needs a k of 1 or more: it is the most steps that a tick may use, got 0"
                )
        if given.ablate and not PRESETS[setup.preset].ablation:
            raise ValueError(f"preset {setup.preset}: its family has no ablation; leave out --ablate")
        if setup.draft and not PRESETS[setup.preset].can_draft:
            raise ValueError(f"preset {setup.preset}: its family takes no drafts; leave out --speculate")
        for file in (given.json, given.png):
            if file is not None:
                check_writable(file)
        if given.json is not None and given.png is not None and given.json.resolve() == given.png.resolve():
            raise ValueError(f"json and png are both {given.json}: name two files")
    except (ValueError, ModelError) as error:
        parser.error(str(error))
    return BenchOptions(
        setup, given.tick_ms and given.tick_ms / 1e3, not given.no_components, given.repeats, given.json,
        given.png, given.ablate, given.deadline, given.period_ms and given.period_ms / 1e3,
        given.margin_ms / 1e3,
    )  # fmt: skip


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="oxygen_bench",
        description="Isolated execution against shared prefixes and batched text, tick by tick in turn.",
    )
    add = parser.add_argument
    add("--preset", default="demo", help=f"sizes of the network, random weights: {', '.join(PRESETS)}")
    add("--robot", default="libero", help=f"cameras and joints: {', '.join(ROBOTS)}")
    add("--modes", default=",".join(MODES), help="comma-separated; isolated, the baseline, always runs")
    add("--dtype", default="float32", help=f"{', '.join(DTYPES)}, or both with a comma: measured in turn")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, ...")
    add("--threads", type=int, default=1, help="of a CPU; as many as are free, never more")
    add("--n", help="tokens of a text, comma-separated (30)")
    add("--k", help="decode steps a tick, comma-separated (5); 0: text is asked for and never advances")
    add("--sweep", action="store_true", help=f"N {SWEEP_N} by k {SWEEP_K}, where --n or --k say nothing else")
    add("--requests", type=int, default=1, help="texts asked for per tick, on average")
    add("--arrivals", default="one", help=f"of requests: {', '.join(ARRIVALS)} (random: their lengths)")
    add("--burst-every", type=int, default=10, help="ticks from burst to burst")
    add("--ticks", type=int, help="measured ticks of each mode (20; with --deadline 5000)")
    add("--denoise-steps", type=int, help="S (the preset's)")
    add("--horizon", type=int, help="H, actions in a chunk (the preset's)")
    add("--prompt-tokens", type=int, default=40, help="of the prefix, state included")
    add("--suffix-tokens", type=int, default=2, help="of a text's own prompt")
    drafts = "also measure drafts of up to D tokens, on their own"
    add("--speculate", type=int, default=0, metavar="D", help=drafts)
    add("--tick-ms", type=float, help="your tick time: the largest k that fits is recommended")
    add("--no-components", action="store_true", help="leave out the table of components at every row count")
    add("--repeats", type=int, default=3, help="of each entry in that table")
    clocks = f"{', '.join(CLOCKS)}; thread leaves out what other programs take (CPU)"
    add("--clock", default="auto", help=clocks)
    add("--seed", type=int, default=0)
    add("--json", type=Path, help="write all figures here, after every pair of N and k")
    add("--png", type=Path, help="draw the trade-off and one tick's phases here")
    add("--ablate", action="store_true", help="instead: what each lossless speed-up is worth")
    late = "instead: late ticks under bursts and Poisson arrivals, in real time"
    add("--deadline", action="store_true", help=late)
    add("--period-ms", type=float, help="with --deadline: of ticks (default: what acting alone keeps here)")
    add("--margin-ms", type=float, default=5.0, help="with --deadline: kept free before the next tick")
    return parser


def _check_use(parser: argparse.ArgumentParser, given: argparse.Namespace) -> None:
    """Raise ValueError for an option that this kind of run does not use."""
    if given.ablate and given.deadline:
        raise ValueError("--ablate and --deadline are runs of their own: one at a time")
    kind = "--ablate" if given.ablate else "--deadline" if given.deadline else "a run without --deadline"
    idle = [name for name in _NO_USE[kind] if getattr(given, name) != parser.get_default(name)]
    if idle:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise ValueError(f"{names}: of no use to {kind}; leave out one or the other")
    if given.no_components and given.tick_ms is not None:
        raise ValueError("--tick-ms needs the components that --no-components leaves out: one or the other")


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _numbers(what: str, text: str) -> tuple[int, ...]:
    if not text.strip():
        return ()
    try:
        return tuple(dict.fromkeys(int(number) for number in text.split(",")))
    except ValueError:
        raise ValueError(f'{what} must be whole numbers with commas between, got "{text}"') from None
