# SPDX-License-Identifier: Apache-2.0
"""pi0.5's action path in its plain form, the baseline of the served one.

The computation of the public implementations: every camera of the model, present or not, one after the other;
the prompt padded to its slots; one matrix product for each weight of the checkpoint; the modulation of every
norm computed at every step; the chunk's keys appended to the prefix's in every layer of every step.
Each of these has a switch (`Improvements`), so that `ablation` can measure each; a network packed
for serving (`models.packed`) runs with `fused` alone. Weights are the given network's own, cut where they are
fused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F

from oxygen_ros.models.flow import denoise_times
from oxygen_ros.models.layers import Turn
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.processor import Pi05Inputs

Cache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Improvements:
    """The improvements over the plain computation.

    packed:            masked cameras and padding are not computed
    one_vision_batch:  all cameras in one batch
    short_last_block:  the prefill's last block stops at its keys and values; nothing else of it is read
    fused:             q, k, v are one product; gate and up are one
    modulation_once:   scale, shift and gate of all norms and steps are computed before
    static_cache:      the chunk's keys are written behind the prefix's, in place: nothing grows or is copied
    """

    packed: bool = False
    one_vision_batch: bool = False
    short_last_block: bool = False
    fused: bool = False
    modulation_once: bool = False
    static_cache: bool = False


@dataclass(frozen=True, slots=True)
class PlainPrefix:
    """cache: keys and values [tokens, kv_heads, d] of every block; seen: bool [tokens]; position: the next"""

    cache: Cache
    seen: torch.Tensor
    position: int


class PlainActionPath:
    """One network, computed plainly with some improvements."""

    def __init__(self, network: Network, on: Improvements) -> None:
        self.network: Any = network  # blocks and layers by name
        self.on = on
        c = self.config = network.config
        self._dtype, self._device = network.embedding.dtype, network.embedding.device
        self._times = denoise_times(c.denoise_steps, c.time_rule)
        self._table: list[list[tuple[torch.Tensor, ...]]] = []
        if self.on.modulation_once:
            with torch.inference_mode():
                self._table = [self._modulate(time) for time in self._times]

    @torch.inference_mode()
    def prefill(self, inputs: Pi05Inputs) -> PlainPrefix:
        """The prefix of an observation; `inputs.images` are the cameras that are present."""
        parts, seen = self._embed(inputs)
        x, mask = torch.cat(parts), torch.cat(seen)
        # Positions count what is present; those of padding do not matter.
        turn = self._rotation(mask.cumsum(0) - 1)
        bias = None if self.on.packed else self._bias(mask)
        cache: Cache = []
        blocks = list(self.network.blocks)
        for index, block in enumerate(blocks):
            q, k, v = self._project(block, block.attention_norm(x), turn)
            cache.append((k, v))
            if self.on.short_last_block and index == len(blocks) - 1:
                break
            x = x + block.out(self._attend(q, k, v, bias))
            x = x + self._mlp(block, block.mlp_norm(x))
        if self.on.static_cache:
            room = self.config.horizon
            cache = [(_extend(k, room), _extend(v, room)) for k, v in cache]
        return PlainPrefix(cache, mask, int(mask.sum()))

    @torch.inference_mode()
    def denoise(self, prefilled: PlainPrefix, noise: torch.Tensor) -> torch.Tensor:
        """Actions [H, D] from noise [H, D] by Euler steps."""
        horizon = noise.shape[0]
        turn = self._rotation(prefilled.position + torch.arange(horizon, device=self._device))
        own = torch.ones(horizon, dtype=torch.bool, device=self._device)
        bias = None if self.on.packed else self._bias(torch.cat((prefilled.seen, own)))
        x = noise.float()
        for step in range(len(self._times)):
            x = x - self._velocity(x, step, prefilled, turn, bias) / len(self._times)
        return x

    # -- prefix ------------------------------------------------------------------------------

    def _embed(self, inputs: Pi05Inputs) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        c, network = self.config, self.network
        images, tokens = inputs.images, inputs.tokens
        there = [True] * images.shape[0]
        valid = torch.ones(tokens.shape[0], dtype=torch.bool, device=self._device)
        if not self.on.packed:
            absent = len(c.cameras) - images.shape[0]
            images = torch.cat((images, images.new_full((absent, *images.shape[1:]), -1.0)))
            there += [False] * absent
            padding = c.max_prompt - tokens.shape[0]
            tokens, valid = F.pad(tokens, (0, padding), value=c.pad_id), F.pad(valid, (0, padding))
        batches = [images] if self.on.one_vision_batch else [image[None] for image in images]
        parts = [self._look(batch).flatten(0, 1) for batch in batches]
        marks = [torch.full((c.vision.tokens,), is_there, device=self._device) for is_there in there]
        return [*parts, network.embed(tokens)], [*marks, valid]

    def _look(self, images: torch.Tensor) -> torch.Tensor:
        """Images [n, 3, S, S] to tokens [n, T, width]."""
        tower = self.network.vision
        if self.on.fused:
            return cast(torch.Tensor, tower(images))
        x = tower.patch(F.pixel_unshuffle(images, tower.patch_size).flatten(2).mT) + tower.position
        for block in tower.blocks:
            normed = block.attention_norm(x)
            weights, biases = block.qkv.weight.chunk(3), block.qkv.bias.chunk(3)
            q, k, v = (
                F.linear(normed, w, b).view(*normed.shape[:2], block.heads, -1).transpose(1, 2)
                for w, b in zip(weights, biases, strict=True)
            )
            attended = F.scaled_dot_product_attention(q, k, v)
            x = x + block.out(attended.transpose(1, 2).flatten(-2))
            x = x + block.down(block.up(block.mlp_norm(x)))
        return cast(torch.Tensor, tower.projector(tower.norm(x)))

    # -- both streams ------------------------------------------------------------------------

    def _rotation(self, positions: torch.Tensor) -> Turn:
        half = self.config.backbone.head_dim // 2
        exponent = torch.arange(half, dtype=torch.float32, device=self._device) / half
        angle = positions[:, None].float() / (self.config.rope_base**exponent)
        return angle.cos().to(self._dtype)[:, None], angle.sin().to(self._dtype)[:, None]

    def _project(
        self, block: Any, x: torch.Tensor, turn: Turn
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        b = self.config.backbone
        sizes = [heads * b.head_dim for heads in (b.heads, b.kv_heads, b.kv_heads)]
        if self.on.fused:
            parts = block.qkv(x).split(sizes, dim=-1)
        else:
            parts = tuple(F.linear(x, part) for part in block.qkv.weight.split(sizes))
        q, k, v = (part.unflatten(-1, (-1, b.head_dim)) for part in parts)
        return _rotate(q, turn), _rotate(k, turn), v

    def _mlp(self, block: Any, x: torch.Tensor) -> torch.Tensor:
        if self.on.fused:
            return cast(torch.Tensor, block.mlp(x))
        gate, up = (F.linear(x, part) for part in block.gate_up.weight.chunk(2))
        return cast(torch.Tensor, block.down(F.gelu(gate, approximate="tanh") * up))

    def _bias(self, seen: torch.Tensor) -> torch.Tensor:
        """[1, tokens] added to every query's scores."""
        bias = torch.zeros(1, len(seen), dtype=self._dtype, device=self._device)
        return bias.masked_fill_(~seen, torch.finfo(self._dtype).min)

    @staticmethod
    def _attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """q [T, heads, d] over k, v [L, kv_heads, d]: each head with its own copy of shared keys."""
        groups = q.shape[1] // k.shape[1]
        heads = q.transpose(0, 1)
        keys, values = (t.transpose(0, 1).repeat_interleave(groups, dim=0) for t in (k, v))
        scores = heads @ keys.mT * q.shape[-1] ** -0.5
        if bias is not None:
            scores = scores + bias
        weights: torch.Tensor = scores.softmax(dim=-1, dtype=torch.float32).to(q.dtype)
        return (weights @ values).transpose(0, 1).flatten(1)

    # -- the action expert -------------------------------------------------------------------

    def _modulate(self, time: float) -> list[tuple[torch.Tensor, ...]]:
        """Scale, shift and gate of every norm at one time."""
        expert = self.network.expert
        condition = expert.condition(torch.tensor([time], device=self._device))
        steers = [steer for block in expert.blocks for steer in (block.attention_steer, block.mlp_steer)]
        return [steer(condition).chunk(3, dim=-1) for steer in (*steers, expert.final_steer)]

    def _velocity(
        self, x: torch.Tensor, step: int, prefilled: PlainPrefix, turn: Turn, bias: torch.Tensor | None
    ) -> torch.Tensor:
        expert, eps = self.network.expert, self.config.expert.eps
        steer = self._table[step] if self._table else self._modulate(self._times[step])
        stream = expert.action_in(x.to(self._dtype))
        for index, block in enumerate(expert.blocks):
            (scale, shift, gate), (mlp_scale, mlp_shift, mlp_gate) = steer[2 * index : 2 * index + 2]
            normed = F.rms_norm(stream, stream.shape[-1:], None, eps) * (1 + scale) + shift
            q, k, v = self._project(block, normed, turn)
            held_keys, held_values = prefilled.cache[index]
            attended = self._attend(q, self._join(held_keys, k), self._join(held_values, v), bias)
            stream = stream + block.out(attended) * gate
            normed = F.rms_norm(stream, stream.shape[-1:], None, eps) * (1 + mlp_scale) + mlp_shift
            stream = stream + self._mlp(block, normed) * mlp_gate
        scale, shift, _ = steer[-1]
        normed = F.rms_norm(stream, stream.shape[-1:], None, eps) * (1 + scale) + shift
        return cast(torch.Tensor, expert.action_out(normed)).float()

    def _join(self, held: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        if not self.on.static_cache:
            return torch.cat((held, own))
        held[-len(own) :] = own
        return held


def _extend(x: torch.Tensor, rows: int) -> torch.Tensor:
    """x [T, ...] with room behind it."""
    return torch.cat((x, x.new_zeros(rows, *x.shape[1:])))


def _rotate(x: torch.Tensor, turn: Turn) -> torch.Tensor:
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
