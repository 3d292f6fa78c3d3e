# SPDX-License-Identifier: Apache-2.0
"""The engine: one prefix, many readers, resumable text.

    with engine.observe(observation) as frame:    # one prefill
        chunk = engine.act(frame)                 # read-only: publish it now
        engine.ask(frame, Memory())               # text that starts from this prefix
    done = engine.advance(budget, due)            # bounded; finished texts

Here lives the order of things. One thread owns an engine; nothing in it locks.

Two booleans make four modes over the same model and the same outputs. `share`: text reads the
frame that the actions read; without it every text encodes the observation for itself. `batch`: all
unfinished texts advance together, across ticks; without it each text runs to its end in its tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.engine.admission import Arrival, Arrivals
from oxygen_ros.engine.budget import Budget, Meter, StepCosts
from oxygen_ros.engine.counters import Counters, Phases
from oxygen_ros.engine.decoder import Decoder
from oxygen_ros.engine.ending import cut_at_stop, tell_end
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.integrity import check_accounting
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.engine.request import FinishedText, FinishReason, TextRequest, TextTask
from oxygen_ros.engine.scheduler import Scheduler, StepPlan
from oxygen_ros.engine.slots import SlotPool
from oxygen_ros.engine.speculation import Drafts
from oxygen_ros.models.interface import Capacity, Guide, Model
from oxygen_ros.observation import Observation, Previous

MODES = {
    "isolated": (False, False),
    "shared": (True, False),
    "batched": (False, True),
    "oxygen": (True, True),
}


class Engine:
    """A loaded model and the accounting of everyone who reads its caches."""

    def __init__(
        self,
        model: Model,
        capacity: Capacity,
        *,
        share: bool = True,
        batch: bool = True,
        when_full: str = "reject_new",
        draft: int = 0,
        seed: int = 0,
        repeat_on_device: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """when_full:  "reject_new" or "drop_oldest", when no slot is left for a text
        draft:         longest speculated draft [tokens], 0 for none
        seed:          of the denoise noise, together with the observation's stamp
        repeat_on_device: feed greedy tokens without reading them on the host in between; default:
                       only where reading them would make the device wait (not on CPU)
        """
        if when_full not in ("reject_new", "drop_oldest"):
            raise ValueError(f'when_full must be "reject_new" or "drop_oldest", got "{when_full}"')
        if capacity.frames < 2:
            raise ValueError(
                f"an engine needs 2 frame slots or more, got {capacity.frames}: one is the next tick's"
            )
        self.model = model
        self.share = share
        self.batch = batch
        self.when_full = when_full
        self.seed = seed
        self.clock = clock
        self._max_rows = capacity.max_rows
        self.frames = SlotPool("frame", capacity.frames)
        self.suffixes = SlotPool("suffix", capacity.suffixes)
        self.costs = StepCosts()
        self.counters = Counters()
        self.phases = Phases()
        model.allocate(capacity)
        self._drafts = Drafts(draft)
        self.scheduler = Scheduler(capacity.suffix_tokens, self._drafts, self._has_stop)
        self._arrivals = Arrivals()
        self._decoder = Decoder(model, self.scheduler, capacity.max_rows, self.costs, clock, repeat_on_device)
        self._open: list[Frame] = []
        self._ended: list[FinishedText] = []
        self._next_id = 0

    @property
    def mode(self) -> str:
        return next(name for name, flags in MODES.items() if flags == (self.share, self.batch))

    @property
    def live(self) -> int:
        """Text requests under way, those that wait for admission included."""
        return len(self.scheduler.live) + len(self._arrivals)

    # -- one tick ----------------------------------------------------------------------------

    def observe(self, observation: Observation) -> Frame:
        """Encode an observation into a frame slot: the one prefill of a tick.

        Raises ValueError from the model's `process` when the observation does not fit it.
        """
        self.counters.ticks += 1
        self.phases = Phases()
        started = self.clock()
        inputs = self.model.process(observation)
        self.phases.process = self.clock() - started
        self._open = [frame for frame in self._open if frame.is_open]
        frame = self._encode(observation, inputs)
        self._open.append(frame)
        self.phases.prefill = self.clock() - started - self.phases.process
        return frame

    def act(self, frame: Frame, previous: Previous | None = None) -> NDArray[np.float64]:
        """The action chunk of a frame: robot units [H, A]. Reads the prefix, never changes it.

        previous: what the chunk is guided towards (real-time chunking); None: nothing
        """
        frame.expect_open()
        started = self.clock()
        spec = self.model.spec
        noise = draw_noise(self.seed, frame.observation.stamp, (spec.horizon, spec.action_dim))
        guide = None if previous is None else self._make_guide(previous, frame.observation)
        actions = self.model.denoise(frame.slot, torch.from_numpy(noise).to(self.model.device), guide)
        chunk = self.model.unprocess(actions, frame.observation)
        self.phases.denoise = self.clock() - started
        return chunk

    def ask(self, frame: Frame, task: TextTask) -> int:
        """Ask for a text about a frame; it is admitted by the next `advance`. Returns its id.

        Raises ValueError when the prompt is empty, too long for a suffix slot, or names an
        adapter that is not loaded; SlotError when the frame is closed.
        """
        frame.expect_open()
        prompt, adapter = self.prepare(task)
        if self.share:
            frame.retain()
        self._next_id += 1
        self._arrivals.add(
            Arrival(self._next_id, task, frame, prompt, adapter, self.counters.ticks, self.clock())
        )
        return self._next_id

    def prepare(self, task: TextTask) -> tuple[tuple[int, ...], int]:
        """Prompt tokens and adapter id of a task; ValueError, as in `ask`, when it can never run."""
        prompt = tuple(self.model.tokenize(task.prompt))
        room = self.scheduler.suffix_tokens - task.max_tokens
        if not prompt:
            raise ValueError(
                f'{task.kind}: the prompt suffix "{task.prompt}" has no token; a text needs one to start'
            )
        if len(prompt) > room:
            raise ValueError(
                f"{task.kind}: the prompt suffix has {len(prompt)} tokens, its slot has room for {room}"
            )
        if not task.adapter:
            return prompt, 0
        if task.adapter not in self.model.adapters:
            loaded = ", ".join(self.model.adapters) or "none"
            raise ValueError(f'{task.kind}: text adapter "{task.adapter}" is not loaded (loaded: {loaded})')
        return prompt, self.model.adapters.index(task.adapter) + 1

    def advance(self, budget: Budget, due: float | None = None) -> list[FinishedText]:
        """Move all unfinished texts forward within `budget`; return those that ended.

        due: when the next tick is due on the engine's clock [s]. Without `batch`, texts run to
        their ends here whatever the budget. A step never has more rows than the capacity's.
        """
        started = self.clock()
        self._expire()
        if self.batch:
            self._admit()
            self._spend(budget, due)
            self._retire()
        else:
            self._run_each(budget)
        self.phases.text += self.clock() - started
        return self._hand_over()

    # -- ending texts ------------------------------------------------------------------------

    def cancel(
        self, reason: FinishReason, request_id: int | None = None, kinds: Collection[str] | None = None
    ) -> list[FinishedText]:
        """End one request, those of some kinds, or all, now, with what they have so far.

        After an `advance` that raised, the texts that ended before the error are returned as well,
        with their own reasons.
        """
        for arrival in self._arrivals.in_order():
            if request_id in (None, arrival.id) and (kinds is None or arrival.task.kind in kinds):
                self._refuse(arrival, reason)
        for request in self.scheduler.live:
            is_meant = request_id in (None, request.id) and (kinds is None or request.task.kind in kinds)
            if is_meant and not request.is_finished:
                request.finish_reason = reason
        self._retire()
        return self._hand_over()

    def check_integrity(self) -> None:
        """Raise unless slots, frames and requests agree with each other."""
        check_accounting(self.frames, self.suffixes, self._open, self._arrivals, self.scheduler, self.share)

    # -- inside ------------------------------------------------------------------------------

    def _make_guide(self, previous: Previous, observation: Observation) -> Guide:
        """The chunk before in the model's units, seen from the observation of now."""
        target = self.model.normalize(previous.actions, observation)
        weights = torch.from_numpy(previous.weights.astype(np.float32)).to(target.device)
        return Guide(target, weights[:, None].expand_as(target), previous.max_weight)

    def _encode(self, observation: Observation, inputs: object) -> Frame:
        slot = self.frames.acquire()
        if slot is None:
            raise RuntimeError(
                f"all {self.frames.size} frame slots are held: close the frames of earlier ticks"
            )
        try:
            prefix = self.model.encode(inputs, slot)
        except BaseException:
            self.frames.release(slot)
            raise
        self.counters.prefills += 1
        return Frame(self.frames, slot, prefix, observation, self.counters.ticks)

    def _expire(self) -> None:
        for request in self.scheduler.live:
            age = self.counters.ticks - request.tick_asked
            if 0 < request.task.max_age <= age:
                request.finish_reason = FinishReason.AGE
        self._retire()

    def _admit(self) -> None:
        for arrival in self._arrivals.in_order():
            while not self._has_room(arrival):
                # Never one asked in the same tick: the answers, first in the line, would go first.
                older = [r for r in self.scheduler.live if r.tick_asked < arrival.tick_asked]
                if self.when_full == "reject_new" or not older:
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
        if not self.share:
            return self.frames.free > 0 and len(self.scheduler.live) + 1 < self.frames.size
        held = {request.frame.slot for request in self.scheduler.live} | {arrival.frame.slot}
        return len(held) < self.frames.size

    def _start(self, arrival: Arrival) -> TextRequest:
        frame = arrival.frame
        if not self.share:
            # The baseline's own prefill; its frame belongs to this request alone.
            frame = self._encode(frame.observation, self.model.process(frame.observation))
            frame.is_open = False  # the request alone holds it; no `with` will close it
        suffix_slot = self.suffixes.acquire()
        assert suffix_slot is not None, "admission looked for a free suffix slot"
        try:
            self.model.fork(frame.slot, suffix_slot)
        except BaseException:
            self.suffixes.release(suffix_slot)
            if not self.share:
                frame.release()
            raise
        self._arrivals.remove(arrival)  # only now: whoever has no slot yet is still to be answered
        request = TextRequest(
            id=arrival.id,
            task=arrival.task,
            frame=frame,
            suffix_slot=suffix_slot,
            adapter=arrival.adapter,
            tick_asked=arrival.tick_asked,
            asked_at=arrival.asked_at,
            eos_ids=self.model.spec.eos_ids,
            pending=list(arrival.prompt),
        )
        self.scheduler.add(request)
        return request

    def _spend(self, budget: Budget, due: float | None) -> None:
        meter = Meter(budget, due, self.costs, self.clock)
        while plan := self._plan(budget):
            granted = meter.grants(plan.rows)
            if meter.used == 0:
                self.phases.granted_steps = granted
            if granted == 0:
                return
            meter.spend(self._step(plan, granted, meter.may_go_on))

    def _run_each(self, budget: Budget) -> None:
        """Without `batch`: one text after the other, each to its end."""
        for arrival in self._arrivals.in_order():
            request = self._start(arrival)
            while plan := self._plan(budget, only=request):
                self._step(plan, max(budget.steps, 1), lambda: True)
            self._retire()

    def _plan(self, budget: Budget, only: TextRequest | None = None) -> StepPlan | None:
        # The row tensors were sized by the capacity; a budget may be larger, and says "at most".
        return self.scheduler.plan(min(budget.rows, self._max_rows), only)

    def _step(self, plan: StepPlan, most: int, may_go_on: Callable[[], bool]) -> int:
        steps = self._decoder.run(plan, most, may_go_on)
        for tally in (self.counters, self.phases):
            tally.rows += steps * plan.rows
        self.counters.decode_steps += steps
        self.phases.used_steps += steps
        return steps

    def _retire(self) -> None:
        """Take the ended requests out and free what they held."""
        for request in [request for request in self.scheduler.live if request.is_finished]:
            assert request.finish_reason is not None
            self._finish(request, request.finish_reason, request.tokens, request.steps)
            self.scheduler.remove(request)
            self.suffixes.release(request.suffix_slot)
            request.frame.release()
            if request.finish_reason.is_complete:
                end = () if request.end_token is None else (request.end_token,)
                self._drafts.remember(request.task.kind, (*request.tokens, *end))

    def _refuse(self, arrival: Arrival, reason: FinishReason) -> None:
        self._finish(arrival, reason, (), 0)
        self._arrivals.remove(arrival)
        if self.share:
            arrival.frame.release()

    def _finish(
        self, asked: Arrival | TextRequest, reason: FinishReason, tokens: Sequence[int], steps: int
    ) -> None:
        """Write down how a request ended; `_hand_over` gives it to the caller."""
        text = cut_at_stop(self.model.detokenize(tokens), asked.task.stop)
        self.counters.count_end(reason)
        self._ended.append(
            tell_end(asked, reason, text, tokens, steps, self.counters.ticks, self.clock() - asked.asked_at)
        )

    def _hand_over(self) -> list[FinishedText]:
        """The texts that ended since the last call; an error in between loses none of them."""
        ended, self._ended = self._ended, []
        return ended

    def _has_stop(self, request: TextRequest) -> bool:
        text = self.model.detokenize(request.tokens)
        return text != cut_at_stop(text, request.task.stop)
