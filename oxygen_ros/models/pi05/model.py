# SPDX-License-Identifier: Apache-2.0
"""pi0.5 as the engine runs it: prefill into a slot, denoise from it, extend text from it.

Here live the forward passes over static pools. Weights are `network`, prompts are `processor`.
The prefix is packed: masked cameras and padding are not computed, and take no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.interface import Capacity, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.models.layers import DecoderBlock, Rotary
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pi05.expert import ExpertBlock, denoise_times
from oxygen_ros.models.pi05.flow import integrate
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.processor import Inputs, Processor
from oxygen_ros.models.pool import KvPool, attend
from oxygen_ros.observation import Observation


class Pi05(Model):
    """A loaded pi0.5 network with its processor. One thread owns it."""

    def __init__(
        self,
        network: Network,
        processor: Processor | None,
        *,
        denoise_steps: int | None = None,
        over_pool: bool | None = None,
    ) -> None:
        """processor:   None for a bare network (golden data, benchmarks): inputs come as tensors
        denoise_steps:  S; default the checkpoint's
        over_pool:      see KvPool; default on GPUs

        Raises ModelError when denoise_steps is below 1.
        """
        self.network = network
        self.processor = processor
        config = self.config = network.config
        self.device = network.embedding.device
        self.dtype = network.embedding.dtype
        self._over_pool = self.device.type == "cuda" if over_pool is None else over_pool
        steps = config.denoise_steps if denoise_steps is None else denoise_steps
        self._times = denoise_times(steps, config.time_rule)
        self._blocks = [block for block in network.blocks if isinstance(block, DecoderBlock)]
        self._expert_blocks = [block for block in network.expert.blocks if isinstance(block, ExpertBlock)]
        with torch.inference_mode():
            self._modulation = network.expert.modulate(torch.tensor(self._times, device=self.device))
        self._adapters = TextAdapters()
        self._prefixes: list[Prefix] = []
        b = config.backbone
        self.spec = ModelSpec(
            family="pi05",
            cameras=config.cameras,
            image_size=(config.vision.image_size, config.vision.image_size),
            joints=config.joints,
            action_joints=processor.action_joints if processor else (),
            representation="position",
            horizon=config.horizon,
            action_dim=config.action_dim,
            step=config.step,
            denoise_steps=steps,
            vocabulary=config.vocabulary,
            eos_ids=(config.eos_id,),
            max_prefix=config.max_prefix,
            cache_bytes_per_token=2 * b.depth * b.kv_heads * b.head_dim * network.embedding.element_size(),
        )

    # -- loading -----------------------------------------------------------------------------

    def load_adapter(self, folder: Path) -> None:
        """Load a text adapter (PEFT's LoRA folder); its name is the folder's."""
        b = self.config.backbone
        q, kv = b.heads * b.head_dim, b.kv_heads * b.head_dim
        self._adapters.load(
            folder,
            sizes={
                "qkv": (q, kv, kv),
                "out": (b.width,),
                "gate_up": (b.mlp_dim, b.mlp_dim),
                "down": (b.width,),
            },
            inputs={"qkv": b.width, "out": q, "gate_up": b.width, "down": b.mlp_dim},
            layers=b.depth,
            device=self.device,
            dtype=self.dtype,
        )

    @property
    def adapters(self) -> tuple[str, ...]:
        return tuple(self._adapters.names)

    def allocate(self, capacity: Capacity) -> None:
        c, b = self.config, self.config.backbone
        self.capacity = capacity
        self.pool = KvPool(
            capacity,
            layers=b.depth,
            kv_heads=b.kv_heads,
            head_dim=b.head_dim,
            max_prefix=c.max_prefix,
            workspace=c.horizon,
            device=self.device,
            dtype=self.dtype,
            over_pool=self._over_pool,
        )
        self._prefixes = [Prefix(0, 0)] * capacity.frames
        last = c.max_prefix + max(capacity.suffix_tokens, c.horizon)
        self._rotary = Rotary(b.head_dim, c.rope_base, last, self.device, self.dtype)

    def pool_bytes(self) -> int:
        return self.pool.bytes()

    # -- host side ---------------------------------------------------------------------------

    def process(self, observation: Observation) -> Inputs:
        return self._need_processor().process(observation, self.device, self.dtype)

    def unprocess(self, actions: torch.Tensor, observation: Observation) -> NDArray[np.float64]:
        return self._need_processor().unprocess(actions.cpu().numpy(), observation)

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> torch.Tensor:
        known = torch.from_numpy(self._need_processor().normalize(actions, observation))
        padded = torch.zeros(self.config.horizon, self.config.action_dim)
        padded[:, : known.shape[1]] = known
        return padded.to(self.device)

    def tokenize(self, text: str) -> list[int]:
        return self._need_processor().tokenize(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._need_processor().detokenize(ids)

    def _need_processor(self) -> Processor:
        if self.processor is None:
            raise ModelError("this network was made without a processor: it takes tensors, not observations")
        return self.processor

    # -- device side -------------------------------------------------------------------------

    @torch.inference_mode()
    def encode(self, inputs: Inputs, slot: int) -> Prefix:
        self._prefill(inputs, slot, with_hidden=False)
        return self._prefixes[slot]

    @torch.inference_mode()
    def encode_hidden(self, inputs: Inputs, slot: int) -> torch.Tensor:
        """As `encode`, and return the prefix's final hidden states [tokens, width]."""
        hidden: torch.Tensor = self.network.norm(self._prefill(inputs, slot, with_hidden=True))
        return hidden

    def _prefill(self, inputs: Inputs, slot: int, with_hidden: bool) -> torch.Tensor:
        parts = [self.network.embed(inputs.tokens)]
        if inputs.images.shape[0]:
            parts.insert(0, self.network.vision(inputs.images).flatten(0, 1))
        x = torch.cat(parts)
        count = x.shape[0]
        if not 0 < count <= self.config.max_prefix:
            raise ValueError(f"a prefix of {count} tokens does not fit a slot of {self.config.max_prefix}")
        places = self.pool.open_frame(slot, count)
        turn = self._rotary.at(slice(0, count))
        for layer, block in enumerate(self._blocks):
            keys, values = self.pool.keys[layer, :, places], self.pool.values[layer, :, places]
            if layer == len(self._blocks) - 1 and not with_hidden:
                # Readers take the last layer's K/V only; nobody reads what would come after it.
                k, v = block.keys_values(block.attention_norm(x), turn)
                keys.copy_(k.transpose(0, 1))
                values.copy_(v.transpose(0, 1))
                break
            q, k, v = block.project(x, turn)
            keys.copy_(k.transpose(0, 1))
            values.copy_(v.transpose(0, 1))
            x = block.merge(x, attend(q, keys, values))
        self._prefixes[slot] = Prefix(count, count)
        return x

    @torch.inference_mode()
    def denoise(self, slot: int, noise: torch.Tensor, guide: Guide | None = None) -> torch.Tensor:
        c = self.config
        prefix = self._prefixes[slot]
        turn = self._rotary.at(slice(prefix.next_position, prefix.next_position + c.horizon))
        seen = self.pool.frame_places(slot, workspace=c.horizon)
        own = slice(seen.stop - c.horizon, seen.stop)
        expert, eps, table = self.network.expert, c.expert.eps, self._modulation

        def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
            stream = expert.action_in(x.to(self.dtype))
            for layer, block in enumerate(self._expert_blocks):
                attention, mlp = table.attention[layer], table.mlp[layer]
                q, k, v = block.split(block.qkv(attention.norm(stream, step, eps)), turn)
                self.pool.keys[layer, :, own] = k.transpose(0, 1)
                self.pool.values[layer, :, own] = v.transpose(0, 1)
                attended = attend(q, self.pool.keys[layer, :, seen], self.pool.values[layer, :, seen])
                stream = torch.addcmul(stream, block.out(attended), attention.gate[step])
                stream = torch.addcmul(stream, block.mlp(mlp.norm(stream, step, eps)), mlp.gate[step])
            v_t: torch.Tensor = expert.action_out(table.final.norm(stream, step, eps))
            return v_t.float()

        actions = integrate(noise.float(), self._times, velocity, guide)
        self.pool.clear(own)
        return actions

    @torch.inference_mode()
    def extend(self, rows: Rows) -> torch.Tensor:
        live = slice(0, rows.count)
        view = self.pool.view(rows)
        turn = self._rotary.at(rows.position[live])
        adapt = None
        if self._adapters.names:
            self._adapters.select(rows.adapter[live])
            adapt = self._adapters.adapt
        x = self.network.embed(rows.token[live])
        for layer, block in enumerate(self._blocks):
            q, k, v = block.project(x, turn, adapt, layer)
            self.pool.store(layer, view.place, k, v)
            x = block.merge(x, self.pool.attend_rows(layer, q, view), adapt, layer)
        return self.network.logits(x[rows.wants_logits[: rows.wanted]])
