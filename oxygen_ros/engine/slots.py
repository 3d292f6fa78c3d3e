# SPDX-License-Identifier: Apache-2.0
"""Slot numbers with reference counts. The memory behind a slot belongs to the model."""

from __future__ import annotations


class SlotError(RuntimeError):
    """A slot was used against its accounting: a programming error, never a full pool."""


class SlotPool:
    """Slots 0..size-1; each is free or has a reference count of at least one."""

    def __init__(self, name: str, size: int) -> None:
        if size < 1:
            raise ValueError(f"{name}: a pool needs at least one slot, got {size}")
        self.name = name
        self.size = size
        self._references = [0] * size
        self._free = list(range(size - 1, -1, -1))  # popped from the end: low numbers first

    @property
    def used(self) -> int:
        return self.size - len(self._free)

    @property
    def free(self) -> int:
        return len(self._free)

    def acquire(self) -> int | None:
        """A free slot with one reference, or None when the pool is full."""
        if not self._free:
            return None
        slot = self._free.pop()
        self._references[slot] = 1
        return slot

    def retain(self, slot: int) -> None:
        """Add a reader to a slot that is in use."""
        if self._references[slot] < 1:
            raise SlotError(f"{self.name} {slot}: retained while free")
        self._references[slot] += 1

    def release(self, slot: int) -> None:
        """Remove a reader; the last one frees the slot."""
        if self._references[slot] < 1:
            raise SlotError(f"{self.name} {slot}: released while free")
        self._references[slot] -= 1
        if self._references[slot] == 0:
            self._free.append(slot)

    def references(self, slot: int) -> int:
        return self._references[slot]

    def check_integrity(self) -> None:
        """Raise SlotError unless every slot is either free once or referenced."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise SlotError(f"{self.name}: a slot is in the free list twice: {sorted(self._free)}")
        for slot, count in enumerate(self._references):
            if (count == 0) != (slot in free):
                raise SlotError(f"{self.name} {slot}: {count} references, free list {sorted(free)}")
