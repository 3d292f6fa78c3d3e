# SPDX-License-Identifier: Apache-2.0
"""The JSON of a run, written whole after every cell: a stopped run keeps what it had.

Here lives the document and its file; the figures are `results` and `baseline`.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from oxygen_ros.bench.bursts import BurstRun
from oxygen_ros.bench.cell import Cell
from oxygen_ros.bench.results import (
    action_only_of,
    better_dtype_of,
    check_outputs,
    runs_of,
    speculation_of,
)
from oxygen_ros.bench.setup import Setup


class Unwritable(Exception):
    """The file for the results could be written when the run began and cannot be now; the text says why."""


class Record:
    """What was measured so far."""

    def __init__(self, setup: Setup, device: str, energy: str, command: str) -> None:
        self.document: dict[str, Any] = {
            "device": device,
            "preset": setup.preset,
            "dtype": ",".join(setup.dtypes),
            "runs": [],
            "complete": False,
            "command": command,
            "energy": energy,
            "clock": setup.clock_name,
            "setup": asdict(setup),
            "components": [],
            "action_only": [],
            "checks": [],
            "outputs_equal": None,
            "better_dtype": [],
            "speculation": [],
            "recommended_k": [],
            "deadline": [],
            "left_out": [{"n": n, "k": k} for n, k in setup.left_out],
            "remarks": [],
            "ablation": [],
        }
        self.bursts: list[BurstRun] = []
        self.timelines: dict[str, list[tuple[str, float, float]]] = {}

    def add(self, cell: Cell) -> None:
        """Take a cell in, whole or as far as it came."""
        document = self.document
        if cell.draft:
            document["speculation"] += speculation_of(cell)
        else:
            document["runs"] += runs_of(cell)
            document["action_only"] += action_only_of(cell)
            document["better_dtype"] += better_dtype_of(cell)
        remarks = dict.fromkeys([*document["remarks"], *(t.lane.remark for t in cell.tracks)])
        document["remarks"] = [remark for remark in remarks if remark]
        if cell.rounds:
            document["checks"] += check_outputs(cell)
            document["outputs_equal"] = all(check["equal"] for check in document["checks"])
        if not self.timelines and cell.complete:
            first = cell.tracks[0].name.dtype
            self.timelines = {
                track.name.mode: track.timeline
                for track in cell.tracks
                if track.name.mode and track.name.dtype == first and track.name.draft == 0
            }
            document["timeline"] = {
                "n": cell.n,
                "k": cell.k,
                "dtype": first,
                "asked": cell.traced_texts,
                "calls": {
                    mode: [[name, start * 1e3, end * 1e3] for name, start, end in calls]
                    for mode, calls in self.timelines.items()
                },
            }

    def add_bursts(self, run: BurstRun) -> None:
        """Take a real-time run in, whole or as far as it came."""
        if figures := run.figures():
            self.bursts.append(run)
            self.document["deadline"].append(figures)

    def write(self, file: Path | None) -> None:
        """Raises Unwritable when the file cannot be written any more."""
        if file is None:
            return
        try:
            write_json(file, self.document)
        except OSError as error:
            raise Unwritable(f"{file} cannot be written: {error.strerror}") from None


def write_json(file: Path, document: dict[str, Any]) -> None:
    """Write a whole file or leave the old one: nobody ever reads half of it. Raises OSError."""
    file = file.resolve()  # what a link points to is replaced, not the link
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.write("\n")
        Path(name).chmod(0o644)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_writable(file: Path) -> None:
    """Raise ValueError now rather than after an hour of measuring."""
    folder = file.resolve().parent
    if file.is_dir():
        raise ValueError(f"{file} is a folder: name a file in it")
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is a device or a pipe, and would be replaced: name an ordinary file")
    if not folder.is_dir():
        raise ValueError(f"{file} cannot be written: folder {folder} does not exist")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{file} cannot be written: {error.strerror}; name a file in a folder you may write to"
        ) from None
