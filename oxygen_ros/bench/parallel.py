# SPDX-License-Identifier: Apache-2.0
"""Two processes on one device: one acts, one talks. python -m oxygen_ros.bench.parallel

The obvious alternative to one engine: each process has the weights for itself and encodes the observation
for itself, and the device shares its time out between them. Windows take turns in one run:

    isolated        one process: each tick acts, then says its texts to their ends
    parallel        the actor ticks as fast as it can while the talker says one text after the other

Here lives that experiment, both processes and what they tell each other; a tick is `lane`'s.
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
from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from oxygen_ros.bench.device import Memory, describe
from oxygen_ros.bench.lane import Lane
from oxygen_ros.bench.record import check_writable, write_json
from oxygen_ros.bench.results import spread
from oxygen_ros.bench.robots import suffix_of
from oxygen_ros.bench.setup import Setup, Shared, use_threads
from oxygen_ros.bench.stopping import Signals, Stopped
from oxygen_ros.bench.workload import MAX_ROWS
from oxygen_ros.engine import Budget, Engine, TextTask
from oxygen_ros.models import ModelError
from oxygen_ros.models.interface import Capacity

Window = dict[str, Any]


class Worker:
    """One process's model, and the three things it can do for a while."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.shared = Shared.make(setup)
        self.capacity = Capacity(2, 1, setup.suffix_tokens + setup.n[0], MAX_ROWS)
        self._prompt = suffix_of(setup.suffix_tokens)
        self._round = 0
        self._lanes = {"act": self._lane(None), "isolated": self._lane("isolated")}
        model = self.shared.model(setup.dtypes[0])
        self._engine = Engine(model, self.capacity)
        model.record(model.process(self.shared.scene.at(0)))

    def _lane(self, mode: str | None) -> Lane:
        model = self.shared.model(self.setup.dtypes[0])
        return Lane(mode, model, self.capacity, 1, self._prompt, self.shared.scene.at(0))

    def do(self, what: str, seconds: float) -> Window:
        """Work for so long, at least once; what was done."""
        began = time.perf_counter()
        ticks: list[float] = []
        actions: list[float] = []
        delays: list[float] = []
        while not (ticks or delays) or time.perf_counter() - began < seconds:
            self._round += 1
            if what == "talk":
                delays.append(self._say())
            else:
                asked = [] if what == "act" else [self.setup.n[0]] * self.setup.requests
                sample = self._lanes[what].tick(self._round, self.shared.scene.at(self._round), asked)
                ticks.append(sample.total)
                actions.append(sample.action)
        lasted = time.perf_counter() - began
        peak = Memory(self.shared.device).peak()
        return {"ticks": ticks, "actions": actions, "delays": delays, "seconds": lasted, "peak_bytes": peak}

    def _say(self) -> float:
        """Encode the newest observation and say one text about it; seconds."""
        started = time.perf_counter()
        task = TextTask(kind="bench", prompt=self._prompt, max_tokens=self.setup.n[0])
        with self._engine.observe(self.shared.scene.at(self._round)) as frame:
            self._engine.ask(frame, task)
        while self._engine.live:
            self._engine.advance(Budget(steps=self.setup.n[0], rows=MAX_ROWS))
        return time.perf_counter() - started


def serve(pipe: Connection, setup: Setup, threads: int) -> None:
    """The talker's process: does what it is told until the pipe closes."""
    # A terminal sends Ctrl-C to both; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
    worker = Worker(setup)
    pipe.send("ready")
    while True:
        try:
            what, seconds = pipe.recv()
        except EOFError:
            return
        pipe.send(worker.do(what, seconds))


def measure(
    worker: Worker, pipe: Connection, seconds: float, rounds: int, found: dict[str, list[Window]]
) -> None:
    """Windows in turn; `found` keeps what is complete."""
    for _ in range(rounds):
        alone = worker.do("isolated", seconds)
        pipe.send(("talk", seconds))
        acted = worker.do("act", seconds)
        talked = pipe.recv()
        for name, window in (("isolated", alone), ("act", acted), ("talk", talked)):
            found[name].append(window)


def summarise(setup: Setup, found: dict[str, list[Window]]) -> list[dict[str, Any]]:
    """Entries like those of `oxygen_bench`, for isolated and parallel; none before the first round."""
    if not found["talk"]:
        return []
    flat = {
        name: {key: [x for w in windows for x in w[key]] for key in ("ticks", "actions", "delays")}
        for name, windows in found.items()
    }
    lasted = {name: sum(w["seconds"] for w in windows) for name, windows in found.items()}
    n = setup.n[0]
    alone, acted, talked = flat["isolated"], flat["act"], flat["talk"]
    mean_alone = sum(alone["ticks"]) / len(alone["ticks"])
    mean_acted = sum(acted["ticks"]) / len(acted["ticks"])
    peak = {name: max(w["peak_bytes"] for w in windows) for name, windows in found.items()}

    def entry(
        mode: str, ticks: dict[str, list[float]], rate: float, ratio: float, held: int
    ) -> dict[str, Any]:
        return {
            "mode": mode, "n": n, "k": None, "dtype": setup.dtypes[0], "ticks": len(ticks["ticks"]),
            "tick_ms": spread(ticks["ticks"]), "action_ms": spread(ticks["actions"]),
            "ticks_per_s": len(ticks["ticks"]) / sum(ticks["ticks"]), "tokens_per_s": rate,
            "ratio_to_isolated": ratio, "peak_bytes": held,
        }  # fmt: skip

    texts = len(talked["delays"])
    parallel = entry(
        "parallel", acted, texts * n / lasted["talk"], mean_alone / mean_acted, peak["act"] + peak["talk"]
    )
    parallel["texts_per_tick"] = texts / lasted["talk"] / parallel["ticks_per_s"]
    parallel["request_to_text_ms"] = spread(talked["delays"])
    spoken = len(alone["ticks"]) * setup.requests * n
    return [entry("isolated", alone, spoken / lasted["isolated"], 1.0, peak["isolated"]), parallel]


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Options; a mistake ends the program with what is allowed."""
    parser = argparse.ArgumentParser(
        prog="python -m oxygen_ros.bench.parallel", description=__doc__.splitlines()[0]
    )
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
        options.setup = Setup(
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
        with Signals() as signals:
            return _run(options, shlex.join(command), signals)
    except Stopped as stopped:  # before there was anything to keep
        return stopped.code


def _run(options: argparse.Namespace, command: str, signals: Signals) -> int:
    setup: Setup = options.setup
    # Spawned, not forked: a CUDA context does not survive a fork.
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    talker = context.Process(target=serve, args=(theirs, setup, options.threads), daemon=True)
    found: dict[str, list[Window]] = {"isolated": [], "act": [], "talk": []}
    device = ""
    code = 0
    try:
        talker.start()
        theirs.close()
        worker = Worker(setup)
        device = describe(worker.shared.device)
        ours.recv()
        for what in ("isolated", "act"):
            worker.do(what, 0.0)
        ours.send(("talk", 0.0))
        ours.recv()
        measure(worker, ours, options.seconds, options.rounds, found)
    except Stopped as stopped:
        code = stopped.code
    except EOFError:
        print("parallel: the talking process ended by itself; its error is above", file=sys.stderr)
        return 1
    signals.ignore()
    talker.kill()
    talker.join()
    runs = summarise(setup, found)
    document = {
        "device": device,
        "preset": setup.preset,
        "dtype": setup.dtypes[0],
        "runs": runs,
        "complete": code == 0,
        "command": command,
    }
    if options.json:
        write_json(options.json, document)
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
