# SPDX-License-Identifier: Apache-2.0
"""`make stress`: starts and stops of real nodes in every lifecycle state, by signals and by transitions.

A clean end is exit status 0 within a time, and no traceback. All but the machine's own
timing follows from the seed. The last line is the summary.
"""

from __future__ import annotations

import argparse
import random
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import rclpy
from ament_index_python.packages import get_package_share_directory
from lifecycle_msgs.srv import ChangeState

from oxygen_ros.processes import ChildProcess, Shutdown
from soak.faults import STREAMS
from soak.observer import Observer, start_ros
from soak.programs import start_driver, start_node
from soak.recording import write_recording

# How a node comes to the state it is stopped in: transitions; the last one is not waited for when the state
# is a passing one.
WAYS: dict[str, tuple[str, ...]] = {
    "starting": (),
    "unconfigured": (),
    "configuring": ("configure",),
    "inactive": ("configure",),
    "activating": ("configure", "activate"),
    "active": ("configure", "activate"),
    "deactivating": ("configure", "activate", "deactivate"),
    "cleaning up": ("configure", "cleanup"),
    "inactive again": ("configure", "activate", "deactivate"),
    "finalized": ("shutdown",),
    "finalized from active": ("configure", "activate", "shutdown"),
}
PASSING = {"configuring": 1.5, "activating": 0.02, "deactivating": 0.1, "cleaning up": 0.05}
"""Passing states, and the longest time [s] after the call at which the signal is sent."""
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM}
ANSWER = 90.0  # s for a transition on a busy machine
END = 15.0  # s from the signal to the end


@dataclass(frozen=True, slots=True)
class Case:
    """One start and stop. delay: seconds from the state (or the call that leads to it) to the signal."""

    number: int
    state: str
    by: str
    delay: float


def draw_cases(seed: int, count: int) -> list[Case]:
    """`count` cases: every state by every signal equally often, in a random order."""
    chance = random.Random(seed)
    pairs = [(state, by) for state in WAYS for by in SIGNALS]
    chosen = [pairs[number % len(pairs)] for number in range(count)]
    chance.shuffle(chosen)
    return [
        Case(number, state, by, chance.uniform(0.0, 2.5 if state == "starting" else PASSING.get(state, 0.3)))
        for number, (state, by) in enumerate(chosen)
    ]


def play(
    case: Case, observer: Observer, start: Callable[[str], ChildProcess], shots: Counter[str]
) -> Iterator[None] | Iterator[str]:
    """Play a case; yields None while it waits and, last, "" or what went wrong.

    shots: counts the state the node was really in when the signal was sent
    """
    name = f"stress_{case.number}"
    process = start(name)
    try:
        trouble = ""
        if case.state == "starting":
            yield from _pause(case.delay)
        else:
            trouble = yield from _lead(case, name, observer, process)
        process.send(SIGNALS[case.by])
        shots[case.state] += 1
        until = time.monotonic() + END
        while process.status is None and time.monotonic() < until:
            yield None
        yield trouble or judge(process)
    finally:
        process.kill()


def judge(process: ChildProcess) -> str:
    """What is wrong with how a process ended; "" when nothing is."""
    if process.status is None:
        return f"did not end within {END:.0f} s of the signal:\n{process.last_lines()}"
    if process.status != 0:
        return f"ended with status {process.status}:\n{process.last_lines()}"
    unclean = process.find_unclean()
    return f"wrote {unclean!r}:\n{process.last_lines(40)}" if unclean else ""


def _pause(seconds: float) -> Iterator[None]:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        yield None


def _lead(case: Case, name: str, observer: Observer, process: ChildProcess) -> Iterator[None]:
    """Bring a node into a state. Returns "" or what went wrong."""
    client = observer.create_client(ChangeState, f"/{name}/change_state")
    until = time.monotonic() + ANSWER
    try:
        while not client.service_is_ready():
            if process.status is not None or time.monotonic() > until:
                return f"gave no service within {ANSWER:.0f} s:\n{process.last_lines()}"
            yield None
        ways = WAYS[case.state]
        for way in ways:
            request = ChangeState.Request()
            request.transition.label = way
            future = client.call_async(request)
            if way == ways[-1] and case.state in PASSING:
                break
            until = time.monotonic() + ANSWER
            while not future.done():
                if process.status is not None or time.monotonic() > until:
                    return f"{way} had no answer:\n{process.last_lines()}"
                yield None
            if not future.result().success:
                return f"{way} failed:\n{process.last_lines()}"
        yield from _pause(case.delay)
        return ""
    finally:
        observer.destroy_client(client)


def main(shutdown: Shutdown, arguments: list[str]) -> int:
    """Run the cases; 0 when all ended well."""
    parser = argparse.ArgumentParser(prog="python -m soak stress", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100, help="of starts and stops")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=2, help="nodes beside each other")
    parser.add_argument("--out", type=Path, default=None, help="folder for logs; default a new one in /tmp")
    options = parser.parse_args(arguments)
    folder = options.out or Path(tempfile.mkdtemp(prefix="oxygen_storm_"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs: {folder}", flush=True)
    shutdown.call_when_asked()
    start_ros()
    share = Path(get_package_share_directory("oxygen_ros"))
    files = [share / "config" / "demo.yaml", share / "config" / "soak.yaml"]
    write_recording(share, folder / "recording.npz")
    driver = start_driver(STREAMS, folder / "recording.npz", folder)
    observer = Observer()

    def start(name: str) -> ChildProcess:
        return start_node(name, files, folder / f"{name}.log", {"autostart": "false"})

    waiting = draw_cases(options.seed, options.count)[::-1]
    playing: dict[Case, Iterator[str | None]] = {}
    shots: Counter[str] = Counter()
    failures: list[str] = []
    done, begun = 0, time.monotonic()
    try:
        while (waiting or playing) and not shutdown.is_asked.is_set():
            while waiting and len(playing) < options.at_once:
                case = waiting.pop()
                playing[case] = play(case, observer, start, shots)
            observer.spin(0.01)
            for _ in driver.take_lines():
                pass
            for case, steps in list(playing.items()):
                verdict = next(steps)
                if verdict is None:
                    continue
                steps.close()
                del playing[case]
                done += 1
                label = f"{done:3d} {case.by} while {case.state}, {case.delay:.2f} s after"
                print(f"{label}: {verdict or 'ended cleanly'}", flush=True)
                if verdict:
                    failures.append(label)
    finally:
        for steps in playing.values():
            steps.close()
        driver.kill()
        observer.close()
        rclpy.try_shutdown()
    good = done - len(failures)
    states = ", ".join(f"{count} {state}" for state, count in sorted(shots.items()))
    is_well = good == options.count
    print(
        f"stress: seed {options.seed}, {time.monotonic() - begun:.0f} s: {good} of {options.count} ended "
        f"with 0 and without a traceback ({states}): {'PASS' if is_well else 'FAIL'}",
        flush=True,
    )
    return 0 if is_well else 1
