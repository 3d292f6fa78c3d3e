# SPDX-License-Identifier: Apache-2.0
"""`oxygen_bench`: measure, show, write. Ctrl-C and SIGTERM keep and write what there is.

Here lives the order of a run and nothing else.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Sequence

os.environ.setdefault("OMP_NUM_THREADS", "1")

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from oxygen_ros.bench.ablate import ablate
from oxygen_ros.bench.baseline import measure_baseline
from oxygen_ros.bench.bursts import BUDGETS, BurstRun, find_period, run_bursts
from oxygen_ros.bench.cell import Beat, Cell, plan_cell
from oxygen_ros.bench.device import describe
from oxygen_ros.bench.draw import draw, draw_bursts
from oxygen_ros.bench.options import Options, parse
from oxygen_ros.bench.predict import Costs, choices, recommend
from oxygen_ros.bench.record import Record, Unwritable
from oxygen_ros.bench.report import show
from oxygen_ros.bench.setup import Shared
from oxygen_ros.bench.stopping import Signals, Stopped


def measure(options: Options, record: Record, shared: Shared, beat: Beat) -> None:
    """All cells; the record holds what is complete, and of a stopped cell its complete rounds."""
    costs: dict[str, Costs] = {}
    if options.components or options.tick is not None:
        for dtype in options.setup.dtypes:
            beat(f"components alone in {dtype}")
            entry, costs[dtype] = measure_baseline(shared, dtype, repeats=options.repeats)
            record.document["components"].append(entry)
            record.write(options.json)
    if options.tick is not None:
        record.document["recommended_k"] = _recommend(options, costs)
    plain = [Cell(shared, n, k) for n, k in options.setup.cells]
    drafted = [Cell(shared, n, k, draft=options.setup.draft) for n, k in options.setup.cells]
    for cell in plain + (drafted if options.setup.draft else []):
        try:
            cell.run(beat)
        finally:
            record.add(cell)
            record.write(options.json)
            cell.tracks.clear()  # the next cell's pools take this one's place
            cell.samples.clear()


def measure_ablation(options: Options, record: Record, shared: Shared, beat: Beat) -> None:
    """Each speed-up without and with it, for every dtype."""
    for dtype in options.setup.dtypes:
        try:
            ablate(shared, dtype, rounds=options.setup.ticks, found=record.document["ablation"], beat=beat)
        finally:
            record.write(options.json)


def measure_bursts(options: Options, record: Record, shared: Shared, beat: Beat) -> None:
    """Both patterns of arrivals, or the one asked for: acting only, then under either kind of budget."""
    setup = options.setup
    period = options.period or find_period(shared, setup.dtypes[0], beat)
    for arrivals in ("bursts", "poisson") if setup.arrivals == "one" else (setup.arrivals,):
        runs = [BurstRun(arrivals, budget, period) for budget in BUDGETS]
        try:
            run_bursts(shared, runs, options.margin, beat)
        finally:
            for run in runs:
                record.add_bursts(run)
            record.write(options.json)


def _recommend(options: Options, costs: dict[str, Costs]) -> list[dict[str, object]]:
    setup, tick = options.setup, options.tick
    assert tick is not None
    found: list[dict[str, object]] = []
    for dtype, own in costs.items():
        for n in setup.n:
            possible = choices(n, setup.requests, setup.suffix_tokens, own)
            choice = recommend(possible, tick)
            if choice is not None:
                words = (
                    f"{dtype}, N {n}: k = {choice.k} for a tick of {tick * 1e3:.0f} ms (predicted "
                    f"{choice.tick * 1e3:.0f} ms); a text takes {choice.text_ticks} "
                    f"tick{'s' * (choice.text_ticks > 1)}"
                )
            elif possible:
                fastest = min(possible, key=lambda c: c.tick)
                words = (
                    f"{dtype}, N {n}: no k fits a tick of {tick * 1e3:.0f} ms; the shortest is "
                    f"{fastest.tick * 1e3:.0f} ms with k = {fastest.k}"
                )
            else:
                words = f"{dtype}, N {n}: {setup.requests} texts a tick never fit into the rows of one step"
            found.append(
                {
                    "dtype": dtype,
                    "n": n,
                    "tick_ms": tick * 1e3,
                    "k": choice.k if choice else None,
                    "predicted_ms": choice.tick * 1e3 if choice else None,
                    "words": words,
                }
            )
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    command = shlex.join(["oxygen_bench", *(sys.argv[1:] if arguments is None else arguments)])
    try:
        with Signals() as signals:
            return _run(options, command, signals)
    except Stopped as stopped:  # before there was anything to keep
        return stopped.code


def _run(options: Options, command: str, signals: Signals) -> int:
    code = 0
    record: Record | None = None
    try:
        with Progress(
            SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn(),
            console=Console(stderr=True), transient=True,
        ) as progress:  # fmt: skip
            bar = progress.add_task(f"drawing the weights of {options.setup.preset}")
            if not (options.ablate or options.deadline):
                # Said before anything is built: a workload that does not fit.
                for n, k in options.setup.cells:
                    plan_cell(options.setup, n, k, draft=options.setup.draft)
            shared = Shared.make(options.setup)
            record = Record(options.setup, describe(shared.device), shared.energy.source, command)
            work = measure_ablation if options.ablate else measure_bursts if options.deadline else measure
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


def _draw(options: Options, record: Record) -> None:
    if options.png and record.document["runs"]:
        draw(record.document, options.png)
    if options.png and record.bursts:
        draw_bursts(record.bursts, options.png, f"{options.setup.preset}, {record.document['device']}")


if __name__ == "__main__":
    sys.exit(main())
