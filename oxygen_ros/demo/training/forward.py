# SPDX-License-Identifier: Apache-2.0
"""The training forward pass: the arithmetic that is served, batched, masked and differentiable.

As served: the prefix is bidirectional; text is a causal private continuation of it; the action
chunk reads the prefix and itself; neither is seen by the prefix or by the other; both continue the
positions where the packed prefix ends. A test compares this with `Pi05.encode/denoise/extend`.

Functions over a `Network` and plain tensors; `batch` makes the tensors.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from oxygen_ros.models.layers import Adapt, DecoderBlock, Rotary
from oxygen_ros.models.pi05.network import ExpertBlock, Network


@dataclass(frozen=True, slots=True)
class Tensors:
    """One batch, padded on the right.

    images:      [B, cameras, 3, S, S] in -1..1
    prompt:      int64 [B, P]; prompt_length int64 [B]
    text:        int64 [B, T]: prompt suffix, sentence, end token; text_length int64 [B]
    text_prompt: int64 [B]: tokens of the prompt suffix
    noisy:       [B, K, H, D]: K draws of noisy actions for every prefix
    time:        [B, K]: their denoise times
    """

    images: torch.Tensor
    prompt: torch.Tensor
    prompt_length: torch.Tensor
    text: torch.Tensor
    text_length: torch.Tensor
    text_prompt: torch.Tensor
    noisy: torch.Tensor
    time: torch.Tensor


@dataclass(frozen=True, slots=True)
class TrainingOutputs:
    """The outputs that training needs.

    patches:   [B, cameras, tokens, width]
    middle:    [B, cameras, tokens, width]: the image tokens after the second block
    last:      [B, layers - 2, width]: the last prompt token after every block but the first and the last
    logits:    [B, T, vocabulary]
    velocity:  [B, K, H, D]
    """

    patches: torch.Tensor
    middle: torch.Tensor
    last: torch.Tensor
    logits: torch.Tensor
    velocity: torch.Tensor


def run(
    network: Network,
    batch: Tensors,
    rotary: Rotary,
    adapt: Adapt | None = None,
    *,
    actions: bool = True,
    words: bool = True,
) -> TrainingOutputs:
    """Both readers of one prefix, or one. `adapt` is added to text rows only.

    Without `actions` no velocity, without `words` no logits: empty tensors replace them.
    """
    size = batch.images.shape[0]
    patches = network.vision(batch.images.flatten(0, 1)).unflatten(0, (size, -1))
    x = torch.cat((patches.flatten(1, 2), network.embed(batch.prompt)), dim=1)
    length = patches.shape[1] * patches.shape[2] + batch.prompt_length
    prefix_turn = rotary.at(slice(0, x.shape[1]))
    seen = (torch.arange(x.shape[1])[None] < length[:, None])[:, None]  # [B, 1, P]

    count = batch.text.shape[1]
    text = network.embed(batch.text)
    text_turn = rotary.at(length[:, None] + torch.arange(count))
    causal = torch.ones(count, count, dtype=torch.bool).tril()
    text_seen = torch.cat((seen.expand(-1, count, -1), causal.expand(size, -1, -1)), dim=2)

    stream, chunk_turn, chunk_seen, table = _begin_chunk(network, batch, rotary, length, seen)
    blocks = [block for block in network.blocks if isinstance(block, DecoderBlock)]
    experts = [block for block in network.expert.blocks if isinstance(block, ExpertBlock)]
    last: list[torch.Tensor] = []
    middle = patches
    for layer, (block, expert) in enumerate(zip(blocks, experts, strict=True)):
        if layer == len(blocks) - 1:  # readers take K and V; nothing after that is read
            k, v = block.keys_values(block.attention_norm(x), prefix_turn)
        else:
            q, k, v = block.project(x, prefix_turn)
            x = block.merge(x, attend(q, k, v, seen))
            if layer == 1:
                middle = x[:, : patches.shape[1] * patches.shape[2]].unflatten(1, patches.shape[1:3])
            if layer:
                last.append(x[torch.arange(size), length - 1])
        if words:
            tq, tk, tv = block.project(text, text_turn, adapt, layer)
            attended = attend(tq, torch.cat((k, tk), 1), torch.cat((v, tv), 1), text_seen)
            text = block.merge(text, attended, adapt, layer)
        if actions:
            stream = _expert_layer(
                network, expert, stream, chunk_turn, (k, v), chunk_seen, table[2 * layer : 2 * layer + 2]
            )
    if actions:
        scale, shift, _ = table[-1]
        stream = shift + F.rms_norm(stream, stream.shape[-1:], None, network.config.expert.eps) * scale
        velocity = network.expert.action_out(stream).view_as(batch.noisy)
    none = patches.new_zeros(0)
    return TrainingOutputs(
        patches,
        middle,
        torch.stack(last, 1) if last else none,
        network.logits(text) if words else none,
        velocity if actions else none,
    )


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """q [B, T, heads, d] over k, v [B, L, kv_heads, d] where `seen` [B, T or 1, L] -> [B, T, heads * d].

    The query heads that share a K/V head are folded into the token axis, as when served.
    """
    size, tokens, heads, dim = q.shape
    kv_heads = k.shape[2]
    folded = q.view(size, tokens, kv_heads, -1, dim).permute(0, 2, 3, 1, 4).flatten(2, 3)
    mask = seen if seen.shape[1] == 1 else seen.repeat(1, heads // kv_heads, 1)
    out = F.scaled_dot_product_attention(
        folded, k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask[:, None]
    )
    return out.unflatten(2, (-1, tokens)).permute(0, 3, 1, 2, 4).reshape(size, tokens, heads * dim)


_Steer = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def _begin_chunk(
    network: Network, batch: Tensors, rotary: Rotary, length: torch.Tensor, seen: torch.Tensor
) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor], torch.Tensor, list[_Steer]]:
    """The action stream [B, K * H, width], its positions, what it sees, and its norms' steering."""
    size, draws, horizon, _ = batch.noisy.shape
    expert = network.expert
    stream = expert.action_in(batch.noisy).flatten(1, 2)
    turn = rotary.at((length[:, None] + torch.arange(horizon)).repeat(1, draws))
    own = torch.block_diag(*[torch.ones(horizon, horizon)] * draws).bool()
    chunk_seen = torch.cat((seen.expand(-1, draws * horizon, -1), own.expand(size, -1, -1)), dim=2)
    condition = expert.condition(batch.time.flatten())
    layers = [
        s for b in expert.blocks if isinstance(b, ExpertBlock) for s in (b.attention_steer, b.mlp_steer)
    ]
    table = []
    for steer in (*layers, expert.final_steer):
        parts = (
            steer(condition).view(size, draws, 1, -1).expand(-1, -1, horizon, -1).flatten(1, 2).chunk(3, -1)
        )
        table.append((1 + parts[0], parts[1], parts[2]))
    return stream, turn, chunk_seen, table


def _expert_layer(
    network: Network,
    block: ExpertBlock,
    stream: torch.Tensor,
    turn: tuple[torch.Tensor, torch.Tensor],
    prefix: tuple[torch.Tensor, torch.Tensor],
    seen: torch.Tensor,
    steer: list[_Steer],
) -> torch.Tensor:
    eps = network.config.expert.eps
    (scale, shift, gate), (mlp_scale, mlp_shift, mlp_gate) = steer
    normed = shift + F.rms_norm(stream, stream.shape[-1:], None, eps) * scale
    q, k, v = block.split(block.qkv(normed), turn)
    attended = attend(q, torch.cat((prefix[0], k), 1), torch.cat((prefix[1], v), 1), seen)
    stream = stream + block.out(attended) * gate
    normed = mlp_shift + F.rms_norm(stream, stream.shape[-1:], None, eps) * mlp_scale
    out: torch.Tensor = stream + block.mlp(normed) * mlp_gate
    return out
