# SPDX-License-Identifier: Apache-2.0
"""Which token of which request goes into the next decode step.

Every live request gets one row, oldest first. Spare rows take the rest of prompts, then check drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine.request import FinishReason, TextRequest
from oxygen_ros.engine.speculation import Drafts
from oxygen_ros.models.interface import Rows

_TOKEN, _POSITION, _WRITE_AT = (Rows.FIELDS.index(name) for name in ("token", "position", "write_at"))


@dataclass(slots=True)
class Grant:
    """The rows one request has in a step: `known` tokens of its own, then `draft` tokens.

    rows:    of both
    wanted:  rows whose logits are wanted: none while the prompt is not through
    """

    request: TextRequest
    known: int
    draft: list[int] = field(default_factory=list)
    rows: int = field(init=False)
    wanted: int = field(init=False)

    def __post_init__(self) -> None:
        # Computed once: every part of a step reads them.
        self.rows = self.known + len(self.draft)
        self.wanted = 1 + len(self.draft) if self.known == len(self.request.pending) else 0


@dataclass(slots=True)
class StepPlan:
    """One decode step: grants in the order of their rows, rows of one prefix together.

    rows:           of all grants
    is_repeatable:  whether the next step is this one with each row's chosen token fed back
    """

    grants: list[Grant]
    rows: int = field(init=False)
    is_repeatable: bool = field(init=False)

    def __post_init__(self) -> None:
        self.rows = sum([grant.rows for grant in self.grants])
        self.is_repeatable = self.rows == len(self.grants) and all(
            [grant.wanted == 1 and grant.request.task.temperature == 0 for grant in self.grants]
        )


@dataclass(slots=True)
class _Layout:
    """The last step written to a block, for the next step of the same requests with one row each.

    starts:  position of each request's first token after its prefix
    """

    requests: list[TextRequest]
    block: NDArray[np.int64]
    starts: NDArray[np.int64]
    prefix_spans: list[tuple[int, int, int]]
    suffix_spans: list[tuple[int, int, int]]


class Scheduler:
    """The live requests, in order of admission."""

    def __init__(self, suffix_tokens: int, drafts: Drafts, stops: Callable[[TextRequest], bool]) -> None:
        """stops: whether a request's text now holds one of its stop texts."""
        self.suffix_tokens = suffix_tokens
        self.live: list[TextRequest] = []
        self._drafts = drafts
        self._stops = stops
        # Two shortcuts for greedy steps of the same requests, one row each: `_again` spares planning while
        # the live requests are the same; `_layout` spares the layout while the block holds that step.
        self._layout: _Layout | None = None
        self._again: tuple[list[TextRequest], StepPlan] | None = None

    def remove(self, request: TextRequest) -> None:
        self.live.remove(request)
        if not self.live:
            self._layout = self._again = None  # they hold observations

    def plan(self, max_rows: int, only: TextRequest | None = None) -> StepPlan | None:
        """The next step over the forked, unfinished requests (over `only` that one); None without any."""
        live = [r for r in self.live if r.is_forked and r.finish_reason is None and only in (None, r)]
        live = live[:max_rows]
        if not live:
            return None
        if self._again is not None and self._again[0] == live:
            return self._again[1]
        spare = max_rows - len(live)
        knowns = []
        for request in live:
            more = min(len(request.pending) - 1, spare)
            knowns.append(1 + more)
            spare -= more
        grants = []
        for request, known in zip(live, knowns, strict=True):
            draft = self._guess(request, known, spare) if spare and self._drafts.longest else []
            spare -= len(draft)
            grants.append(Grant(request, known, draft))
        grants.sort(key=lambda grant: grant.request.encoded.slot)
        plan = StepPlan(grants)
        self._again = (live, plan) if plan.is_repeatable and not self._drafts.longest else None
        return plan

    def _guess(self, request: TextRequest, known: int, spare: int) -> list[int]:
        if known < len(request.pending) or not request.task.is_greedy:
            return []
        room = min(
            spare,
            self.suffix_tokens - request.cached - known,
            # The step itself yields one token more than the draft.
            request.task.max_tokens - len(request.tokens) - 1,
        )
        return self._drafts.propose(request.task.kind, request.tokens, room)

    def write(self, plan: StepPlan, rows: Rows, block: NDArray[np.int64]) -> None:
        """Write a plan to `block`, the host's copy of `rows`: int64 [fields, max_rows], as Rows.FIELDS."""
        if plan.is_repeatable and self._write_next(plan, rows, block):
            return
        # Lists first, then one copy: numpy costs by the call, and a step has many short pieces.
        token: list[int] = []
        write_at: list[int] = []
        position: list[int] = []
        prefix_slot: list[int] = []
        suffix_slot: list[int] = []
        adapter: list[int] = []
        wants: list[int] = []
        prefix_spans: list[tuple[int, int, int]] = []
        suffix_spans: list[tuple[int, int, int]] = []
        longest = 0
        for grant in plan.grants:
            request, count = grant.request, grant.rows
            encoded, cached, first = request.encoded, request.cached, len(token)
            last, start = first + count, encoded.prefix.next_position
            token += request.pending[: grant.known]
            token += grant.draft
            write_at += range(cached, cached + count)
            position += range(start + cached, start + cached + count)
            prefix_slot += [encoded.slot] * count
            suffix_slot += [request.suffix_slot] * count
            adapter += [request.adapter] * count
            wants += range(last - grant.wanted, last)
            longest = max(longest, cached + count)
            suffix_spans.append((request.suffix_slot, first, last))
            if prefix_spans and prefix_spans[-1][0] == encoded.slot:
                prefix_spans[-1] = (encoded.slot, prefix_spans[-1][1], last)
            else:
                prefix_spans.append((encoded.slot, first, last))
        row, wanted = len(token), len(wants)
        fields = (token, position, prefix_slot, suffix_slot, write_at, adapter)
        block[: len(fields), :row] = fields
        block[len(fields), :wanted] = wants
        rows.count, rows.wanted, rows.longest = row, wanted, longest
        rows.prefix_spans, rows.suffix_spans = prefix_spans, suffix_spans
        self._layout = None
        if plan.is_repeatable:
            starts = block[_POSITION, :row] - block[_WRITE_AT, :row]
            requests = [grant.request for grant in plan.grants]
            self._layout = _Layout(requests, block, starts, prefix_spans, suffix_spans)

    def _write_next(self, plan: StepPlan, rows: Rows, block: NDArray[np.int64]) -> bool:
        """Write the last step, one token further: only tokens and places change. False for another step."""
        last = self._layout
        requests = [grant.request for grant in plan.grants]
        if last is None or last.block is not block or last.requests != requests:
            return False
        count = len(requests)
        cached = [request.cached for request in requests]
        block[_TOKEN, :count] = [request.pending[0] for request in requests]
        block[_WRITE_AT, :count] = cached
        np.add(last.starts, block[_WRITE_AT, :count], out=block[_POSITION, :count])
        rows.count = rows.wanted = count
        rows.longest = max(cached) + 1
        rows.prefix_spans, rows.suffix_spans = last.prefix_spans, last.suffix_spans
        return True

    def absorb(self, plan: StepPlan, chosen: Sequence[int]) -> None:
        """Add the chosen tokens of one step to its requests. A wrong draft is dropped: its rows in the suffix
        slot lie beyond `cached`, unread, until the next rows overwrite them.

        A request that has ended ignores them: a repeated step overshoots its end.
        """
        at = 0
        for grant in plan.grants:
            request, wanted = grant.request, grant.wanted
            if request.finish_reason is not None:
                at += wanted
                continue
            request.steps += 1
            request.cached += grant.known
            if wanted == 0:
                del request.pending[: grant.known]
                continue
            for place in range(wanted):
                pick = chosen[at + place]
                request.pending = [pick]
                self._emit(request, pick)
                if place + 1 == wanted or grant.draft[place] != pick or request.is_finished:
                    break
                request.cached += 1  # the draft's row holds this very token: its K/V stands
            at += wanted

    def _emit(self, request: TextRequest, token: int) -> None:
        if token in request.eos_ids:
            request.end_token = token
            request.finish_reason = FinishReason.EOS
            return
        request.tokens.append(token)
        if request.task.stop and self._stops(request):
            request.finish_reason = FinishReason.STOP
        elif len(request.tokens) >= request.task.max_tokens:
            request.finish_reason = FinishReason.LENGTH
