# SPDX-License-Identifier: Apache-2.0
"""Which token of which request goes into the next decode step.

Here lives the queue of live requests and the shape of one step. Slots are `slots`, time is
`budget`, the forward pass is `decoder`'s.

Every live request gets one row, oldest first; spare rows then take the rest of prompts, and what
is left over checks drafts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine.request import FinishReason, TextRequest
from oxygen_ros.engine.speculation import Drafts
from oxygen_ros.models.interface import Rows


@dataclass(slots=True)
class Grant:
    """The rows one request has in a step: `known` tokens of its own, then `draft` tokens."""

    request: TextRequest
    known: int
    draft: list[int] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return self.known + len(self.draft)

    @property
    def wanted(self) -> int:
        """Rows whose logits are wanted: none while the prompt is not through."""
        return 1 + len(self.draft) if self.known == len(self.request.pending) else 0


@dataclass(slots=True)
class StepPlan:
    """One decode step: grants in the order of their rows, rows of one frame together."""

    grants: list[Grant]

    @property
    def rows(self) -> int:
        return sum(grant.rows for grant in self.grants)

    @property
    def is_repeatable(self) -> bool:
        """Whether the next step is this one with each row's chosen token fed back."""
        return all(g.known == 1 and g.wanted == 1 and g.request.task.is_greedy for g in self.grants)

    @property
    def tokens_left(self) -> int:
        """Tokens until the first request of the plan reaches its limit."""
        return min(g.request.task.max_tokens - len(g.request.tokens) for g in self.grants)


class Scheduler:
    """The live requests, in order of admission."""

    def __init__(self, suffix_tokens: int, drafts: Drafts, stops: Callable[[TextRequest], bool]) -> None:
        """stops: whether a request's text now holds one of its stop texts."""
        self.suffix_tokens = suffix_tokens
        self.live: list[TextRequest] = []
        self._drafts = drafts
        self._stops = stops

    def add(self, request: TextRequest) -> None:
        self.live.append(request)

    def remove(self, request: TextRequest) -> None:
        self.live.remove(request)

    def plan(self, max_rows: int, only: TextRequest | None = None) -> StepPlan | None:
        """The next step over the unfinished live requests, or None when there are none."""
        live = [r for r in self.live if not r.is_finished and only in (None, r)]
        if not live:
            return None
        grants = [Grant(request, known=1) for request in live[:max_rows]]
        spare = max_rows - len(grants)
        for grant in grants:
            more = min(len(grant.request.pending) - 1, spare)
            grant.known += more
            spare -= more
        for grant in grants:
            if spare < 1:
                break
            grant.draft = self._guess(grant, spare)
            spare -= len(grant.draft)
        grants.sort(key=lambda grant: grant.request.frame.slot)
        return StepPlan(grants)

    def _guess(self, grant: Grant, spare: int) -> list[int]:
        request = grant.request
        if grant.wanted == 0 or not request.task.is_greedy:
            return []
        room = min(
            spare,
            self.suffix_tokens - request.cached - grant.known,
            # The step itself yields one token more than the draft.
            request.task.max_tokens - len(request.tokens) - 1,
        )
        return self._drafts.propose(request.task.kind, request.tokens, room)

    def write(self, plan: StepPlan, rows: Rows, block: NDArray[np.int64]) -> None:
        """Lay a plan out in `block` [fields, max_rows], the host's side of `rows`."""
        token, position, frame_slot, suffix_slot, write_at, adapter, wants_logits = block
        row = wanted = longest = 0
        spans: list[tuple[int, int, int]] = []
        for grant in plan.grants:
            request = grant.request
            first, last = row, row + grant.rows
            token[first:last] = request.pending[: grant.known] + grant.draft
            write_at[first:last] = np.arange(request.cached, request.cached + grant.rows)
            position[first:last] = request.frame.prefix.next_position + write_at[first:last]
            frame_slot[first:last] = request.frame.slot
            suffix_slot[first:last] = request.suffix_slot
            adapter[first:last] = request.adapter
            wants_logits[wanted : wanted + grant.wanted] = np.arange(last - grant.wanted, last)
            wanted += grant.wanted
            longest = max(longest, request.cached + grant.rows)
            if spans and spans[-1][0] == request.frame.slot:
                spans[-1] = (spans[-1][0], spans[-1][1], last)
            else:
                spans.append((request.frame.slot, first, last))
            row = last
        rows.count, rows.wanted, rows.longest, rows.frame_spans = row, wanted, longest, spans

    def absorb(self, plan: StepPlan, chosen: Sequence[int]) -> None:
        """Take the chosen tokens of one step into its requests; a wrong draft is forgotten here.

        A request that has ended ignores them: a repeated step overshoots its end.
        """
        at = 0
        for grant in plan.grants:
            request = grant.request
            if request.is_finished:
                at += grant.wanted
                continue
            request.steps += 1
            request.cached += grant.known
            if grant.wanted == 0:
                del request.pending[: grant.known]
                continue
            picks = chosen[at : at + grant.wanted]
            at += grant.wanted
            for place, pick in enumerate(picks):
                request.pending = [pick]
                self._emit(request, pick)
                if request.is_finished or place == len(grant.draft) or grant.draft[place] != pick:
                    break
                request.cached += 1  # the draft's row holds this very token: its K/V stands

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
