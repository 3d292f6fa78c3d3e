# SPDX-License-Identifier: Apache-2.0
"""Soak and stress test in small: real nodes, a few faults, and their detection."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

if importlib.util.find_spec("rclpy") is None:
    pytest.skip("no ROS 2: source scripts/env.sh", allow_module_level=True)

from oxygen_ros.processes import ChildProcess
from soak.programs import TOOLS
from soak.stress import PASSING, SIGNALS, WAYS, draw_cases, judge


def test_a_short_soak(tmp_path: Path) -> None:
    """One fault; on a machine that is busy with other tests, so only what no load explains is asserted."""
    done = subprocess.run(
        [sys.executable, "-m", "soak", "run", "--minutes", "0.15", "--seed", "3",
         "--only", "nan", "--out", str(tmp_path)],
        capture_output=True, text=True, timeout=150, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{TOOLS}:{os.environ.get('PYTHONPATH', '')}"},
    )  # fmt: skip
    *lines, summary = done.stdout.strip().splitlines()
    assert re.match(r"soak: 0\.\d min, seed 3: \d+ ticks", summary), done.stdout + done.stderr
    assert re.search(r"nan of joint_states: reported after \d.* s, recovered \d", done.stdout), done.stdout
    assert " 0 of " in summary
    assert "chunks from bad input; 0 slots leaked" in summary
    assert done.returncode == (0 if summary.endswith("PASS") else 1)
    breaches = [line for line in lines if line.startswith("BREACH")]
    assert all("reported after" in line or "recovered after" in line for line in breaches), breaches


def test_a_stress_run_meets_every_state_by_every_signal() -> None:
    cases = draw_cases(1, 100)
    assert cases == draw_cases(1, 100) != draw_cases(2, 100)
    assert {(case.state, case.by) for case in cases} == {(state, by) for state in WAYS for by in SIGNALS}
    assert all(0 <= case.delay <= max(PASSING.get(case.state, 0.3), 2.5) for case in cases)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        ("print('fine')", ""),
        ("raise SystemExit(3)", "ended with status 3"),
        ("import os; os.kill(os.getpid(), 11)", "ended with status -11"),
        ("import traceback\ntry: 1 / 0\nexcept ZeroDivisionError: traceback.print_exc()", "wrote 'Traceback"),
        ("import time; time.sleep(60)", "did not end within"),
    ],
)
def test_a_stress_run_sees_an_unclean_end(tmp_path: Path, program: str, says: str) -> None:
    process = ChildProcess([sys.executable, "-c", program], tmp_path / "log")
    process.wait(20.0 if "sleep" not in program else 0.5)
    try:
        assert judge(process).startswith(says)
        assert bool(judge(process)) == bool(says)
    finally:
        process.kill()


def test_domain_is_the_suites_own() -> None:
    """The soak's nodes are called `oxygen`, as the robot's are."""
    assert os.environ["ROS_DOMAIN_ID"] != "0"
