# SPDX-License-Identifier: Apache-2.0
"""Runs decode steps: rows in, chosen tokens out, repeated where the plan may repeat.

It owns the persistent row tensors. `scheduler` decides which rows, `budget` how many steps.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from oxygen_ros.engine.budget import TextCosts
from oxygen_ros.engine.noise import draw_uniform
from oxygen_ros.engine.request import TextRequest
from oxygen_ros.engine.sampling import choose_greedy, choose_sampled
from oxygen_ros.engine.scheduler import Scheduler, StepPlan
from oxygen_ros.models.interface import Model, Rows


class StepRunner:
    """One model's `extend`, driven by plans."""

    def __init__(
        self,
        model: Model,
        scheduler: Scheduler,
        max_rows: int,
        costs: TextCosts,
        clock: Callable[[], float],
        repeat_on_device: bool | None,
    ) -> None:
        on_cuda = model.device.type == "cuda"
        self.rows = Rows(max_rows, model.device)
        # Feeding a token back without the host pays only where the host would wait for a device.
        self.repeats = on_cuda if repeat_on_device is None else repeat_on_device
        self._model = model
        self._scheduler = scheduler
        self._costs = costs
        self._clock = clock
        # The host's copy of the rows: written in place, copied to the device once a step.
        self._staging = torch.zeros(self.rows.block.shape, dtype=torch.int64, pin_memory=on_cuda)
        self._written = self._staging.numpy()
        # Events behind the steps that are still queued on the device.
        self._running: list[torch.cuda.Event] | None = [] if on_cuda else None

    def run(self, plan: StepPlan, most: int, may_go_on: Callable[[int], bool]) -> int:
        """Run the plan once, or up to `most` times where it repeats; returns the steps run.

        may_go_on: called before every repetition with the steps still queued on the device; False when the
                   budget's time is over.
        """
        self._scheduler.write(plan, self.rows, self._written)
        self.rows.block.copy_(self._staging, non_blocking=True)
        started = self._clock()
        if self.repeats and plan.is_repeatable:
            left = min(g.request.task.max_tokens - len(g.request.tokens) for g in plan.grants)
            steps = self._repeat(plan, min(most, left), may_go_on)
        else:
            logits = self._model.extend(self.rows)
            if self.rows.wanted == 0 and self._running is not None:
                # Nothing is read back: without this, the next write to the staging block would not wait for
                # its copy, nor the clock for the step.
                torch.cuda.current_stream(self._model.device).synchronize()
            self._scheduler.absorb(plan, self._choose(plan, logits))
            steps = 1
        self._costs.record(plan.rows, (self._clock() - started) / steps)
        return steps

    def _repeat(self, plan: StepPlan, most: int, may_go_on: Callable[[int], bool]) -> int:
        rows = self.rows
        live = slice(0, rows.count)
        picks: list[torch.Tensor] = []
        while True:
            token = choose_greedy(self._model.extend(rows))
            picks.append(token)
            if len(picks) == most or not self._throttle(may_go_on):
                break
            rows.token[live] = token
            rows.position[live] += 1
            rows.write_at[live] += 1
            rows.longest += 1
        for step in torch.stack(picks).tolist():  # the one wait for the device
            self._scheduler.absorb(plan, step)
        if self._running is not None:
            self._running.clear()
        return len(picks)

    def _throttle(self, may_go_on: Callable[[int], bool]) -> bool:
        """Stay at most one step ahead of the device, so that a due tick waits for no more."""
        if self._running is None:
            return may_go_on(0)
        self._running.append(torch.cuda.current_stream(self._model.device).record_event())
        if len(self._running) > 1:
            self._running.pop(0).synchronize()
        return may_go_on(len(self._running))

    def _choose(self, plan: StepPlan, logits: torch.Tensor) -> list[int]:
        chosen = choose_greedy(logits)
        if plan.is_repeatable:
            return chosen.tolist()
        sampled: list[tuple[int, TextRequest]] = []
        at = 0
        for grant in plan.grants:
            if grant.wanted and not grant.request.task.is_greedy:
                sampled.append((at, grant.request))
            at += grant.wanted
        if sampled:
            numbers = torch.tensor([_list_sampling(request) for _, request in sampled], device=logits.device)
            at_rows = torch.tensor([row for row, _ in sampled], device=logits.device)
            chosen[at_rows] = choose_sampled(logits[at_rows], *numbers.unbind(1))
        picks: list[int] = chosen.tolist()
        return picks


def _list_sampling(request: TextRequest) -> tuple[float, float, float]:
    """Temperature, top_p and the random number of a request's next token."""
    task, stamp = request.task, request.encoded.observation.stamp
    return task.temperature, task.top_p, draw_uniform(task.seed, stamp, task.kind, len(request.tokens))
