# SPDX-License-Identifier: Apache-2.0
"""The forward passes with static shapes, recorded once and run again: CUDA graphs of pi0.5.

    prefill:  one program for each bucket of prompt lengths (multiples of 16), for one number of cameras
    denoise:  one program, the whole loop of S steps, guided or not
    extend:   one program for each bucket of rows

Padding stands behind what it pads: positions are unchanged and nobody sees it. Padded rows of text are rows
of nobody, in the pool's spare place. Here live the static inputs and the filling of them; the arithmetic is
`passes`, recording is `models.graphs`.
"""

from __future__ import annotations

import torch

from oxygen_ros.models.graphs import Recorder, Work
from oxygen_ros.models.interface import ROW_BUCKETS, Guide, Rows
from oxygen_ros.models.pi05.flow import guidance_weight, integrate
from oxygen_ros.models.pi05.passes import Passes, Reading
from oxygen_ros.models.pi05.processor import Inputs
from oxygen_ros.models.pool import align

PROMPT_BUCKET = 16


def prompt_buckets(most: int) -> list[int]:
    """Lengths that prompts of up to `most` tokens are padded to."""
    return [*range(PROMPT_BUCKET, most, PROMPT_BUCKET), most]


class Programs:
    """Recorded passes over one pool. All calls come from the model's thread."""

    def __init__(self, passes: Passes, recorder: Recorder, cameras: int, max_rows: int) -> None:
        """cameras: images of every prefix; others have no program

        Raises RuntimeError where the device cannot be recorded.
        """
        self._passes = passes
        config = passes.network.config
        self._config = config
        self._device = passes.network.embedding.device
        self.cameras = cameras
        self._prefill_inputs(cameras)
        self._denoise_inputs()
        self._prefills: dict[int, Work] = {}
        for bucket in prompt_buckets(config.max_prompt):
            self._prefills[bucket] = recorder.record(lambda bucket=bucket: self._prefill(bucket))  # type: ignore[misc]
        self._denoise = recorder.record(self._run_denoise)
        self._rows: dict[int, Rows] = {}
        self._extends: dict[int, Work] = {}
        for count in ROW_BUCKETS:
            rows = self._rows[count] = self._make_rows(count)
            self._extends[count] = recorder.record(lambda rows=rows: passes.extend(rows))  # type: ignore[misc]
            if count >= max_rows:
                break

    # -- prefill -----------------------------------------------------------------------------

    def prefill(self, inputs: Inputs, base: int) -> bool:
        """Run the prefix into the places from `base` on; False, and nothing done, where no program fits."""
        count = inputs.tokens.shape[0]
        if inputs.images.shape[0] != self.cameras or not 0 < count <= self._config.max_prompt:
            return False
        bucket = next(b for b in self._prefills if count <= b)
        self._images.copy_(inputs.images)
        self._tokens[:count] = inputs.tokens
        self._tokens[count:] = self._config.pad_id
        self._base.fill_(base)
        self._length.fill_(self.cameras * self._config.vision.tokens + count)
        self._prefills[bucket]()
        return True

    def _prefill_inputs(self, cameras: int) -> None:
        c, device = self._config, self._device
        size = c.vision.image_size
        self._images = torch.zeros(cameras, 3, size, size, device=device, dtype=self._passes.dtype)
        self._tokens = torch.full((c.max_prompt,), c.pad_id, dtype=torch.int64, device=device)
        self._base = torch.zeros((), dtype=torch.int64, device=device)
        self._length = torch.ones((), dtype=torch.int64, device=device)
        self._column = torch.arange(align(c.max_prefix + c.horizon), device=device)

    def _prefill(self, bucket: int) -> torch.Tensor:
        x = self._passes.embed(self._images, self._tokens[:bucket])
        column = self._column[: x.shape[0]]
        return self._passes.prefill(x, self._base + column, self._hide(column >= self._length))

    def _hide(self, unseen: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros(unseen.shape, dtype=self._passes.dtype, device=self._device)
        return zeros.masked_fill_(unseen, float("-inf"))

    # -- denoise -----------------------------------------------------------------------------

    def denoise(
        self, base: int, length: int, position: int, noise: torch.Tensor, guide: Guide | None
    ) -> torch.Tensor:
        """Actions [H, D] from the prefix of `length` tokens at `base`; the chunk begins at `position`."""
        self._base.fill_(base)
        self._length.fill_(length)
        self._position.fill_(position)
        self._noise.copy_(noise)
        if guide is None:
            self._guide.weights.zero_()
        else:
            self._guide.previous.copy_(guide.previous)
            self._guide.weights.copy_(guide.weights)
            self._pulls.copy_(self._pull_table(guide.max_weight))
        # The next run writes over its output.
        return self._denoise().clone()

    def _denoise_inputs(self) -> None:
        c = self._config
        shape = (c.horizon, c.action_dim)
        self._noise, previous, weights = (torch.zeros(shape, device=self._device) for _ in range(3))
        self._guide = Guide(previous, weights)
        self._pulls = torch.zeros(len(self._passes.times), device=self._device)
        self._position = torch.zeros((), dtype=torch.int64, device=self._device)
        self._pull_tables: dict[float, torch.Tensor] = {}

    def _pull_table(self, most: float) -> torch.Tensor:
        if most not in self._pull_tables:
            weights = [guidance_weight(time, most) for time in self._passes.times]
            self._pull_tables = {most: torch.tensor(weights, device=self._device)}
        return self._pull_tables[most]

    def _run_denoise(self) -> torch.Tensor:
        """The whole loop, over the frame's keys laid out once where a recorded program can find them."""
        c, pool = self._config, self._passes.pool
        places = self._base + self._column
        own = slice(c.max_prefix, c.max_prefix + c.horizon)
        is_own = (self._column >= own.start) & (self._column < own.stop)
        unseen = (self._column >= self._length) & ~is_own
        reading = Reading(
            keys=pool.keys.index_select(2, places),
            values=pool.values.index_select(2, places),
            own=own,
            turn=self._passes.rotary.at(self._position + self._column[: c.horizon]),
            bias=self._hide(unseen),
        )
        return integrate(
            self._noise,
            self._passes.times,
            lambda x, step: self._passes.velocity(x, step, reading),
            self._guide,
            self._pulls,
        )

    # -- extend ------------------------------------------------------------------------------

    def extend(self, rows: Rows) -> torch.Tensor:
        """Logits [rows.wanted, vocabulary]; they stand until any program runs."""
        bucket = next(b for b in self._extends if rows.count <= b)
        static, nobody = self._rows[bucket], self._passes.pool.nobody
        static.block[:, : rows.count] = rows.block[:, : rows.count]
        static.block[:, rows.count :] = nobody
        # Beyond what is wanted stands what earlier steps wanted.
        static.wants_logits[rows.wanted :] = 0
        return self._extends[bucket]()[: rows.wanted]

    def _make_rows(self, count: int) -> Rows:
        """Rows of nobody, with logits for each: the table is read once whatever their number."""
        rows = Rows(count, self._device)
        rows.block[:] = self._passes.pool.nobody
        rows.count = rows.wanted = count
        return rows
