# SPDX-License-Identifier: Apache-2.0
"""pi0.5 again, slowly: the whole sequence for every token, under an explicit mask.

An implementation that shares nothing with the served one but the weights: no pool, no
cache, no packing tricks, one softmax over one score matrix, in float64 unless asked otherwise.
Written from the description in test/golden/pi05_openpi/README.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.processor import Pi05Inputs

Weights = Callable[[str], torch.Tensor]


@dataclass(frozen=True)
class Told:
    """A text by full recompute: its ids (the end token not among them), whether it ended by itself,
    the logits each id was taken from, and the smallest gap between the two best of them."""

    tokens: list[int]
    ended: bool
    logits: torch.Tensor
    gap: float


class Recompute:
    """Full recompute over a network's weights."""

    def __init__(self, network: Network, dtype: torch.dtype = torch.float64) -> None:
        self.config = network.config
        self.dtype = dtype
        self.weights = {name: tensor.to(dtype) for name, tensor in network.state_dict().items()}

    # -- what tests ask for ------------------------------------------------------------------

    def logits(self, inputs: Pi05Inputs, words: Sequence[int]) -> torch.Tensor:
        """Logits [len(words), vocabulary] behind the prefix, each word seeing those before it."""
        hidden = self.hidden(inputs, words)[-len(words) :]
        return self._rms(hidden, self.weights["norm.scale"]) @ self.weights["embedding"].T

    def text(self, inputs: Pi05Inputs, prompt: Sequence[int], limit: int, eos: Sequence[int] = ()) -> Told:
        """Greedy text, everything anew for each token."""
        words, taken, gap = list(prompt), [], math.inf
        ended = False
        while not ended and len(taken) < limit:
            last = self.logits(inputs, words)[-1]
            best = last.topk(2).values
            gap = min(gap, float(best[0] - best[1]))
            taken.append(last)
            words.append(int(last.argmax()))
            ended = words[-1] in eos
        tokens = words[len(prompt) :]
        return Told(tokens[:-1] if ended else tokens, ended, torch.stack(taken), gap)

    def actions(self, inputs: Pi05Inputs, noise: torch.Tensor, times: Sequence[float]) -> torch.Tensor:
        """Actions [H, D]: prefix and action tokens in one sequence at each Euler step."""
        x = noise.to(self.dtype)
        for time in times:
            x = x - self._velocity(inputs, x, time) / len(times)
        return x

    # -- the backbone ------------------------------------------------------------------------

    def prefix(self, inputs: Pi05Inputs) -> torch.Tensor:
        """Embedded prefix [P, width]: image tokens as they are, words times sqrt(width)."""
        return torch.cat([*(self._see(image) for image in inputs.images), self._words(inputs.tokens)])

    def hidden(self, inputs: Pi05Inputs, words: Sequence[int] = ()) -> torch.Tensor:
        """Residual stream [P + len(words), width] after the last block, before the final norm."""
        prefix = self.prefix(inputs)
        x = torch.cat([prefix, self._words(torch.tensor(list(words), dtype=torch.int64))])
        count = prefix.shape[0]
        may_see = torch.ones(len(x), len(x), dtype=torch.bool).tril()
        may_see[:count, :count] = True
        for layer in range(self.config.backbone.depth):
            x = self._decode(x, layer, may_see)
        return x

    def _words(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.weights["embedding"][tokens] * math.sqrt(self.config.backbone.width)

    def _rms(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        normed = x / (x.square().mean(-1, keepdim=True) + self.config.backbone.eps).sqrt()
        return normed if scale is None else normed * scale

    def _turn(self, x: torch.Tensor, first: int) -> torch.Tensor:
        """Rotary turn of x [T, heads, d] whose tokens stand at positions first, first + 1, ..."""
        half = x.shape[-1] // 2
        at = torch.arange(first, first + len(x), dtype=torch.float64)[:, None]
        angle = at / self.config.rope_base ** (torch.arange(half, dtype=torch.float64) / half)
        pair = torch.view_as_complex(torch.stack((x[..., :half], x[..., half:]), dim=-1).double())
        turned = torch.view_as_real(pair * torch.polar(torch.ones_like(angle), angle)[:, None])
        return torch.cat((turned[..., 0], turned[..., 1]), dim=-1).to(self.dtype)

    def _project(self, x: torch.Tensor, block: str, first: int) -> tuple[torch.Tensor, ...]:
        b = self.config.backbone
        q, k, v = (x @ self.weights[f"{block}.qkv.weight"].T).split(
            [b.heads * b.head_dim, b.kv_heads * b.head_dim, b.kv_heads * b.head_dim], dim=-1
        )
        q, k, v = (part.unflatten(-1, (-1, b.head_dim)) for part in (q, k, v))
        return self._turn(q, first), self._turn(k, first), v

    def _attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, may_see: torch.Tensor
    ) -> torch.Tensor:
        heads, kv_heads = q.shape[1], k.shape[1]
        k, v = (part.repeat_interleave(heads // kv_heads, dim=1) for part in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q, k) / math.sqrt(q.shape[-1])
        weights = scores.masked_fill(~may_see, -math.inf).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, v).flatten(1)

    def _mlp(self, x: torch.Tensor, block: str) -> torch.Tensor:
        gate, up = (x @ self.weights[f"{block}.gate_up.weight"].T).chunk(2, dim=-1)
        bent = 0.5 * gate * (1 + torch.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        return (bent * up) @ self.weights[f"{block}.down.weight"].T

    def _decode(self, x: torch.Tensor, layer: int, may_see: torch.Tensor) -> torch.Tensor:
        block = f"blocks.{layer}"
        q, k, v = self._project(self._rms(x, self.weights[f"{block}.attention_norm.scale"]), block, 0)
        x = x + self._attend(q, k, v, may_see) @ self.weights[f"{block}.out.weight"].T
        return x + self._mlp(self._rms(x, self.weights[f"{block}.mlp_norm.scale"]), block)

    # -- the action expert -------------------------------------------------------------------

    def _velocity(self, inputs: Pi05Inputs, x: torch.Tensor, time: float) -> torch.Tensor:
        c, w = self.config, self.weights
        condition = self._condition(time)
        seen = self.prefix(inputs)
        acting = x @ w["expert.action_in.weight"].T + w["expert.action_in.bias"]
        count, total = len(seen), len(seen) + len(acting)
        may_see = torch.ones(total, total, dtype=torch.bool)
        may_see[:count, count:] = False
        for layer in range(c.backbone.depth):
            block, expert = f"blocks.{layer}", f"expert.blocks.{layer}"
            normed, gate = self._steer(acting, f"{expert}.attention_steer", condition)
            parts = zip(
                self._project(self._rms(seen, w[f"{block}.attention_norm.scale"]), block, 0),
                self._project(normed, expert, count),
                strict=True,
            )
            mixed = self._attend(*(torch.cat(pair) for pair in parts), may_see)
            seen = seen + mixed[:count] @ w[f"{block}.out.weight"].T
            seen = seen + self._mlp(self._rms(seen, w[f"{block}.mlp_norm.scale"]), block)
            acting = acting + mixed[count:] @ w[f"{expert}.out.weight"].T * gate
            normed, gate = self._steer(acting, f"{expert}.mlp_steer", condition)
            acting = acting + self._mlp(normed, expert) * gate
        normed, _ = self._steer(acting, "expert.final_steer", condition)
        return normed @ w["expert.action_out.weight"].T + w["expert.action_out.bias"]

    def _condition(self, time: float) -> torch.Tensor:
        c, w = self.config, self.weights
        half = c.expert.width // 2
        period = [c.min_period * (c.max_period / c.min_period) ** (i / (half - 1)) for i in range(half)]
        angle = torch.tensor([2 * math.pi * time / p for p in period], dtype=torch.float64)
        code = torch.cat((angle.sin(), angle.cos())).to(self.dtype)
        for name in ("time_in", "time_out"):
            code = F.silu(code @ w[f"expert.{name}.weight"].T + w[f"expert.{name}.bias"])
        return code

    def _steer(
        self, x: torch.Tensor, name: str, condition: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        steer = condition @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        scale, shift, gate = steer.chunk(3)
        return self._rms(x) * (1 + scale) + shift, gate

    # -- the vision tower --------------------------------------------------------------------

    def _see(self, image: torch.Tensor) -> torch.Tensor:
        """Image [3, S, S] to tokens [T, backbone width]."""
        v, w = self.config.vision, self.weights
        kernel = w["vision.patch.weight"].view(v.width, 3, v.patch_size, v.patch_size)
        grid = F.conv2d(image.to(self.dtype)[None], kernel, w["vision.patch.bias"], stride=v.patch_size)
        x = grid[0].flatten(1).T + w["vision.position"]
        for layer in range(v.depth):
            block = f"vision.blocks.{layer}"
            normed = self._layer_norm(x, f"{block}.attention_norm")
            q, k, value = (
                part.unflatten(-1, (v.heads, -1))
                for part in self._linear(normed, f"{block}.qkv").chunk(3, -1)
            )
            everything = torch.ones(len(x), len(x), dtype=torch.bool)
            x = x + self._linear(self._attend(q, k, value, everything), f"{block}.out")
            up = self._linear(self._layer_norm(x, f"{block}.mlp_norm"), f"{block}.up")
            x = x + self._linear(F.gelu(up, approximate="tanh"), f"{block}.down")
        return self._linear(self._layer_norm(x, "vision.norm"), "vision.projector")

    def _linear(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]

    def _layer_norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        centered = x - x.mean(-1, keepdim=True)
        normed = centered / (centered.square().mean(-1, keepdim=True) + self.config.vision.eps).sqrt()
        return normed * self.weights[f"{name}.weight"] + self.weights[f"{name}.bias"]
