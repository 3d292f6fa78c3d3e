# SPDX-License-Identifier: Apache-2.0
"""Check that slots, observations and requests agree.

Tests run it after every step, the node in debug when no text is under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from oxygen_ros.engine.encoded import EncodedObservation
from oxygen_ros.engine.request import RequestState, TextRequest
from oxygen_ros.engine.scheduler import Scheduler
from oxygen_ros.engine.slots import SlotError, SlotPool


def check_accounting(
    prefixes: SlotPool,
    suffixes: SlotPool,
    opened: Iterable[EncodedObservation],
    waiting: Iterable[TextRequest],
    scheduler: Scheduler,
) -> None:
    """Raise SlotError where the holders of a slot and its count differ.

    A prefix is held by its `with` block and by each request with `holds`, which every live one has. A suffix
    slot is held by exactly one live request.
    """
    prefixes.check_integrity()
    suffixes.check_integrity()
    waiting = list(waiting)
    holders: Counter[int] = Counter(encoded.slot for encoded in opened if encoded.is_open)
    holders.update(request.encoded.slot for request in (*waiting, *scheduler.live) if request.holds)
    for slot in range(prefixes.size):
        if holders[slot] != prefixes.references(slot):
            raise SlotError(f"prefix {slot}: {prefixes.references(slot)} references, {holders[slot]} holders")
    owners = Counter(request.suffix_slot for request in scheduler.live)
    for slot in range(suffixes.size):
        if owners[slot] != suffixes.references(slot):
            raise SlotError(f"suffix {slot}: {suffixes.references(slot)} references, {owners[slot]} requests")
    for request in waiting:
        _expect(request, RequestState.WAITING)
    for request in scheduler.live:
        _expect(request, RequestState.LIVE)
        if not request.holds:
            raise SlotError(f"request {request.id}: live, but holds no prefix")
        if not request.pending:
            raise SlotError(f"request {request.id}: nothing to run next")
        if request.cached + len(request.pending) > scheduler.suffix_tokens:
            raise SlotError(
                f"request {request.id}: {request.cached} + {len(request.pending)} tokens, "
                f"its slot holds {scheduler.suffix_tokens}"
            )


def _expect(request: TextRequest, state: RequestState) -> None:
    if request.state is not state or request.is_finished:
        raise SlotError(
            f"request {request.id}: {request.state.name}, finish reason {request.finish_reason}, "
            f"where it should be {state.name} and unfinished"
        )
