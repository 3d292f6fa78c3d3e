# SPDX-License-Identifier: Apache-2.0
"""A demo that cannot be recorded, or whose simulator cannot run: reported in a line; no process is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from oxygen_ros.demo.main import make_folder


def assert_nothing_runs_in(folder: Path) -> None:
    """The demo's children have its working folder."""
    running = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").resolve() == folder:
                running.append((process / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue  # ended meanwhile, or another user's
    assert running == []


def test_a_folder_that_cannot_be_written_is_named(run_process: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    demo = run_process(["oxygen_demo", "--out", str(tmp_path / "file" / "runs")])
    assert demo.wait() == 1
    assert "Traceback" not in demo.output
    assert "cannot write into" in demo.output
    assert "--out" in demo.output


def test_a_disk_that_fills_ends_it_in_order(run_process: Callable[..., Any], tmp_path: Path) -> None:
    """As seen from a process, a limit on the size of files is a full disk."""
    demo = run_process(["bash", "-c", "ulimit -f 400; exec oxygen_demo --out runs"])
    assert demo.wait() == 1
    assert "Traceback" not in demo.output
    assert "cannot write into runs" in demo.output
    assert_nothing_runs_in(tmp_path)


def test_a_simulator_that_fails_takes_the_node_along(run_process: Callable[..., Any], tmp_path: Path) -> None:
    demo = run_process(["oxygen_demo", "--out", "runs"], env={"MUJOCO_GL": "nonsense"})
    assert demo.wait() == 1
    assert "the simulator ended with status 1" in demo.output
    assert "MUJOCO_GL='nonsense'" in demo.output
    assert_nothing_runs_in(tmp_path)


def test_a_node_that_cannot_be_configured_ends_it_at_once(
    run_process: Callable[..., Any], tmp_path: Path
) -> None:
    """Not after the minute and a half that loading and warming up may take: it says why, not how long."""
    model = tmp_path / "no_model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    demo = run_process(["oxygen_demo", "--out", "runs", "--model", str(model)])
    assert demo.wait(120) == 1
    assert "the node has no way to start: configure failed" in demo.output
    assert str(model) in demo.output
    assert_nothing_runs_in(tmp_path)


def test_two_in_the_same_second_have_folders_of_their_own(tmp_path: Path) -> None:
    assert len({make_folder(tmp_path / "runs") for _ in range(3)}) == 3
