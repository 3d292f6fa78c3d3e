# SPDX-License-Identifier: Apache-2.0
"""Starts the programs of a run: the node under test and the drivers."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from oxygen_ros.processes import ChildProcess

TOOLS = Path(__file__).resolve().parents[1]


def start_driver(
    streams: Sequence[str], recording: Path, folder: Path, *, offset_ns: int = 0
) -> ChildProcess:
    """A driver of some streams, as `driver` describes it. offset_ns: of simulated time to the wall clock.

    All drivers of a run share one log.
    """
    command = [
        sys.executable, "-m", "soak.driver", "--streams", *streams, "--recording", str(recording),
        "--offset", str(offset_ns),
    ]  # fmt: skip
    path = os.pathsep.join([str(TOOLS), *filter(None, [os.environ.get("PYTHONPATH")])])
    return ChildProcess(
        command,
        folder / "drivers.log",
        name=f"driver of {', '.join(streams)}",
        env={"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        has_pipes=True,
    )


def start_node(
    name: str, files: Sequence[Path], log: Path, parameters: Mapping[str, str] | None = None
) -> ChildProcess:
    """An oxygen_node with parameter files, the later ones winning."""
    command = ["oxygen_node", "--ros-args", "-r", f"__node:={name}"]
    for file in files:
        command += ["--params-file", str(file)]
    for key, value in (parameters or {}).items():
        command += ["-p", f"{key}:={value}"]
    return ChildProcess(command, log, name=name, env={"OMP_NUM_THREADS": "1"})
