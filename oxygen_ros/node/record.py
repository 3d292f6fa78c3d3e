# SPDX-License-Identifier: Apache-2.0
"""One record of each tick: ~/action_chunk, ~/tick, ~/text, /diagnostics and bags are made from it. No ROS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine import FinishedText, UnaskedQuestion
from oxygen_ros.engine.counters import Counters, Phases
from oxygen_ros.robot.chunk import Chunk


@dataclass(frozen=True, slots=True)
class ChunkRecord:
    """What became of one expert's chunk.

    chunk:        as it was published, within the limits; None when it was not
    first_valid:  actions that had passed at publication
    refusal:      why it was not published, or was published but not commanded; else ""
    clamped:      "<joint>.<limit>" -> actions that limits changed
    latency:      seconds from the receipt of the newest image to the publication; 0 without one
    """

    expert: str
    chunk: Chunk | None = None
    first_valid: int = 0
    refusal: str = ""
    clamped: Mapping[str, int] = field(default_factory=dict)
    latency: float = 0.0


@dataclass(frozen=True, slots=True)
class TickTimes:
    """Seconds a tick waited since it was due, started late with its inputs present, decoded images, published
    the chunk (limits and joining included), and took for it from decoded images to its publication; periods
    wholly missed since activation."""

    wait: float = 0.0
    late: float = 0.0
    decode: float = 0.0
    publish: float = 0.0
    chunk: float = 0.0
    skipped: int = 0


@dataclass(frozen=True, slots=True)
class RunState:
    """What was counted since activation, and the present state.

    *_slots:           used, and how many there are
    feedback_dropped:  text kind -> texts too late for the prompt
    late_joins:        chunks of which more had passed at publication than the join's delay
    strayed, slowed:   see ChunkJoiner; most_passed: largest `first_valid` of the last chunks
    """

    mode: str
    instruction: str
    live: int
    counters: Counters
    prefix_slots: tuple[int, int]
    suffix_slots: tuple[int, int]
    feedback_dropped: Mapping[str, int]
    chunks_refused: int
    actions_clamped: int
    late_joins: int
    strayed: int
    slowed: int
    most_passed: int


@dataclass(frozen=True, slots=True)
class TickRecord:
    """One tick: its inputs, its outputs, how long it took.

    stamp:      of the observation [ns, ROS clock]; joints: float64 [J], observed
    age, skew:  of the images used [s]
    chunk:      of the commanding expert; others: of those that act besides
    feedback:   the texts fed back into the prompt, by kind
    finished:   texts that ended in this tick; state: after it
    """

    tick: int
    stamp: int
    joints: NDArray[np.float64]
    age: float
    skew: float
    chunk: ChunkRecord
    others: tuple[ChunkRecord, ...]
    feedback: Mapping[str, str]
    finished: tuple[FinishedText, ...]
    unasked: tuple[UnaskedQuestion, ...]
    times: TickTimes
    phases: Phases
    state: RunState
