# SPDX-License-Identifier: Apache-2.0
"""The processes of a soak or a storm: the node under test and the drivers.

Here lives starting, feeding, signalling, measuring and ending them. Each has a log; those that speak on
stdout are read by a thread of their own, and their lines wait in a queue.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

# What a process that ended well has not written.
UNCLEAN = re.compile(r"Traceback \(most recent call last\)|Segmentation fault|Aborted|terminate called")


class Process:
    """A running process. Ends with its parent, also when that is killed."""

    def __init__(self, name: str, command: Sequence[str], log: Path, *, speaks: bool = False) -> None:
        """log:   of a process that speaks it is added to (drivers share one), else written anew
        speaks: stdout is kept line by line for `take_lines`, and only stderr goes to the log

        Raises FileNotFoundError when the program is not there.
        """
        if shutil.which(command[0]) is None:
            raise FileNotFoundError(f"{command[0]} is not on the PATH: source scripts/env.sh first")
        self.name = name
        self.log = log
        leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        # Held back until the program has its own way with them: what a signal does to an interpreter that has
        # not come to the program's first line is not the program's doing.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with log.open("ab" if speaks else "wb") as output:
                self._process = subprocess.Popen(
                    [*leash, *command],
                    stdin=subprocess.PIPE if speaks else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if speaks else output,
                    stderr=output if speaks else subprocess.STDOUT,
                    env={**os.environ, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"},
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._lines: SimpleQueue[str] = SimpleQueue()
        if speaks:
            threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def take_lines(self) -> Iterator[str]:
        """What it has said since the last call."""
        while True:
            try:
                yield self._lines.get_nowait()
            except Empty:
                return

    def send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """The exit status, or None when it does not end in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """End it at once, also when it is stopped."""
        self.send(signal.SIGKILL)
        self._process.wait()

    def last_words(self, lines: int = 12) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def find_unclean(self) -> str:
        """What its log holds that no process should write; "" when nothing."""
        found = UNCLEAN.search(self.log.read_text(errors="replace"))
        return found.group(0) if found else ""

    def read_memory(self) -> dict[str, int]:
        """Resident bytes: its own, of files, and shared (the middleware's)."""
        found = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("RssAnon", "RssFile", "RssShmem"):
                found[name] = 1024 * int(rest.split()[0])
        return found

    def read_waiting(self) -> float:
        """Seconds that its threads have been ready to run without a CPU."""
        waited_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                waited_ns += int((task / "schedstat").read_text().split()[1])
            except OSError:
                continue  # it has just ended, or this kernel does not tell
        return waited_ns / 1e9

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode().strip())


def start_driver(streams: Sequence[str], recording: Path, folder: Path, *, offset_ns: int = 0) -> Process:
    """A driver of some streams, as `driver` describes it. offset_ns: of simulated time to the wall clock."""
    command = [
        sys.executable, "-m", "oxygen_ros.soak.driver", "--streams", *streams, "--recording", str(recording),
        "--offset", str(offset_ns),
    ]  # fmt: skip
    return Process(f"driver of {', '.join(streams)}", command, folder / "drivers.log", speaks=True)


def start_node(
    name: str, files: Sequence[Path], log: Path, parameters: Mapping[str, str] | None = None
) -> Process:
    """An oxygen_node with parameter files, the later ones winning."""
    command = ["oxygen_node", "--ros-args", "-r", f"__node:={name}"]
    for file in files:
        command += ["--params-file", str(file)]
    for key, value in (parameters or {}).items():
        command += ["-p", f"{key}:={value}"]
    return Process(name, command, log)
