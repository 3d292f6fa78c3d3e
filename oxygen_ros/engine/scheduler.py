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
    """One decode step: grants in the order of their rows, rows of one frame together.

    rows:  of all grants; worked out once, as many ask
    """

    grants: list[Grant]
    rows: int = field(init=False)

    def __post_init__(self) -> None:
        self.rows = sum(grant.rows for grant in self.grants)

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
            if spare < 1 or self._drafts.longest == 0:
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
        """Lay a plan out in `block`, the host's side of `rows`: int64 [fields, max_rows], as Rows.FIELDS."""
        # Lists first, then one copy a field: numpy's price is by the call, and a step has many short pieces.
        token: list[int] = []
        write_at: list[int] = []
        position: list[int] = []
        frame_slot: list[int] = []
        suffix_slot: list[int] = []
        adapter: list[int] = []
        wants: list[int] = []
        spans: list[tuple[int, int, int]] = []
        longest = 0
        for grant in plan.grants:
            request, count = grant.request, grant.rows
            frame, cached, first = request.frame, request.cached, len(token)
            last, start = first + count, frame.prefix.next_position
            token += request.pending[: grant.known]
            token += grant.draft
            write_at += range(cached, cached + count)
            position += range(start + cached, start + cached + count)
            frame_slot += [frame.slot] * count
            suffix_slot += [request.suffix_slot] * count
            adapter += [request.adapter] * count
            wants += range(last - grant.wanted, last)
            longest = max(longest, cached + count)
            if spans and spans[-1][0] == frame.slot:
                spans[-1] = (frame.slot, spans[-1][1], last)
            else:
                spans.append((frame.slot, first, last))
        row, wanted = len(token), len(wants)
        fields = (token, position, frame_slot, suffix_slot, write_at, adapter)
        block[: len(fields), :row] = fields
        block[len(fields), :wanted] = wants
        rows.count, rows.wanted, rows.longest, rows.frame_spans = row, wanted, longest, spans

    def absorb(self, plan: StepPlan, chosen: Sequence[int]) -> None:
        """Take the chosen tokens of one step into its requests; a wrong draft is forgotten here.

        A request that has ended ignores them: a repeated step overshoots its end.
        """
        at = 0
        for grant in plan.grants:
            request, wanted = grant.request, grant.wanted
            if request.is_finished:
                at += wanted
                continue
            request.steps += 1
            request.cached += grant.known
            if wanted == 0:
                del request.pending[: grant.known]
                continue
            picks = chosen[at : at + wanted]
            at += wanted
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
