# SPDX-License-Identifier: Apache-2.0
"""Two processes on one device: one acts, one makes text. python -m oxygen_ros.bench.parallel

The obvious alternative to one engine: each process has its own weights and encodes the observation itself,
and the device divides its time between them. Windows alternate in one run:

    isolated        one process: each tick acts, then makes its texts to their ends
    parallel        the actor ticks as fast as it can while the talker makes one text after the other
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import shlex
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from oxygen_ros.bench.device import MemoryMeter, describe
from oxygen_ros.bench.engine_run import EngineRun
from oxygen_ros.bench.results import check_writable, write_json
from oxygen_ros.bench.setup import BenchSetup, BenchShared, use_threads
from oxygen_ros.bench.stopping import Stopped, StopSignals
from oxygen_ros.bench.timing import spread
from oxygen_ros.bench.workload import MAX_ROWS
from oxygen_ros.engine import Budget
from oxygen_ros.models import ModelError
from oxygen_ros.models.interface import Capacity

Window = dict[str, Any]


class ParallelWorker:
    """One process's model, and the three things it can do for a while: act, make text, both as isolated."""

    def __init__(self, setup: BenchSetup) -> None:
        self.setup = setup
        self.shared = BenchShared.make(setup)
        self._round = 0
        capacity = Capacity(2, 1, setup.suffix_tokens + setup.n[0], MAX_ROWS)
        # The talker's one text ends in the tick that it is asked in.
        budget = Budget(steps=setup.n[0], rows=MAX_ROWS)
        self._runs = {
            what: EngineRun(
                self.shared, setup.dtypes[0], mode, capacity, budget,
                acts=what != "talk", clock=time.perf_counter,
            )
            for what, mode in (("act", None), ("isolated", "isolated"), ("talk", "oxygen"))
        }  # fmt: skip

    def work(self, what: str, seconds: float) -> Window:
        """Work for so long, at least once; returns what was done."""
        began = time.perf_counter()
        ticks: list[float] = []
        actions: list[float] = []
        asked = [self.setup.n[0]] * {"act": 0, "talk": 1, "isolated": self.setup.requests}[what]
        while not ticks or time.perf_counter() - began < seconds:
            self._round += 1
            sample = self._runs[what].tick(self._round, asked)
            ticks.append(sample.total)
            actions.append(sample.action)
        lasted = time.perf_counter() - began
        peak = MemoryMeter(self.shared.device).peak()
        return {"ticks": ticks, "actions": actions, "seconds": lasted, "peak_bytes": peak}


def serve(pipe: Connection, setup: BenchSetup, threads: int) -> None:
    """The talker's process: works on request until the pipe closes."""
    # A terminal sends Ctrl-C to both; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    worker = ParallelWorker(setup)
    pipe.send("ready")
    while True:
        try:
            what, seconds = pipe.recv()
        except EOFError:
            return
        pipe.send(worker.work(what, seconds))


def measure_round(worker: ParallelWorker, pipe: Connection, seconds: float) -> dict[str, Window]:
    """A window of each kind in turn."""
    alone = worker.work("isolated", seconds)
    pipe.send(("talk", seconds))
    return {"isolated": alone, "act": worker.work("act", seconds), "talk": pipe.recv()}


def summarize(setup: BenchSetup, rounds: Sequence[Mapping[str, Window]]) -> list[dict[str, Any]]:
    """Entries like those of `oxygen_bench`, for isolated and parallel; none before the first round."""
    if not rounds:
        return []
    found = {name: [windows[name] for windows in rounds] for name in rounds[0]}
    ticks = {name: [x for w in windows for x in w["ticks"]] for name, windows in found.items()}
    lasted = {name: sum(w["seconds"] for w in windows) for name, windows in found.items()}
    peak = {name: max(w["peak_bytes"] for w in windows) for name, windows in found.items()}
    mean = {name: sum(own) / len(own) for name, own in ticks.items()}

    def entry(mode: str, source: str, texts_per_s: float, held: int) -> dict[str, Any]:
        return {
            "mode": mode, "n": setup.n[0], "k": None, "dtype": setup.dtypes[0], "ticks": len(ticks[source]),
            "tick_ms": spread(ticks[source]),
            "action_ms": spread([x for w in found[source] for x in w["actions"]]),
            "ticks_per_s": 1 / mean[source], "tokens_per_s": texts_per_s * setup.n[0],
            "ratio_to_isolated": mean["isolated"] / mean[source], "peak_bytes": held,
        }  # fmt: skip

    texts_per_s = len(ticks["talk"]) / lasted["talk"]
    parallel = entry("parallel", "act", texts_per_s, peak["act"] + peak["talk"])
    parallel["texts_per_tick"] = texts_per_s / parallel["ticks_per_s"]
    parallel["request_to_text_ms"] = spread(ticks["talk"])
    alone = len(ticks["isolated"]) * setup.requests / lasted["isolated"]
    return [entry("isolated", "isolated", alone, peak["isolated"]), parallel]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options; a mistake ends the program with what is allowed."""
    words = __doc__.splitlines()[0]
    parser = argparse.ArgumentParser(prog="python -m oxygen_ros.bench.parallel", description=words)
    parser.add_argument("--preset", default="demo")
    parser.add_argument("--robot", default="libero")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1, help="of each process")
    parser.add_argument("--n", type=int, default=30, help="tokens of a text")
    parser.add_argument("--requests", type=int, default=1, help="texts of an isolated tick")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a window")
    parser.add_argument("--rounds", type=int, default=4, help="windows of each kind")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    try:
        options.setup = BenchSetup(
            preset=options.preset, robot=options.robot, dtypes=(options.dtype,), device=options.device,
            n=(options.n,), k=(1,), requests=options.requests,
        )  # fmt: skip
        if not 0 < options.seconds < math.inf:
            raise ValueError(f"seconds must be above 0, got {options.seconds}")
        if options.rounds < 1:
            raise ValueError(f"rounds must be 1 or more, got {options.rounds}")
        use_threads(options.threads)
        if options.json:
            check_writable(options.json)
    except (ValueError, ModelError) as error:
        parser.error(str(error))
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    command = ["python", "-m", "oxygen_ros.bench.parallel", *(arguments or sys.argv[1:])]
    try:
        with StopSignals() as signals:
            return _run(options, shlex.join(command), signals)
    except Stopped as stopped:  # before there was anything to keep
        return stopped.code


def _run(options: argparse.Namespace, command: str, signals: StopSignals) -> int:
    setup: BenchSetup = options.setup
    # Spawned, not forked: a CUDA context does not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    talker = context.Process(target=serve, args=(theirs, setup, options.threads), daemon=True)
    rounds: list[dict[str, Window]] = []
    device = ""
    code = 0
    try:
        talker.start()
        theirs.close()
        worker = ParallelWorker(setup)
        device = describe(worker.shared.device)
        ours.recv()
        measure_round(worker, ours, 0.0)  # the first ticks are slower
        for _ in range(options.rounds):
            rounds.append(measure_round(worker, ours, options.seconds))
    except Stopped as stopped:
        code = stopped.code
    except EOFError:
        print("parallel: the talking process ended by itself; its error is above", file=sys.stderr)
        return 1
    signals.ignore()
    talker.kill()
    talker.join()
    runs = summarize(setup, rounds)
    if options.json:
        document = {"device": device, "preset": setup.preset, "dtype": setup.dtypes[0], "runs": runs}
        write_json(options.json, document | {"complete": code == 0, "command": command})
    for run in runs:
        texts = f", {run['texts_per_tick']:.2f} texts a tick" if "texts_per_tick" in run else ""
        print(
            f"{run['mode']:9} tick p50 {run['tick_ms']['p50']:.1f} ms, p99 {run['tick_ms']['p99']:.1f} ms, "
            f"{run['ticks_per_s']:.2f} ticks/s, {run['tokens_per_s']:.0f} tokens/s{texts}, "
            f"ratio {run['ratio_to_isolated']:.2f}, {run['peak_bytes'] / 2**20:.0f} MiB"
        )
    return code


if __name__ == "__main__":
    sys.exit(main())
