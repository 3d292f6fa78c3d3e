# SPDX-License-Identifier: Apache-2.0
"""The engine: one prefix, many readers, resumable text.

    with engine.observe(observation) as encoded:    # one prefill
        actions = engine.act(encoded)               # read-only: publish them now
        engine.ask(encoded, task)                   # text that starts from this prefix
    finished = engine.advance(budget, due)          # bounded; finished texts

One thread owns an engine; nothing in it locks. The modes it is compared with are in `baselines`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.engine.budget import Budget, Meter, TextCosts
from oxygen_ros.engine.counters import Counters, Phases
from oxygen_ros.engine.encoded import EncodedObservation
from oxygen_ros.engine.integrity import check_accounting
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.engine.request import FinishedText, FinishReason, RequestState, TextRequest, TextTask
from oxygen_ros.engine.scheduler import Scheduler, StepPlan
from oxygen_ros.engine.slots import SlotPool
from oxygen_ros.engine.speculation import Drafts
from oxygen_ros.engine.step_runner import StepRunner
from oxygen_ros.models.interface import Capacity, Guide, Model
from oxygen_ros.observation import Leftover, Observation


class Engine:
    """A loaded model and the accounting of all readers of its caches.

    mode:     its name in reports
    batches:  whether texts go on together across ticks
    """

    mode: ClassVar[str] = "oxygen"
    batches: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        capacity: Capacity,
        *,
        when_full: str = "reject_new",
        draft: int = 0,
        seed: int = 0,
        repeat_on_device: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """capacity:   slots and rows; `plan_capacity` makes one of what will be asked
        when_full:     "reject_new" or "drop_oldest", when no slot is left for a text
        draft:         longest speculated draft [tokens], 0 for none
        seed:          of the denoise noise, with the observation's stamp
        repeat_on_device: feed greedy tokens without reading them on the host in between; default:
                       only where reading them would make the device wait (not on CPU)
        clock:         now [s]; steady
        """
        if capacity.prefixes < 2:
            raise ValueError(
                f"an engine needs 2 prefix slots or more, got {capacity.prefixes}: one is the next tick's"
            )
        if when_full not in ("reject_new", "drop_oldest"):
            raise ValueError(f'when_full must be "reject_new" or "drop_oldest", got "{when_full}"')
        if draft and not model.spec.can_rewind:
            raise ValueError(
                f"drafts of {draft} tokens: a {model.spec.family} model cannot take back a wrong one; set 0"
            )
        self.model = model
        self.seed = seed
        self.clock = clock
        self.suffix_tokens = capacity.suffix_tokens
        self.prefixes = SlotPool("prefix", capacity.prefixes)
        self.suffixes = SlotPool("suffix", capacity.suffixes)
        self.counters: Final = Counters()
        self.phases = Phases()
        self.costs = TextCosts()
        self._when_full = when_full
        self._max_rows = capacity.max_rows
        self._drafts = Drafts(draft)
        self._scheduler = Scheduler(capacity.suffix_tokens, self._drafts, self._has_stop)
        self._runner = StepRunner(
            model, self._scheduler, capacity.max_rows, self.costs, clock, repeat_on_device
        )
        model.allocate(capacity)
        self._open: list[EncodedObservation] = []  # inside their `with`
        self._waiting: list[TextRequest] = []  # asked in this tick; none waits for the next one
        self._ended: list[FinishedText] = []  # not handed over yet
        self._next_id = 0  # raised, then given: the first id is 1

    @property
    def live(self) -> int:
        """Text requests under way, those that wait for a slot included."""
        return len(self._scheduler.live) + len(self._waiting)

    # -- one tick ----------------------------------------------------------------------------

    def observe(self, observation: Observation) -> EncodedObservation:
        """Encode an observation into a prefix slot: the one prefill of a tick.

        Raises ValueError from the model's `process` when the observation does not fit it.
        """
        self.counters.ticks += 1
        self.phases = Phases()
        started = self.clock()
        inputs = self.model.process(observation)
        self.phases.process = self.clock() - started
        self._open = [encoded for encoded in self._open if encoded.is_open]
        encoded = self._encode(observation, inputs)
        self._open.append(encoded)
        self.phases.prefill = self.clock() - started - self.phases.process
        return encoded

    def act(
        self, encoded: EncodedObservation, leftover: Leftover | None = None, expert: int = 0
    ) -> NDArray[np.float64]:
        """The action chunk of one expert, in its action space [H, A]. Reads the prefix, never changes it.

        leftover: what the chunk is guided towards, see `Guide`; None: nothing
        """
        encoded.expect_open()
        started = self.clock()
        spec, observation = self.model.spec.experts[expert], encoded.observation
        noise = draw_noise(self.seed, observation.stamp, (spec.horizon, spec.width), expert)
        guide = None if leftover is None else self._make_guide(leftover, observation, expert)
        on_device = torch.from_numpy(noise).to(self.model.device)
        actions = self.model.denoise(encoded.slot, on_device, guide, expert)
        chunk = self.model.unprocess(actions, observation, expert)
        self.phases.denoise += self.clock() - started
        return chunk

    def ask(self, encoded: EncodedObservation, task: TextTask) -> int:
        """Ask for a text about an observation; the next `advance` admits it. Returns its id.

        Raises ValueError when the prompt is empty, too long for a suffix slot, or names an
        adapter that is not loaded; SlotError when the observation is closed.
        """
        encoded.expect_open()
        prompt, adapter = self.check_task(task)
        self._next_id += 1
        request = TextRequest(
            id=self._next_id,
            task=task,
            encoded=encoded,
            adapter=adapter,
            tick_asked=self.counters.ticks,
            asked_at=self.clock(),
            eos_ids=self.model.spec.eos_ids,
            pending=list(prompt),
        )
        self._hold(request)
        self._waiting.append(request)
        return request.id

    def check_task(self, task: TextTask) -> tuple[list[int], int]:
        """Prompt tokens of a task and the id of its adapter: 0 for none, else its place among them + 1.

        Raises ValueError when the task can never run.
        """
        prompt = self.model.tokenize(task.prompt, task.words)
        room = self.suffix_tokens - task.max_tokens
        if not prompt:
            raise ValueError(
                f'{task.kind}: the prompt suffix "{task.text}" has no token; a text needs one to start'
            )
        if len(prompt) > room:
            raise ValueError(
                f"{task.kind}: the prompt suffix has {len(prompt)} tokens, its slot has room for {room}"
            )
        if not task.adapter:
            return prompt, 0
        adapters = self.model.adapters
        if task.adapter not in adapters:
            loaded = ", ".join(adapters) or "none"
            raise ValueError(f'{task.kind}: text adapter "{task.adapter}" is not loaded (loaded: {loaded})')
        return prompt, adapters.index(task.adapter) + 1

    def advance(self, budget: Budget, due: float | None = None) -> list[FinishedText]:
        """Move all unfinished texts forward within `budget`; return those that ended.

        due: when the next tick is due on the engine's clock [s]; None: no tick comes by itself.
        A step never has more rows than the capacity's. An error loses no ended text: the next call
        returns it.
        """
        started = self.clock()
        try:
            self._expire()
            self._advance(budget, due)
        finally:
            self._retire()
            self.phases.text += self.clock() - started
        return self._hand_over()

    def cancel(
        self, reason: FinishReason, request_id: int | None = None, kinds: Collection[str] | None = None
    ) -> list[FinishedText]:
        """End one request, those of some kinds, or all, now, with what they have so far.

        After an `advance` that raised, the texts that ended before the error are returned as well,
        with their own reasons.
        """
        for request in (*self._waiting, *self._scheduler.live):
            is_meant = request_id in (None, request.id) and (kinds is None or request.task.kind in kinds)
            if is_meant and not request.is_finished:
                request.finish_reason = reason
        self._retire()
        return self._hand_over()

    def check_integrity(self) -> None:
        """Raise SlotError unless slots, observations and requests agree with each other."""
        check_accounting(self.prefixes, self.suffixes, self._open, self._waiting, self._scheduler)

    # -- prefixes ----------------------------------------------------------------------------

    def _make_guide(self, leftover: Leftover, observation: Observation, expert: int) -> Guide:
        """The last chunk in the model's units, relative to the new observation."""
        target = self.model.normalize(leftover.actions, observation, expert)
        weights = torch.from_numpy(leftover.weights.astype(np.float32)).to(target.device)
        return Guide(target, weights[:, None].expand_as(target), leftover.max_weight)

    def _encode(self, observation: Observation, inputs: object) -> EncodedObservation:
        """Encode an observation into a free slot; `inputs`: from the model's `process`."""
        slot = self.prefixes.acquire()
        if slot is None:
            raise RuntimeError(
                f"all {self.prefixes.size} prefix slots are held ({self._name_holders()}): leave the `with` "
                "block of an earlier tick, or advance or cancel its texts"
            )
        try:
            prefix = self.model.encode(inputs, slot)
            if self.model.device.type == "cuda":
                # Else the time of this phase would count as the next one's.
                torch.cuda.current_stream(self.model.device).synchronize()
        except BaseException:
            self.prefixes.release(slot)
            raise
        self.counters.prefills += 1
        return EncodedObservation(self.prefixes, slot, prefix, observation, self.counters.ticks)

    def _name_holders(self) -> str:
        holders = [f"open `with` block of tick {encoded.tick}" for encoded in self._open if encoded.is_open]
        holders += [
            f"{request.task.kind} {request.id} of tick {request.tick_asked}"
            for request in (*self._waiting, *self._scheduler.live)
            if request.holds
        ]
        return ", ".join(holders)

    # -- admission: from waiting to a suffix slot --------------------------------------------

    def _hold(self, request: TextRequest) -> None:
        """A request holds its prefix from the moment it is asked; nothing of it is copied."""
        request.hold()

    def _admit(self) -> None:
        for request in sorted(self._waiting, key=lambda request: (-request.task.priority, request.id)):
            while not self._has_room(request):
                # Never drop one asked in the same tick: that would drop the highest priority first.
                older = [r for r in self._scheduler.live if r.tick_asked < request.tick_asked]
                if self._when_full == "reject_new" or not older:
                    request.finish_reason = FinishReason.REJECTED
                else:
                    older[0].finish_reason = FinishReason.DROPPED
                self._retire()
                if request.is_finished:
                    break
            else:
                self._start(request)

    def _has_room(self, request: TextRequest) -> bool:
        """Whether a suffix slot is free and, with this one admitted, a prefix slot for the next tick."""
        if self.suffixes.free == 0:
            return False
        held = {request.encoded.slot, *(live.encoded.slot for live in self._scheduler.live)}
        return len(held) < self.prefixes.size

    def _start(self, request: TextRequest) -> None:
        suffix_slot = self.suffixes.acquire()
        assert suffix_slot is not None, "admission looked for a free suffix slot"
        self._waiting.remove(request)
        request.suffix_slot = suffix_slot
        request.state = RequestState.LIVE
        self._scheduler.live.append(request)

    # -- decode steps, within the budget -----------------------------------------------------

    def _advance(self, budget: Budget, due: float | None) -> None:
        """Admit what was asked, then run steps over all live requests, as many as the budget grants.

        A grant may be for more steps than the plan can take (a text ends, a prompt is through); the next
        plan asks again.
        """
        self._admit()
        meter = Meter(budget, due, self.costs, self.clock)
        if not meter.is_spent:
            self._fork_new(meter)
        while not meter.is_spent and (plan := self._plan(budget)):
            granted = meter.grants(plan.rows)
            if meter.used == 0:
                self.phases.granted_steps = granted
            if granted == 0:
                return
            meter.used += self._step(plan, granted, meter.may_go_on)

    def _fork_new(self, meter: Meter) -> None:
        """Fork new suffix slots from their prefixes while there is time; the others follow next tick."""
        for request in self._scheduler.live:
            if not request.is_forked and not self._fork(request, meter):
                return

    def _fork(self, request: TextRequest, meter: Meter) -> bool:
        encoded = request.encoded
        if not encoded.is_complete:
            if not meter.allows(self.costs.complete):
                return False
            started = self.clock()
            self.model.complete(encoded.slot)
            encoded.is_complete = True
            self.costs.complete.record(self.clock() - started)
        if not meter.allows(self.costs.fork):
            return False
        started = self.clock()
        self.model.fork(encoded.slot, request.suffix_slot)
        request.is_forked = True
        self.costs.fork.record(self.clock() - started)
        return True

    def _plan(self, budget: Budget, only: TextRequest | None = None) -> StepPlan | None:
        # The row tensors have the capacity's size; a budget may be larger.
        return self._scheduler.plan(min(budget.rows, self._max_rows), only)

    def _step(self, plan: StepPlan, most: int, may_go_on: Callable[[int], bool]) -> int:
        """Run a plan, up to `most` times where it repeats; returns the steps run."""
        steps = self._runner.run(plan, most, may_go_on)
        self.counters.decode_steps += steps
        self.counters.rows += steps * plan.rows
        self.phases.used_steps += steps
        self.phases.rows += steps * plan.rows
        return steps

    # -- endings: slots are freed, texts are handed over -------------------------------------

    def _expire(self) -> None:
        for request in self._scheduler.live:
            age = self.counters.ticks - request.tick_asked
            if 0 < request.task.max_age <= age and not request.is_finished:
                request.finish_reason = FinishReason.AGE
        self._retire()  # before admission: the slots are free for this tick's texts

    def _retire(self) -> None:
        """Remove finished requests, free their slots and keep their texts for the caller."""
        for request in [request for request in self._waiting if request.is_finished]:
            self._finish(request)
            self._waiting.remove(request)
        for request in [request for request in self._scheduler.live if request.is_finished]:
            self._finish(request)
            self._scheduler.remove(request)
            self.suffixes.release(request.suffix_slot)

    def _finish(self, request: TextRequest) -> None:
        reason = request.finish_reason
        assert reason is not None
        text = cut_at_stop(self.model.detokenize(request.tokens), request.task.stop)
        observation = request.encoded.observation
        self._ended.append(
            FinishedText(
                id=request.id,
                task=request.task,
                text=text,
                finish_reason=reason,
                stamp=observation.stamp,
                instruction=observation.instruction,
                feedback=observation.feedback,
                tick_asked=request.tick_asked,
                tick_finished=self.counters.ticks,
                tokens=tuple(request.tokens),
                steps=request.steps,
                seconds=self.clock() - request.asked_at,
            )
        )
        self.counters.count_end(reason)
        request.state = RequestState.ENDED
        request.let_go()
        if reason.is_complete:
            # With the end token: a draft may contain the end too.
            end = () if request.end_token is None else (request.end_token,)
            self._drafts.remember(request.task.kind, (*request.tokens, *end))

    def _hand_over(self) -> list[FinishedText]:
        ended, self._ended = self._ended, []
        return ended

    def _has_stop(self, request: TextRequest) -> bool:
        text = self.model.detokenize(request.tokens)
        return text != cut_at_stop(text, request.task.stop)


def cut_at_stop(text: str, stops: Collection[str]) -> str:
    """The text before the first of the stop texts in it; the whole text when there is none."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]
