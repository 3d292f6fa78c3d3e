# SPDX-License-Identifier: Apache-2.0
"""An encoded observation: one prefix cache in its slot, shared by everyone who reads it.

The cache itself is in the model's pool.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Self

from oxygen_ros.engine.slots import SlotError, SlotPool
from oxygen_ros.models.interface import Prefix
from oxygen_ros.observation import Observation


@dataclass(eq=False, slots=True)
class EncodedObservation:
    """One observation, encoded. A `with` block holds it open; each text request holds it on its own.

    The slot is freed when the last holder lets go, in whatever order they do.

    is_open:      until its `with` block ends
    is_complete:  whether the model has added what only text reads, see `Model.complete`
    """

    pool: SlotPool
    slot: int
    prefix: Prefix
    observation: Observation
    tick: int
    is_open: bool = True
    is_complete: bool = False

    def expect_open(self) -> None:
        """Raise SlotError when closed: by now the slot may hold another observation."""
        if not self.is_open:
            raise SlotError(f"the observation of tick {self.tick} is closed: use it inside its `with` block")

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
