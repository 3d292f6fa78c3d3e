# SPDX-License-Identifier: Apache-2.0
"""The engine: one prefix, many readers, resumable text.

    with engine.observe(observation) as frame:    # one prefill
        chunk = engine.act(frame)                 # read-only: publish it now
        engine.ask(frame, Memory())               # text that starts from this prefix
    done = engine.advance(budget, due)            # bounded; finished texts

Here live frames and actions, and the door to the texts; what becomes of a text is `texts`. One thread
owns an engine; nothing in it locks.

Two booleans make four modes over the same model and the same outputs. `share`: text reads the
frame that the actions read; without it every text encodes the observation for itself. `batch`: all
unfinished texts advance together, across ticks; without it each text runs to its end in its tick.
Neither is "isolated", the baseline; both is "oxygen", what the rest is compared with.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.engine.admission import Arrival, prepare_prompt
from oxygen_ros.engine.budget import Budget
from oxygen_ros.engine.counters import Counters, Phases
from oxygen_ros.engine.frame import Frame
from oxygen_ros.engine.integrity import check_accounting
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.engine.request import FinishedText, FinishReason, TextTask
from oxygen_ros.engine.slots import SlotPool
from oxygen_ros.engine.texts import Texts
from oxygen_ros.models.interface import Capacity, Guide, Model
from oxygen_ros.observation import Observation, Previous

# (share, batch)
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
        """capacity:   slots and rows; `plan_capacity` makes one of what will be asked
        share, batch:  see above
        when_full:     "reject_new" or "drop_oldest", when no slot is left for a text
        draft:         longest speculated draft [tokens], 0 for none
        seed:          of the denoise noise, together with the observation's stamp
        repeat_on_device: feed greedy tokens without reading them on the host in between; default:
                       only where reading them would make the device wait (not on CPU)
        clock:         now [s]; steady
        """
        if capacity.frames < 2:
            raise ValueError(
                f"an engine needs 2 frame slots or more, got {capacity.frames}: one is the next tick's"
            )
        self.model = model
        self.share = share
        self.batch = batch
        self.seed = seed
        self.clock = clock
        self.frames = SlotPool("frame", capacity.frames)
        self.counters: Final = Counters()
        self.phases = Phases()
        self._texts = Texts(
            model,
            capacity,
            self.frames,
            self.counters,
            self._reencode,
            share=share,
            batch=batch,
            when_full=when_full,
            draft=draft,
            repeat_on_device=repeat_on_device,
            clock=clock,
        )
        # The texts' own, for those who report on them.
        self.suffixes = self._texts.suffixes
        self.costs = self._texts.costs
        self.scheduler = self._texts.scheduler
        model.allocate(capacity)
        self._open: list[Frame] = []  # inside their `with`, for `check_integrity` alone
        self._next_id = 0  # raised, then given: the first id is 1

    @property
    def mode(self) -> str:
        return next(name for name, flags in MODES.items() if flags == (self.share, self.batch))

    @property
    def live(self) -> int:
        """Text requests under way, those that wait for admission included."""
        return len(self._texts)

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

        previous: what the chunk is guided towards, see `Guide`; None: nothing
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
        self._next_id += 1
        self._texts.add(
            Arrival(self._next_id, task, frame, prompt, adapter, self.counters.ticks, self.clock())
        )
        return self._next_id

    def prepare(self, task: TextTask) -> tuple[tuple[int, ...], int]:
        """Prompt tokens and adapter id of a task; ValueError, as in `ask`, when it can never run."""
        return prepare_prompt(task, self.model, self.scheduler.suffix_tokens)

    def advance(self, budget: Budget, due: float | None = None) -> list[FinishedText]:
        """Move all unfinished texts forward within `budget`; return those that ended.

        due: when the next tick is due on the engine's clock [s]. Without `batch`, texts run to
        their ends here whatever the budget. A step never has more rows than the capacity's.
        """
        started = self.clock()
        ended = self._texts.advance(budget, due, self.phases)
        self.phases.text += self.clock() - started
        return ended

    # -- ending texts ------------------------------------------------------------------------

    def cancel(
        self, reason: FinishReason, request_id: int | None = None, kinds: Collection[str] | None = None
    ) -> list[FinishedText]:
        """End one request, those of some kinds, or all, now, with what they have so far.

        After an `advance` that raised, the texts that ended before the error are returned as well,
        with their own reasons.
        """
        return self._texts.cancel(reason, request_id, kinds)

    def check_integrity(self) -> None:
        """Raise unless slots, frames and requests agree with each other."""
        texts = self._texts
        check_accounting(self.frames, texts.suffixes, self._open, texts.arrivals, texts.scheduler, self.share)

    # -- inside ------------------------------------------------------------------------------

    def _make_guide(self, previous: Previous, observation: Observation) -> Guide:
        """The chunk before in the model's units, seen from the observation of now."""
        target = self.model.normalize(previous.actions, observation)
        weights = torch.from_numpy(previous.weights.astype(np.float32)).to(target.device)
        return Guide(target, weights[:, None].expand_as(target), previous.max_weight)

    def _encode(self, observation: Observation, inputs: object) -> Frame:
        """A frame of `inputs`, which the model made of the observation. The caller holds it."""
        slot = self.frames.acquire()
        if slot is None:
            raise RuntimeError(
                f"all {self.frames.size} frame slots are held: close the frames of earlier ticks"
            )
        try:
            prefix = self.model.encode(inputs, slot)
            if self.model.device.type == "cuda":
                # Else the next phase would be told to have taken what this one did; nothing else is to do.
                torch.cuda.current_stream(self.model.device).synchronize()
        except BaseException:
            self.frames.release(slot)
            raise
        self.counters.prefills += 1
        return Frame(self.frames, slot, prefix, observation, self.counters.ticks)

    def _reencode(self, frame: Frame) -> Frame:
        """The same observation in a frame that one request alone holds: the baseline's own prefill."""
        own = self._encode(frame.observation, self.model.process(frame.observation))
        own.is_open = False  # the request's end frees it; no `with` ever will
        return own
