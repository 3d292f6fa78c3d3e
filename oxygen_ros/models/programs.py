# SPDX-License-Identifier: Apache-2.0
"""Forward passes with static shapes, captured once and run again: CUDA graphs of a family's passes.

    prefill:  one program for each bucket of prompt lengths (multiples of 16), for one number of cameras
    denoise:  one program for each expert, the whole loop of S steps, guided or not
    extend:   one program for each bucket of rows

Padding follows what it pads: positions are unchanged and no query sees it. Rows that pad a step use the
pool's spare place. Capturing itself is in `graphs`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from oxygen_ros.models.flow import Flow, integrate
from oxygen_ros.models.graphs import Capturer, Work
from oxygen_ros.models.interface import ROW_BUCKETS, ExpertSpec, Guide, Rows

PROMPT_BUCKET = 16
Velocity = Callable[[torch.Tensor, int], torch.Tensor]


def prompt_buckets(most: int) -> list[int]:
    """Lengths that prompts of up to `most` tokens are padded to."""
    return [*range(PROMPT_BUCKET, most, PROMPT_BUCKET), most]


class StaticPasses(Protocol):
    """A family's passes over its own static tensors. `stage` and `aim` fill these tensors from the host; the
    other methods are captured: same addresses, same shapes, no read of a value.

    buckets:      prompt lengths that `prefill` is captured for
    padding_row:  [fields, 1], see KvPool
    """

    buckets: list[int]
    padding_row: torch.Tensor

    def stage(self, inputs: Any, slot: int) -> int | None:
        """Fill in a prefix's inputs; its bucket, or None where no program fits them."""

    def prefill(self, bucket: int) -> torch.Tensor: ...

    def aim(self, slot: int) -> None:
        """Point at the prefix of a slot."""

    def begin_denoise(self, expert: int) -> Velocity:
        """The velocity [H, D] of noisy actions at a step, over the prefix aimed at."""

    def extend(self, rows: Rows) -> torch.Tensor: ...


class StaticPrefix:
    """The place of the current prefix in its pool, in tensors that captured work reads.

    base, length, position:  int64 []: first place, tokens, first position after it
    column:                  int64 [most]: 0, 1, 2, ...
    """

    def __init__(self, most: int, device: torch.device) -> None:
        self.base = torch.zeros((), dtype=torch.int64, device=device)
        self.length = torch.ones((), dtype=torch.int64, device=device)
        self.position = torch.zeros((), dtype=torch.int64, device=device)
        self.column = torch.arange(most, device=device)

    def point(self, base: int, length: int, position: int) -> None:
        self.base.fill_(base)
        self.length.fill_(length)
        self.position.fill_(position)


def hide(unseen: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Attention bias: -inf where `unseen`, else 0."""
    zeros = torch.zeros(unseen.shape, dtype=dtype, device=unseen.device)
    return zeros.masked_fill_(unseen, float("-inf"))


class Programs:
    """Captured passes. All calls come from the model's thread."""

    def __init__(
        self,
        passes: StaticPasses,
        experts: Sequence[tuple[ExpertSpec, Flow]],
        capturer: Capturer,
        max_rows: int,
        device: torch.device,
    ) -> None:
        """Raises RuntimeError where the device cannot be captured."""
        self._passes = passes
        self._prefills: dict[int, Work] = {}
        for bucket in passes.buckets:
            self._prefills[bucket] = capturer.capture(lambda bucket=bucket: passes.prefill(bucket))  # type: ignore[misc]
        self._denoises = [
            _Denoise(passes, index, spec, flow, capturer, device)
            for index, (spec, flow) in enumerate(experts)
        ]
        self._rows: dict[int, Rows] = {}
        self._extends: dict[int, Work] = {}
        for count in ROW_BUCKETS:
            rows = self._rows[count] = Rows(count, device)
            rows.block[:] = passes.padding_row
            # Logits for each row: the table is read once whatever their number.
            rows.count = rows.wanted = count
            self._extends[count] = capturer.capture(lambda rows=rows: passes.extend(rows))  # type: ignore[misc]
            if count >= max_rows:
                break

    def prefill(self, inputs: Any, slot: int) -> bool:
        """Run the prefix into a slot; False, and nothing done, where no program fits."""
        bucket = self._passes.stage(inputs, slot)
        if bucket is None:
            return False
        self._prefills[bucket]()
        return True

    def denoise(self, slot: int, noise: torch.Tensor, guide: Guide | None, expert: int) -> torch.Tensor:
        """Actions [H, D], see Model.denoise."""
        self._passes.aim(slot)
        return self._denoises[expert].run(noise, guide)

    def extend(self, rows: Rows) -> torch.Tensor:
        """Logits [rows.wanted, vocabulary]; valid until any program runs."""
        bucket = next(b for b in self._extends if rows.count <= b)
        static = self._rows[bucket]
        static.block[:, : rows.count] = rows.block[:, : rows.count]
        static.block[:, rows.count :] = self._passes.padding_row
        # Entries of earlier steps lie beyond those wanted now.
        static.wants_logits[rows.wanted :] = 0
        return self._extends[bucket]()[: rows.wanted]


class _Denoise:
    """The captured loop of one expert and its static inputs."""

    def __init__(
        self,
        passes: StaticPasses,
        expert: int,
        spec: ExpertSpec,
        flow: Flow,
        capturer: Capturer,
        device: torch.device,
    ) -> None:
        shape = (spec.horizon, spec.width)
        self._noise, previous, weights = (torch.zeros(shape, device=device) for _ in range(3))
        self._guide = Guide(previous, weights)
        self._pulls = torch.zeros(len(flow.times), device=device)
        self._known_pulls: dict[float, torch.Tensor] = {}
        self._flow = flow
        self._run = capturer.capture(
            lambda: integrate(self._noise, flow, passes.begin_denoise(expert), self._guide, self._pulls)
        )

    def run(self, noise: torch.Tensor, guide: Guide | None) -> torch.Tensor:
        self._noise.copy_(noise)
        if guide is None:
            self._guide.weights.zero_()
        else:
            self._guide.previous.copy_(guide.previous)
            self._guide.weights.copy_(guide.weights)
            most = guide.max_weight
            if most not in self._known_pulls:
                pulls = self._flow.guidance_weights(most)
                self._known_pulls = {most: torch.tensor(pulls, device=self._pulls.device)}
            self._pulls.copy_(self._known_pulls[most])
        # The next run overwrites its output.
        return self._run().clone()
