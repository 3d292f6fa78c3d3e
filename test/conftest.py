# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the whole suite: a DDS domain of its own, real processes that end cleanly, golden data.

The domain is chosen when this file is loaded, before any test can import rclpy.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import pytest
import yaml
from hypothesis import HealthCheck, settings

from oxygen_ros.processes import ChildProcess

ROOT = Path(__file__).resolve().parent.parent

# The suite is deterministic. To look for new cases:
# HYPOTHESIS_PROFILE=explore make test ARGS=...
_PATIENT = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", derandomize=True, database=None, **_PATIENT)
settings.register_profile("explore", **_PATIENT)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

_numbers = itertools.count()  # of the processes started


def claim_domain() -> tuple[int, IO[str]]:
    """A ROS domain that no other run of this suite on this machine holds, and its lock.

    Domains 1..101 keep DDS ports below the range Linux hands out to others; 0 is the default of robots.
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
    """A real process of a test: its output (stdout and stderr together) is kept, and it must end cleanly."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], cwd: Path) -> None:
        """env: all of its environment."""
        changes = {**dict.fromkeys(os.environ), **env}
        # Signals as a shell leaves them: the program itself must block them.
        log = cwd / f"output_{next(_numbers)}.log"
        self.child = ChildProcess(command, log, env=changes, cwd=cwd, hold_signals=False)
        self.command = self.child.command
        self.pid = self.child.pid

    @property
    def output(self) -> str:
        return self.child.output

    def running(self) -> bool:
        return self.child.status is None

    def wait_for_line(self, pattern: str, timeout: float = 60.0, after: str | None = None) -> str:
        """The first line that matches, past or coming (after the first that matches `after`).

        AssertionError with the output when none does.
        """
        deadline = time.monotonic() + timeout
        is_last = False
        while True:
            is_running = self.running()  # before its output is read: what it wrote last is then there
            lines = iter(self.output.splitlines(keepends=True))
            if after is None or any(re.search(after, line) for line in lines):
                for line in lines:
                    if re.search(pattern, line) and (line.endswith("\n") or not is_running):
                        return line.rstrip("\n")
            if is_last:
                raise AssertionError(
                    f"{self.command[0]}: no line matches {pattern!r} in {timeout} s\n{self.output}"
                )
            is_last = not is_running or time.monotonic() > deadline
            time.sleep(0.02)

    def wait_until_signals_are_held(self, timeout: float = 60.0) -> None:
        """Wait until the program has blocked SIGINT in its first line: before, the interpreter handles it."""
        deadline = time.monotonic() + timeout
        while not self._holds(signal.SIGINT):
            assert self.running(), self.output
            assert time.monotonic() < deadline, f"{self.command[0]} never blocked SIGINT"
            time.sleep(0.005)

    def _holds(self, number: signal.Signals) -> bool:
        status = Path(f"/proc/{self.pid}/status").read_text()
        blocked = int(re.search(r"^SigBlk:\s*(\w+)$", status, re.MULTILINE).group(1), 16)  # type: ignore[union-attr]
        return bool(blocked >> (number - 1) & 1)

    def send(self, number: signal.Signals, group: bool = False) -> None:
        """Send a signal to this process alone, or (as Ctrl-C in a terminal does) to all it started too."""
        if group:
            os.killpg(self.pid, number)
        else:
            self.child.send(number)

    def wait(self, timeout: float = 60.0) -> int:
        """The exit status; AssertionError with the output when it does not end in time."""
        status = self.child.wait(timeout)
        if status is None:
            self.kill()
            raise AssertionError(f"{self.command[0]} did not end in {timeout} s\n{self.output}")
        return status

    def stop(self, number: signal.Signals = signal.SIGINT, timeout: float = 60.0, group: bool = False) -> str:
        """Ask it to end, assert that it did so with 0 and without a traceback, and return its output."""
        if self.running():
            self.send(number, group)
        self.assert_clean(timeout)
        return self.output

    def assert_clean(self, timeout: float = 60.0) -> None:
        """Wait for its end; assert exit status 0 and nothing unclean in the output."""
        status = self.wait(timeout)
        assert status == 0, f"{self.command[0]} ended with {status}\n{self.output}"
        found = self.child.find_unclean()
        assert not found, f"{self.command[0]} wrote {found!r}\n{self.output}"

    def kill(self) -> None:
        """End it and all it started, now. For leftovers only: a test asks with `stop`."""
        self.child.kill()


def pytest_report_header(config: pytest.Config) -> str:
    return (
        "one folder or file alone: make test TESTS=test/robot; pytest's options: make test ARGS='-k limits'"
    )


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
