# SPDX-License-Identifier: Apache-2.0
"""A frame: one prefix cache in its slot, shared by everyone who reads it.

Here lives the handle. The cache itself is in the model's pool; counting is `slots`.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from oxygen_ros.engine.slots import SlotError, SlotPool
from oxygen_ros.models.interface import Prefix
from oxygen_ros.observation import Observation


@dataclass(eq=False, slots=True)
class Frame:
    """One encoded observation. `with` holds it open; each text request holds it on its own.

    The slot is freed when the last holder lets go, in whatever order they do.
    """

    pool: SlotPool
    slot: int
    prefix: Prefix
    observation: Observation
    tick: int
    is_open: bool = True

    def expect_open(self) -> None:
        """Raise SlotError when closed: by now the slot may hold another observation."""
        if not self.is_open:
            raise SlotError(f"the frame of tick {self.tick} is closed: use it inside its `with` block")

    def retain(self) -> None:
        """One more holder; each lets go by `release`, once."""
        self.pool.retain(self.slot)

    def release(self) -> None:
        self.pool.release(self.slot)

    def close(self) -> None:
        """Let go of the hold that `observe` gave; later calls do nothing."""
        if self.is_open:
            self.is_open = False
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
