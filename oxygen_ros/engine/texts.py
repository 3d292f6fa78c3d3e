# SPDX-License-Identifier: Apache-2.0
"""All texts under way: each is asked, waits for a slot, moves forward row by row, ends and is told.

Here lives that course, and who holds which slot along it. What a step is made of is `scheduler`, how
it runs is `decoder`, whether it may run is `budget`. The engine's thread owns everything in here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from oxygen_ros.engine.admission import Arrival, Arrivals
from oxygen_ros.engine.budget import Budget, Meter, StepCosts
from oxygen_ros.engine.counters import Counters, Phases
from oxygen_ros.engine.decoder import Decoder
from oxygen_ros.engine.ending import cut_at_stop, tell_end
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.request import FinishedText, FinishReason, TextRequest
from oxygen_ros.engine.scheduler import Scheduler, StepPlan
from oxygen_ros.engine.slots import SlotPool
from oxygen_ros.engine.speculation import Drafts
from oxygen_ros.models.interface import Capacity, Model


class Texts:
    """Text requests over frames, from `add` until they are handed over, ended.

    With `share` a request holds the frame it was asked about, from the question on. Without, it gets
    a frame of its own when it is admitted, which `reencode` makes of the same observation.
    """

    def __init__(
        self,
        model: Model,
        capacity: Capacity,
        frames: SlotPool,
        counters: Counters,
        reencode: Callable[[Frame], Frame],
        *,
        share: bool,
        batch: bool,
        when_full: str,
        draft: int,
        repeat_on_device: bool | None,
        clock: Callable[[], float],
    ) -> None:
        """frames, counters: the engine's own, shared with it: its ticks are what texts age by
        reencode:         see above; the frame that comes in may be closed, its observation is what counts
        The others are as in `Engine`.
        """
        if when_full not in ("reject_new", "drop_oldest"):
            raise ValueError(f'when_full must be "reject_new" or "drop_oldest", got "{when_full}"')
        self.suffixes = SlotPool("suffix", capacity.suffixes)
        self.costs = StepCosts()
        self.arrivals = Arrivals()
        self._drafts = Drafts(draft)
        self.scheduler = Scheduler(capacity.suffix_tokens, self._drafts, self._has_stop)
        self.decoder = Decoder(model, self.scheduler, capacity.max_rows, self.costs, clock, repeat_on_device)
        self._model = model
        self._max_rows = capacity.max_rows
        self._frames = frames
        self._counters = counters
        self._reencode = reencode
        self._share = share
        self._batch = batch
        self._when_full = when_full
        self._clock = clock
        self._ended: list[FinishedText] = []

    def __len__(self) -> int:
        """Requests under way, those that wait for admission included."""
        return len(self.scheduler.live) + len(self.arrivals)

    def add(self, arrival: Arrival) -> None:
        """Let a request wait for the next `advance`."""
        if self._share:
            arrival.frame.retain()
        self.arrivals.add(arrival)

    def advance(self, budget: Budget, due: float | None, phases: Phases) -> list[FinishedText]:
        """See `Engine.advance`. phases: of this tick; the steps and rows used are added to them."""
        self._expire()
        if self._batch:
            self._admit()
            self._spend(budget, due, phases)
            self._retire()
        else:
            self._run_each(budget, phases)
        return self._hand_over()

    def cancel(
        self, reason: FinishReason, request_id: int | None, kinds: Collection[str] | None
    ) -> list[FinishedText]:
        """See `Engine.cancel`."""
        for arrival in self.arrivals.in_order():
            if request_id in (None, arrival.id) and (kinds is None or arrival.task.kind in kinds):
                self._refuse(arrival, reason)
        for request in self.scheduler.live:
            is_meant = request_id in (None, request.id) and (kinds is None or request.task.kind in kinds)
            if is_meant and not request.is_finished:
                request.finish_reason = reason
        self._retire()
        return self._hand_over()

    # -- admission: from the line to a suffix slot -----------------------------------------------

    def _admit(self) -> None:
        for arrival in self.arrivals.in_order():
            while not self._has_room(arrival):
                # Never drop one asked in the same tick: answers, first in the line, would go first.
                older = [r for r in self.scheduler.live if r.tick_asked < arrival.tick_asked]
                if self._when_full == "reject_new" or not older:
                    self._refuse(arrival, FinishReason.REJECTED)
                    break
                older[0].finish_reason = FinishReason.DROPPED
                self._retire()
            else:
                self._start(arrival)

    def _has_room(self, arrival: Arrival) -> bool:
        """Whether a suffix slot is free and, with this one admitted, a frame slot for the next tick."""
        if self.suffixes.free == 0:
            return False
        if not self._share:  # it will have a frame of its own
            return self._frames.free > 0 and len(self.scheduler.live) + 1 < self._frames.size
        held = {request.frame.slot for request in self.scheduler.live} | {arrival.frame.slot}
        return len(held) < self._frames.size

    def _start(self, arrival: Arrival) -> TextRequest:
        """Give a request its suffix slot; nothing of the frame is copied but recurrent state, if any."""
        frame = arrival.frame if self._share else self._reencode(arrival.frame)
        suffix_slot = self.suffixes.acquire()
        assert suffix_slot is not None, "admission looked for a free suffix slot"
        try:
            self._model.fork(frame.slot, suffix_slot)
        except BaseException:
            self.suffixes.release(suffix_slot)
            if not self._share:
                frame.release()
            raise
        self.arrivals.remove(arrival)  # only now: whoever has no slot yet is still to be answered
        request = TextRequest(
            id=arrival.id,
            task=arrival.task,
            frame=frame,
            suffix_slot=suffix_slot,
            adapter=arrival.adapter,
            tick_asked=arrival.tick_asked,
            asked_at=arrival.asked_at,
            eos_ids=self._model.spec.eos_ids,
            pending=list(arrival.prompt),
        )
        self.scheduler.add(request)
        return request

    # -- decode steps, within the budget ---------------------------------------------------------

    def _spend(self, budget: Budget, due: float | None, phases: Phases) -> None:
        """With `batch`: steps over all live requests, as many as the budget grants.

        A grant may be for more steps than the plan can take: a text ends, a prompt is through. Then the
        next plan asks again.
        """
        meter = Meter(budget, due, self.costs, self._clock)
        while not meter.is_spent and (plan := self._plan(budget)):
            granted = meter.grants(plan.rows)
            if meter.used == 0:
                phases.granted_steps = granted
            if granted == 0:
                return
            meter.spend(self._step(plan, granted, meter.may_go_on, phases))

    def _run_each(self, budget: Budget, phases: Phases) -> None:
        """Without `batch`: one text after the other, each to its end."""
        for arrival in self.arrivals.in_order():
            request = self._start(arrival)
            while plan := self._plan(budget, only=request):
                self._step(plan, max(budget.steps, 1), lambda _: True, phases)
            self._retire()

    def _plan(self, budget: Budget, only: TextRequest | None = None) -> StepPlan | None:
        # The row tensors were sized by the capacity; a budget may be larger, and says "at most".
        return self.scheduler.plan(min(budget.rows, self._max_rows), only)

    def _step(self, plan: StepPlan, most: int, may_go_on: Callable[[int], bool], phases: Phases) -> int:
        """Run a plan, up to `most` times where it repeats; returns the steps run."""
        steps = self.decoder.run(plan, most, may_go_on)
        self._counters.decode_steps += steps
        self._counters.rows += steps * plan.rows
        phases.used_steps += steps
        phases.rows += steps * plan.rows
        return steps

    # -- endings: slots are freed, the caller is told --------------------------------------------

    def _expire(self) -> None:
        for request in self.scheduler.live:
            age = self._counters.ticks - request.tick_asked
            if 0 < request.task.max_age <= age:
                request.finish_reason = FinishReason.AGE
        self._retire()

    def _retire(self) -> None:
        """Take the ended requests out and free what they held."""
        for request in [request for request in self.scheduler.live if request.is_finished]:
            assert request.finish_reason is not None
            self._finish(request, request.finish_reason, request.tokens, request.steps)
            self.scheduler.remove(request)
            self.suffixes.release(request.suffix_slot)
            request.frame.release()
            if request.finish_reason.is_complete:
                # With the end token: a draft may guess the end too.
                end = () if request.end_token is None else (request.end_token,)
                self._drafts.remember(request.task.kind, (*request.tokens, *end))

    def _refuse(self, arrival: Arrival, reason: FinishReason) -> None:
        """End a request that never got a slot."""
        self._finish(arrival, reason, (), 0)
        self.arrivals.remove(arrival)
        if self._share:
            arrival.frame.release()

    def _finish(
        self, asked: Arrival | TextRequest, reason: FinishReason, tokens: Sequence[int], steps: int
    ) -> None:
        """Write down how a request ended; `_hand_over` gives it to the caller."""
        text = cut_at_stop(self._model.detokenize(tokens), asked.task.stop)
        self._counters.count_end(reason)
        seconds = self._clock() - asked.asked_at
        self._ended.append(tell_end(asked, reason, text, tokens, steps, self._counters.ticks, seconds))

    def _hand_over(self) -> list[FinishedText]:
        """The texts that ended since the last call; an error in between loses none of them."""
        ended, self._ended = self._ended, []
        return ended

    def _has_stop(self, request: TextRequest) -> bool:
        text = self._model.detokenize(request.tokens)
        return text != cut_at_stop(text, request.task.stop)
