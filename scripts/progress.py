# SPDX-License-Identifier: Apache-2.0
"""Runs set-up steps one after another: one line each, skipped when nothing changed, explained when it fails.

The steps themselves are in `setup_env`. Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

HEARTBEAT = 30.0  # seconds between progress lines when the output is no terminal
TAIL, WIDTH = 15, 300  # lines of a failed command's output that are shown, characters of each

# (pattern in a failed command's output, what to do about it); the first that matches is named.
CURES: tuple[tuple[str, str], ...] = (
    (
        r"No space left on device",
        "free some disk space (the environment takes about 3 GB with the CPU build of torch)",
    ),
    (
        r"Temporary failure in name resolution|Failed to establish a new connection"
        r"|Connection (timed out|refused)|Read timed out|ConnectionError|ProxyError|SSLError",
        "check the network (and pip's settings: `pip config list`, PIP_INDEX_URL, HTTPS_PROXY)",
    ),
    (
        r"from versions: none",
        "pip found no such package at all: check the network, and that this Python is 3.11-3.13 on x86-64",
    ),
    (
        r"No matching distribution found|Could not find a version",
        "no such wheel for this Python and machine: use CPython 3.11-3.13 on x86-64, or source a ROS 2",
    ),
    (
        r"Python\.h: No such file|Development\.Module",
        "install Python's headers (Debian and Ubuntu: apt install python3-dev)",
    ),
    (
        r"No CMAKE_CXX_COMPILER|CMAKE_C_COMPILER not set",
        "install a C++ compiler (Debian and Ubuntu: apt install g++ make)",
    ),
    (r"ensurepip is not available|No module named ensurepip", "apt install python3-venv"),
    (
        r"libEGL|EGL_|OpenGL|GLError|PLATFORM_DEVICE|gladLoadGL",
        "install off-screen OpenGL (Debian and Ubuntu: apt install libegl1 libopengl0 libgl1-mesa-dri)",
    ),
)


class SetupError(RuntimeError):
    """A step cannot go on; the message has the cause and the cure."""


def digest(parts: Iterable[str | bytes]) -> str:
    """One short hash of strings and file contents, the key under which a finished step is remembered."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "little") + data)
    return total.hexdigest()[:24]


def explain(output: str) -> str:
    """The cure for the first known cause found in a failed command's output."""
    for pattern, cure in CURES:
        if re.search(pattern, output):
            return cure
    return "mend what the lines above name"


class Steps:
    """Runs named steps; remembers each finished one under the hash of its inputs."""

    def __init__(self, state: Path, total: int) -> None:
        self.state = state
        self.total = total
        self.count = 0
        self.title = ""
        self.started = 0.0
        self.live = sys.stdout.isatty()

    def log_of(self, name: str) -> Path:
        return self.state.parent / "logs" / f"{name}.log"

    def forget(self, name: str) -> None:
        """Make the step `name` run again."""
        (self.state / f"{name}.done").unlink(missing_ok=True)

    def do(self, name: str, title: str, key: str, action: Callable[[], str | None]) -> None:
        """Run `action` unless a step `name` with this `key` has finished before. Its result is a remark."""
        self.count += 1
        self.title = f"[{self.count}/{self.total}] {title}"
        stamp = self.state / f"{name}.done"
        if stamp.is_file() and stamp.read_text() == key:
            return
        self.started = time.monotonic()
        if self.live:
            self._show("", end="")
        else:
            print(f"{self.title} ...", flush=True)
        stamp.unlink(missing_ok=True)
        try:
            remark = action()
        except SetupError as error:
            if self.live:
                print()
            raise SetupError(
                f"{self.title}: failed\n{error}\n"
                "Then run the same command again; finished steps are not repeated."
            ) from error
        stamp.parent.mkdir(parents=True, exist_ok=True)
        stamp.write_text(key)
        self._show(f"done{f' ({remark})' if remark else ''}", end="\n")

    def call(self, name: str, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> str:
        """Run a command with its output in `logs/<name>.log`; its output on success, SetupError otherwise."""
        log = self.log_of(name)
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as sink:
            process = subprocess.Popen(
                command,
                env=dict(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
            )
            beat = time.monotonic()
            try:
                while True:
                    try:
                        code = process.wait(timeout=0.5)
                        break
                    except subprocess.TimeoutExpired:
                        if self.live:
                            self._show("", end="")
                        elif time.monotonic() - beat > HEARTBEAT:
                            beat = time.monotonic()
                            self._show("still running", end="\n")
            except BaseException:  # Ctrl-C: end the command, then raise on
                process.terminate()
                process.wait()
                raise
        output = log.read_text(errors="replace")
        if code != 0:
            tail = "\n".join("    " + line[:WIDTH] for line in output.rstrip().splitlines()[-TAIL:])
            raise SetupError(
                f"`{' '.join(command[:4])} ...` ended with {code}.\n"
                f"Its last lines (all of them: {log}):\n{tail}\n"
                f"What to do: {explain(output)}."
            )
        return output

    def _show(self, words: str, end: str) -> None:
        elapsed = time.monotonic() - self.started
        line = f"{self.title} ... {elapsed:.0f} s {words}".rstrip()
        print(f"\r\033[K{line}" if self.live else line, end=end, flush=True)
