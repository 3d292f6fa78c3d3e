# SPDX-License-Identifier: Apache-2.0
"""A task as a value: which blocks, how many. `expert` carries it out."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from oxygen_ros.demo.sim.geometry import COLORS

NUMBERS: Final = ("no", "one", "two")
"""Words for 0, 1, 2."""

_INSTRUCTION: Final = re.compile(r"put (one|two) (red|green|blue) blocks? in the box\.?")


@dataclass(frozen=True, slots=True)
class Task:
    """Put `count` blocks of `color` into the box, then stop."""

    color: str = "red"
    count: int = 2

    def __post_init__(self) -> None:
        if self.color not in COLORS:
            raise ValueError(f"task color {self.color!r} is unknown; it must be one of {', '.join(COLORS)}")
        if self.count not in (1, 2):
            raise ValueError(f"task count {self.count!r} is not possible; it must be 1 or 2")

    @property
    def instruction(self) -> str:
        """The task in words, e.g. "put two red blocks in the box"."""
        noun = "block" if self.count == 1 else "blocks"
        return f"put {NUMBERS[self.count]} {self.color} {noun} in the box"

    @classmethod
    def parse(cls, instruction: str) -> Task:
        """The task an instruction names; ValueError lists the understood forms."""
        match = _INSTRUCTION.fullmatch(" ".join(instruction.lower().split()))
        if match is None:
            raise ValueError(
                f"instruction {instruction!r} is not understood; say "
                f"'put one|two {'|'.join(COLORS)} block|blocks in the box'"
            )
        return cls(color=match[2], count=NUMBERS.index(match[1]))
