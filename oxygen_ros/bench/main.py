# SPDX-License-Identifier: Apache-2.0
"""`oxygen_bench`: measure, show, write. Ctrl-C and SIGTERM write what was measured."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence
from importlib import import_module

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.progress import Progress as ProgressBar
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn

from oxygen_ros.bench.comparison import Comparison, plan_comparison
from oxygen_ros.bench.components import measure_components
from oxygen_ros.bench.device import describe
from oxygen_ros.bench.draw import draw, draw_real_time
from oxygen_ros.bench.options import BenchOptions, parse
from oxygen_ros.bench.predict import Costs, describe_choice
from oxygen_ros.bench.real_time import BUDGETS, RealTimeRun, find_period, measure_real_time
from oxygen_ros.bench.report import show
from oxygen_ros.bench.results import Record, Unwritable
from oxygen_ros.bench.setup import BenchShared
from oxygen_ros.bench.stopping import Stopped, StopSignals
from oxygen_ros.bench.timing import Progress


def measure(options: BenchOptions, record: Record, shared: BenchShared, progress: Progress) -> None:
    """All comparisons; the record has what is complete, and of a stopped one its complete rounds."""
    setup, costs = options.setup, dict[str, Costs]()
    if options.components or options.tick is not None:
        for dtype in setup.dtypes:
            progress(f"components alone in {dtype}")
            entry, costs[dtype] = measure_components(shared, dtype, repeats=options.repeats)
            record.document["components"].append(entry)
            record.write(options.json)
    if options.tick is not None:
        record.document["recommended_k"] = [
            describe_choice(dtype, n, setup.requests, setup.suffix_tokens, own, options.tick)
            for dtype, own in costs.items()
            for n in setup.n
        ]
    for draft in dict.fromkeys((0, setup.draft)):
        for n, k in setup.pairs:
            comparison = Comparison(shared, n, k, draft=draft)
            try:
                comparison.measure(progress)
            finally:
                record.add(comparison)
                record.write(options.json)
                comparison.clear()


def measure_ablation(options: BenchOptions, record: Record, shared: BenchShared, progress: Progress) -> None:
    """Each speed-up without and with it, for every dtype."""
    ablate = import_module(shared.preset.ablation).ablate
    for dtype in options.setup.dtypes:
        found = record.document["ablation"]
        try:
            ablate(shared, dtype, rounds=options.setup.ticks, found=found, progress=progress)
        finally:
            record.write(options.json)


def measure_deadlines(options: BenchOptions, record: Record, shared: BenchShared, progress: Progress) -> None:
    """Both patterns of arrivals, or the one asked for: acting only, then under either kind of budget."""
    setup = options.setup
    period = options.period or find_period(shared, setup.dtypes[0], progress)
    for arrivals in ("bursts", "poisson") if setup.arrivals == "one" else (setup.arrivals,):
        runs = [RealTimeRun(arrivals, budget, period) for budget in BUDGETS]
        try:
            measure_real_time(shared, runs, options.margin, progress)
        finally:
            for run in runs:
                record.add_real_time(run)
            record.write(options.json)


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    command = shlex.join(["oxygen_bench", *(sys.argv[1:] if arguments is None else arguments)])
    try:
        with StopSignals() as signals:
            return _run(options, command, signals)
    except Stopped as stopped:  # before there was anything to keep
        return stopped.code


def _run(options: BenchOptions, command: str, signals: StopSignals) -> int:
    code = 0
    record: Record | None = None
    try:
        with ProgressBar(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=Console(stderr=True), transient=True,
        ) as progress:  # fmt: skip
            bar = progress.add_task(f"drawing the weights of {options.setup.preset}")
            if not (options.ablate or options.deadline):
                # A workload that does not fit is refused before anything is built.
                for n, k in options.setup.pairs:
                    plan_comparison(options.setup, n, k, draft=options.setup.draft)
            shared = BenchShared.make(options.setup)
            record = Record(options.setup, describe(shared.device), shared.energy.source, command)
            work = measure_ablation if options.ablate else measure_deadlines if options.deadline else measure
            work(options, record, shared, lambda words: progress.update(bar, description=words))
        record.document["complete"] = True
    except Stopped as stopped:
        code = stopped.code
    except ValueError as error:
        print(f"oxygen_bench: {error}", file=sys.stderr)
        return 2
    except Unwritable as error:
        print(f"oxygen_bench: {error}; what was measured until then is shown", file=sys.stderr)
        code = 2
    signals.ignore()
    if record is None:
        return code
    console = Console()
    console.width = max(console.width, 120)  # these tables need this much: a narrow terminal wraps lines
    show(console, record.document)
    try:
        record.write(options.json)
        _draw(options, record)
    except (Unwritable, OSError) as error:
        print(f"oxygen_bench: {error}", file=sys.stderr)
        code = code or 2
    wrong = record.document["outputs_equal"] is False or not all(
        run["counts_as_expected"] for run in record.document["runs"]
    )
    return code or int(wrong)


def _draw(options: BenchOptions, record: Record) -> None:
    if options.png and record.document["runs"]:
        draw(record.document, options.png)
    if options.png and record.real_time:
        draw_real_time(record.real_time, options.png, f"{options.setup.preset}, {record.document['device']}")


if __name__ == "__main__":
    sys.exit(main())
