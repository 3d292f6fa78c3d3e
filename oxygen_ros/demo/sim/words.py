# SPDX-License-Identifier: Apache-2.0
"""Sentences about the robot's present and past: a small closed grammar.

`expert` decides which sentence is true. `all_sentences()` has everything the demo model has to write.
"""

from __future__ import annotations

from enum import StrEnum

from oxygen_ros.demo.sim.geometry import COLORS
from oxygen_ros.demo.sim.task import NUMBERS, Task


class Phase(StrEnum):
    """What the expert is doing; follows from the state alone."""

    REACH = "reach"
    GRASP = "grasp"
    CARRY = "carry"
    DROP = "drop"
    RETURN = "return"
    STUCK = "stuck"
    DONE = "done"


_NARRATION = {
    Phase.REACH: "reaching for a {} block.",
    Phase.GRASP: "grasping a {} block.",
    Phase.CARRY: "carrying a {} block.",
    Phase.DROP: "dropping a {} block.",
    Phase.RETURN: "putting a {} block back.",
    Phase.STUCK: "no {} block is in reach.",
    Phase.DONE: "done.",
}


UNTAUGHT = "no such task."
"""The sentence for an instruction that was never taught."""
BLIND = "cannot see."
"""The sentence for a covered camera."""


def narration(phase: Phase, color: str) -> str:
    """One sentence about the present, e.g. "reaching for a red block."."""
    return _NARRATION[phase].format(color)


def memory(task: Task, inside: int) -> str:
    """One sentence about the past that no camera shows, e.g. "one of two red blocks is in the box."."""
    done = min(inside, task.count)
    if done == 0:
        return f"no {task.color} block is in the box."
    if task.count == 1:
        return f"the {task.color} block is in the box."
    verb = "is" if done == 1 else "are"
    return f"{NUMBERS[done]} of {NUMBERS[task.count]} {task.color} blocks {verb} in the box."


def all_sentences() -> tuple[str, ...]:
    """Every sentence of the grammar, sorted."""
    said = {narration(phase, color) for phase in Phase for color in COLORS}
    kept = {memory(Task(c, n), k) for c in COLORS for n in (1, 2) for k in range(n + 1)}
    return tuple(sorted({UNTAUGHT, BLIND} | said | kept))
