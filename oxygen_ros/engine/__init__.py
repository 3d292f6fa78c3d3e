# SPDX-License-Identifier: Apache-2.0
"""One prefix, many readers, resumable text. No ROS, no model family.

In reading order: `engine` (the whole idea), `slots` and `frame` (what is shared), `request`,
`admission` and `scheduler` (which tokens run), `decoder` (how they run), `budget` (when they stop),
`ending` (what is told of a text), `capacity` (why nothing grows), `speculation`, `sampling`, `noise`,
`feedback`, `session` (one robot's run); `counters` and `integrity` (what is counted and checked).
"""

from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.capacity import Load, plan_capacity, ticks_of_text
from oxygen_ros.engine.engine import MODES, Engine
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.request import (
    Answer,
    FinishedText,
    FinishReason,
    Memory,
    Narration,
    Subtask,
    TextTask,
)
from oxygen_ros.engine.session import Recurring, Session, TickReport

__all__ = [
    "MODES",
    "Answer",
    "Budget",
    "Engine",
    "FinishReason",
    "FinishedText",
    "Frame",
    "Load",
    "Memory",
    "Narration",
    "Recurring",
    "Session",
    "Subtask",
    "TextTask",
    "TickReport",
    "plan_capacity",
    "ticks_of_text",
]
