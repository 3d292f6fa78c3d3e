# SPDX-License-Identifier: Apache-2.0
"""Proof that slots, frames and requests agree; run by tests after every step, and when idle in debug.

Here lives only the check; it changes nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from oxygen_ros.engine.admission import Arrivals
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.scheduler import Scheduler
from oxygen_ros.engine.slots import SlotError, SlotPool


def check_accounting(
    frames: SlotPool,
    suffixes: SlotPool,
    opened: Iterable[Frame],
    arrivals: Arrivals,
    scheduler: Scheduler,
    share: bool,
) -> None:
    """Raise SlotError where the holders of a slot and its count differ.

    A frame is held by its `with` block, by each live request and, with `share`, by each arrival.
    A suffix slot is held by exactly one live request.
    """
    frames.check_integrity()
    suffixes.check_integrity()
    holders: Counter[int] = Counter(frame.slot for frame in opened if frame.is_open)
    holders.update(request.frame.slot for request in scheduler.live)
    if share:
        holders.update(arrival.frame.slot for arrival in arrivals)
    for slot in range(frames.size):
        if holders[slot] != frames.references(slot):
            raise SlotError(f"frame {slot}: {frames.references(slot)} references, {holders[slot]} holders")
    owners = Counter(request.suffix_slot for request in scheduler.live)
    for slot in range(suffixes.size):
        if owners[slot] != suffixes.references(slot):
            raise SlotError(f"suffix {slot}: {suffixes.references(slot)} references, {owners[slot]} requests")
    for request in scheduler.live:
        if request.is_finished:
            raise SlotError(f"request {request.id}: finished ({request.finish_reason}) but still live")
        if not request.pending:
            raise SlotError(f"request {request.id}: nothing to run next")
        if request.cached + len(request.pending) > scheduler.suffix_tokens:
            raise SlotError(
                f"request {request.id}: {request.cached} + {len(request.pending)} tokens, "
                f"its slot holds {scheduler.suffix_tokens}"
            )
