# SPDX-License-Identifier: Apache-2.0
"""Shutdown and child processes: a thread waits for signals, what is missing is named, no child stays."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from oxygen_ros.processes import ChildError, ChildProcess

WAIT = 20.0  # s on a busy machine


def start(tmp_path: Path, program: str, **options: bool) -> ChildProcess:
    return ChildProcess([sys.executable, "-c", program], tmp_path / "log", name="node", **options)


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    with pytest.raises(ChildError, match=r"oxygen_nothing is not on the PATH: source scripts/env.sh"):
        ChildProcess(["oxygen_nothing"], tmp_path / "log")


def test_the_end_of_its_log_is_told(tmp_path: Path) -> None:
    child = start(tmp_path, "print('no camera'); raise SystemExit(3)")
    assert child.wait(WAIT) == 3
    with pytest.raises(ChildError, match=r"the node ended with status 3:\nno camera"):
        child.check()
    assert child.stop() == "", "what has ended is not stopped"


def test_it_is_stopped_by_sigint_and_what_goes_wrong_is_told(tmp_path: Path) -> None:
    orderly = (
        "import signal, sys; print('ready', flush=True); signal.sigwait({signal.SIGINT});"
        "print('bye'); sys.exit(0)"
    )
    child = start(tmp_path, orderly)
    child.check()
    assert child.stop() == ""
    assert child.output == "ready\nbye\n"
    failing = start(tmp_path, "import signal; signal.sigwait({signal.SIGINT}); 1 / 0")
    assert "the node ended with status 1:" in failing.stop()
    assert failing.find_unclean() == "Traceback (most recent call last)"


def test_one_that_does_not_end_is_killed_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ChildProcess, "GRACE", 0.2)
    program = (
        "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    )
    child = start(tmp_path, program)
    deadline = time.monotonic() + WAIT
    while not child.output:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    grandchild = int(child.output)
    assert child.stop() == "the node did not end within 0 s of SIGINT and was killed"
    while is_running(grandchild):
        assert time.monotonic() < deadline, f"{grandchild} runs on"
        time.sleep(0.02)


def test_it_is_talked_to_in_lines(tmp_path: Path) -> None:
    child = start(
        tmp_path, "print(input()[::-1]); import sys; print('aside', file=sys.stderr)", has_pipes=True
    )
    child.tell("abc")
    assert child.wait(WAIT) == 0
    deadline = time.monotonic() + WAIT
    lines: list[str] = []
    while not (lines := [*lines, *child.take_lines()]):
        assert time.monotonic() < deadline
    assert lines == ["cba"]
    assert child.output == "aside\n"


def test_its_environment_is_ours_with_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEPT", "1")
    monkeypatch.setenv("LEFT_OUT", "1")
    program = "import os; print(*(os.environ.get(name) for name in ('KEPT', 'LEFT_OUT', 'ADDED')))"
    command = [sys.executable, "-c", program]
    child = ChildProcess(command, tmp_path / "log", env={"LEFT_OUT": None, "ADDED": "2"}, cwd=tmp_path)
    assert child.wait(WAIT) == 0
    assert child.output == "1 None 2\n"


@pytest.mark.skipif(shutil.which("setpriv") is None, reason="util-linux's setpriv is not here")
def test_none_is_left_behind_when_its_parent_is_killed(tmp_path: Path) -> None:
    """Not even one that blocks signals: a killed soak must leave no node behind that ticks for ever."""
    program = (
        "import sys, time; from pathlib import Path; from oxygen_ros.processes import ChildProcess\n"
        f"log = Path({str(tmp_path)!r}) / 'log'\n"
        "child = ChildProcess([sys.executable, '-c', 'import time; time.sleep(60)'], log)\n"
        "print(child.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    deadline = time.monotonic() + WAIT
    # The leash is on once setpriv has become the program.
    while not Path(f"/proc/{child}/cmdline").read_text().startswith(sys.executable):
        assert time.monotonic() < deadline, "the program did not start"
        time.sleep(0.02)
    parent.kill()
    parent.wait()
    while is_running(child):
        assert time.monotonic() < deadline, f"{child} runs on"
        time.sleep(0.05)


SHUTDOWN = """
import signal, time
from oxygen_ros.processes import Shutdown
shutdown = Shutdown()
shutdown.watch_signals()
print("watching", flush=True)
{begin}
end = time.monotonic() + 60
while not shutdown.is_asked.is_set() and time.monotonic() < end:
    sum(range(1000))
print(shutdown.reason, flush=True)
raise SystemExit(shutdown.exit_code)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_asks_the_main_loop_to_end(tmp_path: Path, number: signal.Signals) -> None:
    program = SHUTDOWN.format(
        begin="shutdown.call_when_asked(lambda: print('woken', flush=True))\nprint('begun')"
    )
    child = start(tmp_path, program, hold_signals=False)
    wait_for(child, "begun")
    child.send(number)
    child.send(signal.SIGTERM)  # a second one has no effect
    assert child.wait(WAIT) == 0
    assert child.output.splitlines() == ["watching", "begun", "woken", number.name]


def test_a_signal_before_there_is_a_main_loop_ends_the_process(tmp_path: Path) -> None:
    child = start(tmp_path, SHUTDOWN.format(begin=""), hold_signals=False)
    wait_for(child, "watching")
    child.send(signal.SIGINT)
    assert child.wait(WAIT) == 0
    assert child.output == "watching\n", "nothing of the main loop"


def test_the_exit_code_of_who_ends_it(tmp_path: Path) -> None:
    child = start(
        tmp_path, SHUTDOWN.format(begin="shutdown.end(69, 'device lost'); shutdown.call_when_asked()")
    )
    assert child.wait(WAIT) == 69
    assert child.output == "watching\ndevice lost\n"


def wait_for(child: ChildProcess, line: str) -> None:
    deadline = time.monotonic() + WAIT
    while line not in child.output.splitlines():
        assert time.monotonic() < deadline, child.output
        time.sleep(0.01)


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
