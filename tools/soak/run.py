# SPDX-License-Identifier: Apache-2.0
"""`make soak MINUTES=n`: a real node beside drivers that fail in every way.

Start, faults one after another, the end. Exit status 0 when every bound of `summary` held. The last line is
the summary.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import rclpy
import yaml
from ament_index_python.packages import get_package_share_directory
from std_msgs.msg import String

from oxygen_ros.demo.sim.geometry import JOINTS
from oxygen_ros.processes import ChildProcess, Shutdown
from soak.expectations import Expectations
from soak.faults import CAMERAS, KINDS, STREAMS, Fault, draw_faults
from soak.injector import Injector
from soak.observer import HeardChunk, Observer, start_ros
from soak.programs import start_driver, start_node
from soak.recording import write_recording
from soak.summary import RECOVER_WITHIN, FaultResult, Summary

START_TIMEOUT = 120.0  # s until the first chunk
PATIENCE = 10.0  # s to wait beyond the bounds, to measure how late it was
JUDGE_AFTER = 1.0  # s after which every driver's lines about a chunk's inputs have been read
INSTRUCTIONS = ("put two red blocks in the box", "put one blue block in the box", "\x07\n<eos>" * 300)


class Soak:
    """One run. Everything happens in the main thread, inside `wait_until`."""

    def __init__(self, options: argparse.Namespace, folder: Path, shutdown: Shutdown) -> None:
        share = Path(get_package_share_directory("oxygen_ros"))
        files = [share / "config" / "demo.yaml", share / "config" / "soak.yaml"]
        parameters = next(iter(yaml.safe_load(files[0].read_text()).values()))["ros__parameters"]
        self.summary = Summary(options.seed)
        self._folder = folder
        self._seconds = 60 * options.minutes
        self._recording = folder / "recording.npz"
        write_recording(share, self._recording)
        self._expectations = Expectations(
            CAMERAS, JOINTS, int(parameters["max_skew"] * 1e9), int(parameters["max_age"] * 1e9)
        )
        self._observer = Observer()
        clock = {"use_sim_time": "true"} if options.sim_time else {}
        streams = (*STREAMS, "clock") if options.sim_time else STREAMS
        self._drivers = {stream: self._start_driver(stream) for stream in streams}
        self._node = start_node("oxygen", files, folder / "node.log", clock)
        self._injector = Injector(
            self._drivers, self._start_driver, self._observer, self._expectations, options.seed
        )
        kinds = options.only or [kind for kind in KINDS if options.sim_time or kind != "clock_jump"]
        self._faults = draw_faults(options.seed, kinds)
        self._pending: deque[HeardChunk] = deque()
        self._spent: dict[int, float] = {}
        self._skipped = 0  # since the activation
        self._next_memory = 0.0
        self._waited_before = 0.0
        self._started = time.monotonic()
        self._shutdown = shutdown

    def run(self) -> None:
        """Raises RuntimeError when the node ends or never begins."""
        self.wait_until(lambda: self._observer.chunk_count > 0 or self._cannot_start(), START_TIMEOUT)
        if self._observer.chunk_count == 0:
            raise RuntimeError(f"no chunk at all:\n{self._node.last_lines()}")
        # Figures from loading do not count.
        self._started, self._next_memory = time.monotonic(), 0.0
        self.summary.memory.clear()
        self._waited_before = self._node.read_waiting()
        end = self._started + self._seconds
        self.wait_until(lambda: False, 2.0)
        for number, fault in enumerate(self._faults):
            if self._shutdown.is_asked.is_set() or time.monotonic() + fault.seconds + RECOVER_WITHIN > end:
                break
            self._observer.instructions.publish(String(data=INSTRUCTIONS[number % len(INSTRUCTIONS)]))
            outcome = self._try(fault)
            if self._shutdown.is_asked.is_set():
                break  # it was not given its time
            self.summary.outcomes.append(outcome)
            print(outcome, flush=True)
            self.wait_until(lambda: False, fault.pause)
        self.summary.seconds = time.monotonic() - self._started
        if not self._shutdown.is_asked.is_set():
            self._check_slots_at_rest()
        self._end_node()

    def wait_until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Handle everything that comes until something is so, or for a time; whether it is so."""
        until = time.monotonic() + seconds
        while True:
            self._observer.spin(0.02)
            self._take_in()
            if is_so():
                return True
            if time.monotonic() >= until or self._shutdown.is_asked.is_set():
                return False

    def close(self) -> None:
        self._injector.close()
        self._node.kill()
        self._observer.close()

    def _cannot_start(self) -> bool:
        return any(s.part == "model" and "configure failed" in s.words for s in self._observer.statuses)

    def _try(self, fault: Fault) -> FaultResult:
        at = time.monotonic() - self._started
        newest = next((s for s in reversed(self._observer.statuses) if s.part == fault.part), None)
        before = "" if newest is None else newest.values if fault.is_counted else newest.words
        begun_ns = self._injector.begin(fault)
        self.wait_until(lambda: self._injector.find_begin(fault, begun_ns) is not None, PATIENCE)
        shown_ns = self._injector.find_begin(fault, begun_ns) or begun_ns
        self.wait_until(lambda: False, fault.seconds)
        self.wait_until(lambda: self._find_report(fault, shown_ns, before) is not None, PATIENCE)
        reported_ns = self._find_report(fault, shown_ns, before)
        told_ns = self._injector.end(fault)
        self.wait_until(lambda: self._injector.find_end(fault, told_ns) is not None, START_TIMEOUT)
        over_ns = self._injector.find_end(fault, told_ns) or told_ns
        self.wait_until(lambda: self._find_chunk(over_ns) is not None, RECOVER_WITHIN + PATIENCE)
        recovered_ns = self._find_chunk(over_ns)
        # The next fault begins where all is well again, so that its report is its own.
        self.wait_until(lambda: self._is_well(fault), 2 * PATIENCE)
        said = [s.words for s in self._observer.statuses if s.part == fault.part and s.sent_ns >= shown_ns]
        return FaultResult(
            str(fault),
            at,
            None if reported_ns is None else (reported_ns - shown_ns) / 1e9,
            None if recovered_ns is None else max(recovered_ns - over_ns, 0) / 1e9,
            said[0] if said else "",
        )

    def _find_report(self, fault: Fault, after_ns: int, before: str) -> int | None:
        for status in self._observer.statuses:
            is_after = status.sent_ns >= after_ns and status.part == fault.part
            if not is_after or (status.is_ok and not fault.is_counted):
                continue
            if fault.is_reported_by(status.values if fault.is_counted else status.words, before):
                return status.sent_ns
        return None

    def _find_chunk(self, after_ns: int) -> int | None:
        return next((chunk.sent_ns for chunk in self._observer.chunks if chunk.sent_ns >= after_ns), None)

    def _is_well(self, fault: Fault) -> bool:
        newest = next((s for s in reversed(self._observer.statuses) if s.part == fault.part), None)
        if newest is None or newest.is_ok or fault.part == "inputs":
            return newest is not None and newest.is_ok
        # Text at its worst never keeps up, and limits may clamp a chunk: these are not all well by
        # themselves.
        return fault.kind == "questions" or not fault.is_reported_by(newest.words)

    def _take_in(self) -> None:
        """Drivers' lines into the expectations, ticks and chunks into the summary; check the processes."""
        for driver in self._drivers.values():
            for line in driver.take_lines():
                self._expectations.add(line)
        summary, observer = self.summary, self._observer
        while observer.ticks:
            tick = observer.ticks.popleft()
            summary.ticks += 1
            summary.skipped += max(tick.ticks_skipped - self._skipped, 0)
            self._skipped = tick.ticks_skipped
            self._spent[tick.tick] = tick.process + tick.prefill + tick.denoise
            leaked = max(tick.suffix_slots_used, tick.prefix_slots_used) - tick.requests_live
            summary.slots_leaked = max(summary.slots_leaked, leaked)
        while summary.chunks < observer.chunk_count:
            self._pending.append(observer.chunks[summary.chunks - observer.chunk_count])
            summary.chunks += 1
        self._judge()
        now = time.monotonic() - self._started
        if now >= self._next_memory:
            self._next_memory = now + 1.0
            parts = self._node.read_memory()
            summary.memory.append((now, sum(parts.values())))
            with (self._folder / "memory.csv").open("a") as file:
                file.write(f"{now:.1f},{','.join(str(size) for size in parts.values())}\n")
            summary.waited = self._node.read_waiting() - self._waited_before
        if self._node.status is not None:
            raise RuntimeError(f"the node ended with status {self._node.status}:\n{self._node.last_lines()}")

    def _judge(self) -> None:
        while self._pending and self._pending[0].sent_ns < time.time_ns() - JUDGE_AFTER * 1e9:
            chunk = self._pending.popleft()
            self.summary.judged += 1
            spent = self._spent.pop(chunk.tick, 0.0)
            faults = self._expectations.find_faults(chunk.stamp_ns, chunk.sent_ns - int(spent * 1e9))
            if not chunk.is_finite:
                faults.append("its values are not finite")
            if faults:
                words = f"tick {chunk.tick}: {'; '.join(faults)}"
                self.summary.bad_chunks.append(words)
                print(f"BAD CHUNK {words}", flush=True)

    def _check_slots_at_rest(self) -> None:
        """After all texts were ended, the first tick anew holds no more than it asked for itself."""
        observer = self._observer
        for label in ("deactivate", "activate"):
            if observer.change_state(label) is not True:
                self.summary.failures.append(f"{label} failed at the end")
                return
        before = observer.chunk_count
        if not self.wait_until(lambda: observer.chunk_count > before + 1, PATIENCE):
            self.summary.failures.append("no chunk after deactivating and activating")

    def _end_node(self) -> None:
        self._node.send(signal.SIGINT)
        status = self._node.wait(20.0)
        if status != 0:
            self.summary.failures.append(f"the node ended with status {status} after SIGINT")
        unclean = self._node.find_unclean()
        if unclean:
            self.summary.failures.append(f"the node's log holds {unclean!r}")
        failed = [line for line in self._node.output.splitlines() if "tick failed" in line]
        if failed:
            self.summary.failures.append(f"{len(failed)} ticks failed, the first: {failed[0]}")

    def _start_driver(self, stream: str, offset_ns: int = 0) -> ChildProcess:
        return start_driver([stream], self._recording, self._folder, offset_ns=offset_ns)


def main(shutdown: Shutdown, arguments: list[str]) -> int:
    """Run the soak; 0 when it passed."""
    parser = argparse.ArgumentParser(prog="python -m soak run", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1, help="of the sequence of faults")
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=[], help="these kinds of faults")
    parser.add_argument("--sim-time", action="store_true", help="under /clock, which jumps too")
    parser.add_argument("--out", type=Path, default=None, help="folder for logs; default a new one in /tmp")
    options = parser.parse_args(arguments)
    folder = options.out or Path(tempfile.mkdtemp(prefix="oxygen_soak_"))
    folder.mkdir(parents=True, exist_ok=True)
    print(f"logs: {folder}", flush=True)
    shutdown.call_when_asked()
    start_ros()
    soak = Soak(options, folder, shutdown)
    try:
        soak.run()
    except RuntimeError as error:
        soak.summary.failures.append(str(error))
    finally:
        soak.close()
        rclpy.try_shutdown()
    breaches = soak.summary.find_breaches()
    for breach in breaches:
        print(f"BREACH {breach}", flush=True)
    print(soak.summary.summarize(), flush=True)
    return 1 if breaches else 0
