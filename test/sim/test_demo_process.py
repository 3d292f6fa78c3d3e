# SPDX-License-Identifier: Apache-2.0
"""The demo's child processes: what is missing is named, and none outlives the demo."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oxygen_ros.sim.demo_process import Child, ChildDied


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChildDied, match=r"oxygen_nothing is not on the PATH: source scripts/env.sh"):
        Child("node", ["oxygen_nothing"], tmp_path / "log")


def test_its_last_words_are_told(tmp_path: Path) -> None:
    child = Child("node", [sys.executable, "-c", "print('no camera'); raise SystemExit(3)"], tmp_path / "log")
    child._process.wait(20)
    with pytest.raises(ChildDied, match=r"the node ended with status 3:\nno camera"):
        child.check()


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux's setpriv is not here")
def test_none_is_left_behind_when_the_demo_is_killed(tmp_path: Path) -> None:
    # Shells start what runs in their background deaf to SIGINT, these tests too.
    sleeper = (
        "import signal, time; signal.signal(signal.SIGINT, signal.SIG_DFL);"
        "signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT}); time.sleep(60)"
    )
    log = str(tmp_path / "log")
    parent = (
        "import pathlib, sys, time; from oxygen_ros.sim.demo_process import Child;"
        f"child = Child('node', [sys.executable, '-c', {sleeper!r}], pathlib.Path({log!r}));"
        "print(child._process.pid, flush=True); time.sleep(60)"
    )
    demo = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    pid = int(demo.stdout.readline())
    deadline = time.monotonic() + 20
    # The leash is on once setpriv has become the program.
    while not Path(f"/proc/{pid}/cmdline").read_text().startswith(sys.executable):
        assert time.monotonic() < deadline, "the program did not start"
        time.sleep(0.02)
    demo.send_signal(signal.SIGKILL)
    demo.wait()
    while time.monotonic() < deadline and _is_running(pid):
        time.sleep(0.05)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
