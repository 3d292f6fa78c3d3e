# SPDX-License-Identifier: Apache-2.0
"""An encoded observation: the handle of one prefix in the model's pool, shared by its readers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from oxygen_ros.engine.slots import SlotError, SlotPool
from oxygen_ros.models.interface import Prefix
from oxygen_ros.observation import Observation


@dataclass(eq=False, slots=True)
class EncodedObservation:
    """One observation, encoded. A `with` block holds it open; each text request holds it on its own.

    The slot is freed when the last holder releases it, in any order.

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
        """Add a holder; each calls `release` once."""
        self.pool.retain(self.slot)

    def release(self) -> None:
        self.pool.release(self.slot)

    def close(self) -> None:
        """Release the hold of `observe`; later calls do nothing."""
        if self.is_open:
            self.is_open = False
            self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
