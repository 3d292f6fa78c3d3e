# SPDX-License-Identifier: Apache-2.0
"""Signals while a program is being imported and while its interpreter ends: status 0 and no traceback.

What comes before the first line of a program runs is the interpreter's; each program says when that is, by a
module that is put in the way of its first import.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

# A package in front of the real one: tells that the imports have begun, and lasts.
SLOW = """
import sys, time
print("importing", flush=True)
end = time.monotonic() + 1.0
while time.monotonic() < end: pass
"""


@pytest.mark.parametrize("program", ["oxygen_node", "oxygen_play", "oxygen_sim", "oxygen_demo"])
def test_a_signal_during_the_first_import(
    run_process: Callable[..., Any], tmp_path: Path, program: str
) -> None:
    package = tmp_path / "slow" / "oxygen_ros"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(SLOW)
    process = run_process(program, env={"PYTHONPATH": str(package.parent)})
    process.wait_for_line("importing")
    process.send(signal.SIGINT)
    # The import cannot succeed: only what came of the signal matters, and that it did not raise in there.
    process.wait()
    assert "KeyboardInterrupt" not in process.output


@pytest.mark.parametrize("program", ["oxygen_sim", "oxygen_node"])
def test_an_impatient_user_gets_status_0(run_process: Callable[..., Any], program: str) -> None:
    """Ctrl-C again and again until it is gone, also while the interpreter ends."""
    process = run_process(program)
    process.wait_for_line("simulating|autostart|configure failed")
    deadline = time.monotonic() + 60.0
    while process.running() and time.monotonic() < deadline:
        process.send(signal.SIGINT)
        time.sleep(0.002)
    process.assert_clean()


def test_the_demo_ended_at_once_is_no_failure(run_process: Callable[..., Any], tmp_path: Path) -> None:
    """Its children are then still starting their interpreters."""
    process = run_process(["oxygen_demo", "--out", str(tmp_path / "out")])
    for _ in range(600):
        folders = list((tmp_path / "out").glob("*/*.log"))
        if len(folders) >= 2:
            break
        time.sleep(0.02)
    process.stop(signal.SIGINT)
