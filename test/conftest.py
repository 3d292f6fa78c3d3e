# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the whole suite: a DDS domain nobody else uses, real processes that end cleanly, golden data.

Here lives nothing about one part of the package. The domain is chosen when this file is loaded, before any
test can import rclpy.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

ROOT = Path(__file__).resolve().parent.parent

# The suite says the same of the same code, today and tomorrow. To look for new cases:
# HYPOTHESIS_PROFILE=explore make test ARGS=...
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", derandomize=True, database=None, **_PATIENT)
settings.register_profile("explore", **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

# What a process that ended cleanly has not written.
UNCLEAN = re.compile(r"Traceback \(most recent call last\)|Segmentation fault|Aborted|terminate called")


def claim_domain() -> tuple[int, IO[str]]:
    """A ROS domain that no other run of this suite on this machine holds, and the lock that says so.

    Domains 1..101 keep DDS ports below the range Linux hands out to others; 0 is where people's robots are.
    """
    folder = Path(tempfile.gettempdir())
    start = os.getpid() % 101
    for i in range(101):
        domain = 1 + (start + i) % 101
        lock = (folder / f"oxygen_ros_test_domain_{domain}_{os.getuid()}.lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            continue
        return domain, lock
    raise RuntimeError("all 101 ROS domains are held by other test runs on this machine")


DOMAIN, _DOMAIN_LOCK = claim_domain()  # the lock is held until this process ends
os.environ["ROS_DOMAIN_ID"] = str(DOMAIN)
os.environ["ROS_AUTOMATIC_DISCOVERY_RANGE"] = "LOCALHOST"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MUJOCO_GL", "egl")
os.environ["HF_HUB_OFFLINE"] = "1"


class Process:
    """A real process of a test: its output is collected, and it must end cleanly.

    `lines` grows while it runs (stdout and stderr together; a reader thread of our own appends).
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        self.command = list(command)
        self.lines: list[str] = []
        self._grown = threading.Condition()
        self._popen = subprocess.Popen(
            self.command,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read, name=f"output of {self.command[0]}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            with self._grown:
                self.lines.append(line.rstrip("\n"))
                self._grown.notify_all()
        with self._grown:
            self._grown.notify_all()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def output(self) -> str:
        with self._grown:
            return "\n".join(self.lines)

    def running(self) -> bool:
        return self._popen.poll() is None

    def wait_for_line(self, pattern: str, timeout: float = 30.0, after: str | None = None) -> str:
        """The first line that matches, past or coming (after the first that matches `after`).

        AssertionError with the output when none does.
        """
        wanted = re.compile(pattern)
        deadline = time.monotonic() + timeout
        seen = 0
        if after is not None:
            mark = self.wait_for_line(after, timeout)
            with self._grown:
                seen = self.lines.index(mark) + 1
        with self._grown:
            while True:
                for line in self.lines[seen:]:
                    if wanted.search(line):
                        return line
                seen = len(self.lines)
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    break
                self._grown.wait(min(left, 0.5))
        raise AssertionError(f"{self.command[0]}: no line matches {pattern!r} in {timeout} s\n{self.output}")

    def send(self, number: signal.Signals, group: bool = False) -> None:
        """Send a signal to this process alone, or (as Ctrl-C in a terminal does) to all it started too."""
        if group:
            os.killpg(self._popen.pid, number)
        else:
            self._popen.send_signal(number)

    def wait(self, timeout: float = 20.0) -> int:
        """The exit status; AssertionError with the output when it does not end in time."""
        try:
            status = self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"{self.command[0]} did not end in {timeout} s\n{self.output}") from None
        self._reader.join(timeout=5.0)
        return status

    def stop(self, number: signal.Signals = signal.SIGINT, timeout: float = 20.0, group: bool = False) -> str:
        """Ask it to end, assert that it did so with 0 and without a traceback, and return its output."""
        if self.running():
            self.send(number, group)
        self.assert_clean(timeout)
        return self.output

    def assert_clean(self, timeout: float = 20.0) -> None:
        """Wait for its end; assert exit status 0 and nothing unclean in the output."""
        status = self.wait(timeout)
        assert status == 0, f"{self.command[0]} ended with {status}\n{self.output}"
        found = UNCLEAN.search(self.output)
        assert found is None, f"{self.command[0]} wrote {found.group(0)!r}\n{self.output}"  # type: ignore[union-attr]

    def kill(self) -> None:
        """End it and all it started, now. For leftovers only: a test asks with `stop`."""
        if self.running():
            os.killpg(self._popen.pid, signal.SIGKILL)
            self._popen.wait()
        self._reader.join(timeout=5.0)


@pytest.fixture(scope="session")
def ros_domain() -> int:
    """The ROS domain of this run; the environment of tests and their processes is set to it already."""
    return DOMAIN


@pytest.fixture
def golden() -> Path:
    """The folder of reference data."""
    folder = ROOT / "test" / "golden"
    assert folder.is_dir(), f"{folder} is missing: it belongs to the repository"
    return folder


@pytest.fixture
def run_process(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    """Starts real processes; those a test leaves running are killed and make the test fail.

    run_process(command, params=None, *, name=None, remap=None, env=None) -> Process
        command: program and arguments; the program is looked for on PATH (`oxygen_node`, ...)
        params:  a ROS parameter file (Path), or a mapping of names to values (then a file is written)
        name:    node name (`__node`); remap: further remappings {"from": "to"}
        env:     variables to add to this process's environment
    """
    started: list[Process] = []

    def start(
        command: str | Sequence[str],
        params: Path | Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        remap: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        words = [command] if isinstance(command, str) else [str(word) for word in command]
        program = shutil.which(words[0])
        assert program is not None, f"{words[0]} is not on PATH: source scripts/env.sh (after make build)"
        ros: list[str] = []
        if isinstance(params, Mapping):
            path = tmp_path / f"params_{len(started)}.yaml"
            path.write_text(yaml.safe_dump({"/**": {"ros__parameters": dict(params)}}, sort_keys=False))
            params = path
        if params is not None:
            ros += ["--params-file", str(params)]
        for old, new in {**({"__node": name} if name else {}), **(remap or {})}.items():
            ros += ["-r", f"{old}:={new}"]
        process = Process(
            [program, *words[1:], *(["--ros-args", *ros] if ros else [])],
            {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            tmp_path,
        )
        started.append(process)
        return process

    yield start
    left = [process for process in started if process.running()]
    for process in left:
        process.kill()
    assert not left, f"left running: {[process.command[0] for process in left]}\n" + "\n".join(
        p.output for p in left
    )


@pytest.fixture
def python() -> str:
    """The interpreter of this run, for `run_process([python, ...])`."""
    return sys.executable
