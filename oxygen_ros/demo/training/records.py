# SPDX-License-Identifier: Apache-2.0
"""The record of one frame, and shards of frames on disk (numpy files, never pickled).

The layout of the data: `collect` and `views` make it, `batch` reads it. A shard is two files,
`NAME.frames.npy` (pictures) and `NAME.records.npy`; it exists once the second does.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g

HORIZON: Final = 16
STEP: Final = 0.1
"""Seconds between two actions of a chunk, and between two kept frames."""
HISTORY: Final = 16
"""How far back the count in the box is kept [frames]."""
NOT_YET: Final = 255
"""In `inside`: before the episode began, when there was nothing to remember."""
PHASES: Final = ("reach", "grasp", "carry", "drop", "return", "stuck", "done")

RECORD: Final = np.dtype(
    [
        ("seed", "i8"),  # of the layout
        ("time", "f4"),  # s since the episode began
        ("joints", "f4", (7,)),  # measured [rad], [m]
        ("targets", "f4", (HORIZON, 7)),  # commanded, STEP apart, the first one STEP after the frame
        ("valid", "u1"),  # how many of them the expert commanded
        ("colour", "u1"),  # of the task, index in geometry.COLORS
        ("count", "u1"),  # of the task
        ("inside", "u1", (HISTORY + 1,)),  # blocks of the color in the box now, STEP ago, 2 STEP ago, ...
        ("phase", "u1"),  # index in PHASES
        ("acted", "u1"),  # color of the block acted on
        ("policy", "u1"),  # 1: the policy, not the expert, brought the arm here
        ("blocks", "f4", (g.MAX_BLOCKS, 5)),  # x, y, z [m], yaw [rad], color; color -1: not to be seen
    ]
)


@dataclass(frozen=True, slots=True)
class Shard:
    """Frames uint8 [N, cameras, S, S, 3] (memory-mapped) and their records [N]."""

    name: str
    frames: NDArray[np.uint8]
    records: NDArray[np.void]


def write_shard(folder: Path, name: str, frames: NDArray[np.uint8], records: NDArray[np.void]) -> None:
    """Write a shard; a reader never sees a part of it."""
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / f"{name}.frames.npy", frames, allow_pickle=False)
    part = folder / f"{name}.records.part"
    with part.open("wb") as file:
        np.save(file, records, allow_pickle=False)
    part.rename(folder / f"{name}.records.npy")


def read_shards(folder: Path) -> list[Shard]:
    """All shards of a folder, by name. Raises ValueError for one of another layout."""
    shards = []
    for path in sorted(folder.glob("*.records.npy")):
        name = path.name.removesuffix(".records.npy")
        records = np.load(path, allow_pickle=False)
        if records.dtype != RECORD:
            raise ValueError(f"{path} was written by another version of the package: collect it again")
        frames = np.load(folder / f"{name}.frames.npy", mmap_mode="r", allow_pickle=False)
        if len(frames) != len(records):
            raise ValueError(f"{path}: {len(records)} records for {len(frames)} frames: collect it again")
        shards.append(Shard(name, frames, records))
    return shards
