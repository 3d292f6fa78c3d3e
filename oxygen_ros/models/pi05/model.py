# SPDX-License-Identifier: Apache-2.0
"""pi0.5 as the engine runs it: prefill into a slot, denoise from it, extend text from it.

Here live its slots and what runs where. The arithmetic is `passes`, the same with static shapes `programs`;
weights are `network`, prompts are `processor`.
The prefix is packed: masked cameras and padding are not computed, and take no position.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.graphs import Recorder, find_recorder
from oxygen_ros.models.interface import Capacity, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.models.layers import Rotary
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pi05.expert import denoise_times
from oxygen_ros.models.pi05.flow import integrate
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.passes import PACKED_ROWS, Passes, Reading
from oxygen_ros.models.pi05.processor import Inputs, Processor
from oxygen_ros.models.pi05.programs import Programs
from oxygen_ros.models.pool import KvPool, align
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
        recorder: Recorder | None = None,
    ) -> None:
        """processor:   None for a bare network (golden data, benchmarks): inputs come as tensors
        denoise_steps:  S; default the checkpoint's
        over_pool:      see KvPool; default on GPUs
        recorder:       what `record` records with; default the device's own, none on CPUs. Needs over_pool

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
        with torch.inference_mode():
            self._modulation = network.expert.modulate(torch.tensor(self._times, device=self.device))
        self._adapters = TextAdapters()
        self._recorder = recorder
        self._programs: Programs | None = None
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
        """Load a text adapter (PEFT's LoRA folder); its name is the folder's. Before `record`."""
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
            heads=b.heads,
            kv_heads=b.kv_heads,
            head_dim=b.head_dim,
            max_prefix=c.max_prefix,
            workspace=c.horizon,
            device=self.device,
            dtype=self.dtype,
            over_pool=self._over_pool,
        )
        self._prefixes = [Prefix(0, 0)] * capacity.frames
        last = c.max_prefix + max(capacity.suffix_tokens, c.horizon, PACKED_ROWS)
        self._rotary = Rotary(b.head_dim, c.rope_base, last, self.device, self.dtype)
        self._programs = None
        self._passes = Passes(
            self.network, self._times, self._modulation, self._adapters, self.pool, self._rotary
        )

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
    def record(self, inputs: Inputs) -> str:
        self._programs = None
        # A new one each time: memory of device programs goes with the last of them.
        recorder = self._recorder or find_recorder(self.device)
        if recorder is None or not self.pool.over_pool:
            self._passes.meet(self._row_counts(inputs.images.shape[0]))
            return self.network.lack
        # Every slot needs a prefix that is there: recording runs over all of them.
        self.encode(inputs, 0)
        try:
            self._programs = Programs(self._passes, recorder, inputs.images.shape[0], self.capacity.max_rows)
        except RuntimeError as error:
            return f"{self.device} cannot record its passes ({error}); they are launched kernel by kernel"
        return ""

    def _row_counts(self, cameras: int) -> list[int]:
        """Rows of every decode step and of every prefill over packed layers that there can be."""
        images = cameras * self.config.vision.tokens
        prefixes = range(images, images + self.config.max_prompt + PACKED_ROWS)
        return [*range(1, self.capacity.max_rows + 1), *(n for n in prefixes if n % PACKED_ROWS == 0)]

    @torch.inference_mode()
    def encode(self, inputs: Inputs, slot: int) -> Prefix:
        count = self._count(inputs)
        places = self.pool.open_frame(slot, count)
        if self._programs is None or not self._programs.prefill(inputs, places.start):
            self._passes.prefill(self._passes.embed(inputs.images, inputs.tokens), places)
        self._prefixes[slot] = Prefix(count, count)
        return self._prefixes[slot]

    @torch.inference_mode()
    def encode_hidden(self, inputs: Inputs, slot: int) -> torch.Tensor:
        """As `encode`, and return the prefix's final hidden states [tokens, width]."""
        count = self._count(inputs)
        x = self._passes.embed(inputs.images, inputs.tokens)
        x = self._passes.prefill(x, self.pool.open_frame(slot, count), with_hidden=True)
        self._prefixes[slot] = Prefix(count, count)
        hidden: torch.Tensor = self.network.norm(x)
        return hidden

    def _count(self, inputs: Inputs) -> int:
        """Tokens of the prefix; ValueError when no slot holds them."""
        count = inputs.images.shape[0] * self.config.vision.tokens + inputs.tokens.shape[0]
        if not 0 < count <= self.config.max_prefix:
            raise ValueError(f"a prefix of {count} tokens does not fit a slot of {self.config.max_prefix}")
        return count

    @torch.inference_mode()
    def denoise(self, slot: int, noise: torch.Tensor, guide: Guide | None = None) -> torch.Tensor:
        horizon = self.config.horizon
        prefix = self._prefixes[slot]
        seen = self.pool.frame_places(slot, workspace=horizon)
        if self._programs is not None:
            return self._programs.denoise(seen.start, prefix.tokens, prefix.next_position, noise, guide)
        read, bias = seen, None
        if self.dtype != torch.float32:
            read = slice(seen.start, seen.start + align(prefix.tokens + horizon))
            bias = torch.zeros(read.stop - read.start, dtype=self.dtype, device=self.device)
            bias[prefix.tokens + horizon :] = float("-inf")
        reading = Reading(
            keys=self.pool.keys[:, :, read],
            values=self.pool.values[:, :, read],
            own=slice(prefix.tokens, prefix.tokens + horizon),
            turn=self._rotary.at(slice(prefix.next_position, prefix.next_position + horizon)),
            bias=bias,
        )
        passes = self._passes
        actions = integrate(
            noise.float(), self._times, lambda x, step: passes.velocity(x, step, reading), guide
        )
        self.pool.clear(slice(seen.stop - horizon, seen.stop))
        return actions

    @torch.inference_mode()
    def extend(self, rows: Rows) -> torch.Tensor:
        if self._programs is not None:
            return self._programs.extend(rows)
        return self._passes.extend(rows)
