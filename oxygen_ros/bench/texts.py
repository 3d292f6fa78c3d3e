# SPDX-License-Identifier: Apache-2.0
"""Text work for `ablate`: rows of steady ticks, a pool that gathers, a lane of ticks with one text each.

Here lives no timing.
"""

from __future__ import annotations

import torch

from oxygen_ros.bench.robots import Scene
from oxygen_ros.engine import Budget, Engine, FinishedText, TextTask
from oxygen_ros.models.interface import Capacity, Rows
from oxygen_ros.models.layers import Rotary
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.passes import Passes
from oxygen_ros.models.pool import KvPool, RowView


def steady_rows(count: int, position: int, tokens: int, device: torch.device) -> Rows:
    """One row each of `count` texts, each of a frame of its own, at ages spread over `tokens`."""
    rows = Rows(max(count, 1), device)
    number = torch.arange(count, device=device)
    rows.token[:count] = 4
    rows.frame_slot[:count] = rows.suffix_slot[:count] = rows.wants_logits[:count] = number
    rows.write_at[:count] = tokens // 2 if count == 1 else number * (tokens - 1) // (count - 1)
    rows.position[:count] = position + rows.write_at[:count]
    rows.count = rows.wanted = count
    rows.longest = int(rows.write_at[:count].max()) + 1
    rows.frame_spans = [(i, i, i + 1) for i in range(count)]
    return rows


def one_row_each(rows: Rows, device: torch.device) -> list[Rows]:
    """The same rows as steps of one row."""
    singles = []
    for index in range(rows.count):
        single = Rows(1, device)
        single.block[:, 0] = rows.block[:, index]
        single.wants_logits[0] = 0
        single.count = single.wanted = 1
        single.longest = int(single.write_at[0]) + 1
        single.frame_spans = [(rows.frame_spans[index][0], 0, 1)]
        singles.append(single)
    return singles


class GatheringPool(KvPool):
    """Attention as it is without `KvPool`'s: every row's keys are copied together, padded to the longest."""

    @classmethod
    def passes_of(cls, model: Pi05) -> Passes:
        """A model's text passes over such a pool, filled as the model's own is."""
        network, pool, c = model.network, model.pool, model.config
        times = torch.linspace(1.0, 0.1, 2, device=model.device)
        own = cls(
            model.capacity, layers=c.backbone.depth, heads=c.backbone.heads, kv_heads=c.backbone.kv_heads,
            head_dim=c.backbone.head_dim, max_prefix=c.max_prefix, workspace=c.horizon, device=model.device,
            dtype=model.dtype, over_pool=False,
        )  # fmt: skip
        own.keys.copy_(pool.keys)
        own.values.copy_(pool.values)
        for slot in range(model.capacity.frames):
            held = pool.frame_places(slot)
            own.open_frame(slot, held.stop - held.start)
        rotary = Rotary(
            c.backbone.head_dim,
            c.rope_base,
            c.max_prefix + model.capacity.suffix_tokens,
            model.device,
            model.dtype,
        )
        with torch.inference_mode():
            modulation = network.expert.modulate(times)
        return Passes(network, times.tolist(), modulation, TextAdapters(), own, rotary)

    def view(self, rows: Rows) -> RowView:
        live = slice(0, rows.count)
        start = self.suffix_base + rows.suffix_slot[live] * self.suffix_tokens
        base = rows.frame_slot[live] * self.frame_stride
        longest = max(
            self.frame_places(slot).stop - slot * self.frame_stride for slot, _, _ in rows.frame_spans
        )
        length = self._lengths_on_device[rows.frame_slot[live]]
        prefix = torch.arange(longest, device=start.device)
        suffix = torch.arange(rows.longest, device=start.device)
        return RowView(
            place=start + rows.write_at[live],
            runs=[],
            suffix=torch.cat((base[:, None] + prefix, start[:, None] + suffix), dim=1),
            unseen=torch.cat((prefix >= length[:, None], suffix > rows.write_at[live, None]), dim=1),
        )

    def attend_rows(self, layer: int, q: torch.Tensor, view: RowView) -> torch.Tensor:
        assert view.suffix is not None
        assert view.unseen is not None
        keys, values = self.keys[layer][:, view.suffix], self.values[layer][:, view.suffix]
        count, heads, dim = q.shape
        grouped = (q * dim**-0.5).view(count, keys.shape[0], -1, dim).transpose(0, 1)
        scores = (grouped @ keys.mT).masked_fill_(view.unseen[None, :, None], float("-inf"))
        out = scores.softmax(dim=-1) @ values
        return out.transpose(0, 1).reshape(count, heads * dim)


class TextLane:
    """Ticks that ask one text each and advance all by some steps; no actions, a prefill a tick."""

    def __init__(
        self,
        model: Pi05,
        capacity: Capacity,
        scene: Scene,
        prompt: str,
        tokens: int,
        steps: int,
        *,
        repeat: bool,
        draft: int = 0,
    ) -> None:
        self.engine = Engine(model, capacity, draft=draft, repeat_on_device=repeat)
        self._scene = scene
        self._task = TextTask(kind="memory", prompt=prompt, max_tokens=tokens)
        self._budget = Budget(steps=steps)
        self.finished: list[FinishedText] = []
        self.texts: list[tuple[int, ...]] = []

    def tick(self) -> None:
        with self.engine.observe(self._scene.at(0)) as frame:
            self.engine.ask(frame, self._task)
        ended = self.engine.advance(self._budget)
        self.finished += ended
        self.texts += [text.tokens for text in ended]

    def tokens_per_step(self) -> float:
        """Tokens of the finished texts over the decode steps that they took part in."""
        steps = sum(text.steps for text in self.finished)
        return sum(len(text.tokens) for text in self.finished) / steps if steps else 0.0
