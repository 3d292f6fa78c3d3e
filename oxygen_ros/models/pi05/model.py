# SPDX-License-Identifier: Apache-2.0
"""pi0.5 as the engine runs it: prefill into a slot, denoise from it, extend text from it.

The arithmetic is in `passes`, weights in `network`, prompts in `processor` and `lerobot`.
The prefix is packed: masked cameras and padding are not computed, and take no position.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.actions import joint_space
from oxygen_ros.models.decoder import PACKED_ROWS
from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.flow import Flow, denoise_times, integrate
from oxygen_ros.models.graphs import Capturer, find_capturer
from oxygen_ros.models.interface import Capacity, ExpertSpec, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.models.layers import Rotary
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pi05.config import read_config
from oxygen_ros.models.pi05.lerobot import LerobotProcessor
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.passes import Passes, Pi05StaticPasses, Reading
from oxygen_ros.models.pi05.processor import Pi05Inputs, PlainProcessor, Processor
from oxygen_ros.models.pi05.weights import load_network
from oxygen_ros.models.pool import KvPool, align
from oxygen_ros.models.programs import Programs
from oxygen_ros.observation import Observation


def load(
    folder: Path,
    raw: dict[str, Any],
    *,
    device: torch.device,
    dtype: torch.dtype,
    denoise_steps: int | None,
    adapters: Sequence[Path],
    should_stop: Callable[[], bool] | None,
) -> Pi05:
    """Load weights, processor and text adapters; errors as in `load_model`.

    Folders of our own format have "model_type" in config.json, lerobot's have "type".
    """
    config = read_config(folder, raw)
    processor: Processor
    if raw.get("type") == "pi05":
        processor = lerobot = LerobotProcessor.load(folder, config, raw)
        config = lerobot.config
    else:
        processor = PlainProcessor.load(folder, config, raw)
    network = load_network(folder, config, device, dtype, should_stop)
    network.pack()
    model = Pi05(network, processor, denoise_steps=denoise_steps)
    for adapter in adapters:
        model.load_adapter(adapter)
    return model


class Pi05(Model):
    """A loaded pi0.5 network with its processor. One thread owns it."""

    def __init__(
        self,
        network: Network,
        processor: Processor | None,
        *,
        denoise_steps: int | None = None,
        over_pool: bool | None = None,
        capturer: Capturer | None = None,
    ) -> None:
        """processor:   None for a bare network (golden data, benchmarks): inputs come as tensors
        denoise_steps:  S; default the checkpoint's
        over_pool:      see KvPool; default on GPUs
        capturer:       what `prepare` captures with; default the device's own, none on CPUs. Needs over_pool

        Raises ModelError when denoise_steps is below 1.
        """
        self.network = network
        self.processor = processor
        config = self.config = network.config
        self.device = network.embedding.device
        self.dtype = network.embedding.dtype
        self._over_pool = self.device.type == "cuda" if over_pool is None else over_pool
        steps = config.denoise_steps if denoise_steps is None else denoise_steps
        self.flow = Flow(denoise_times(steps, config.time_rule))
        with torch.inference_mode():
            self._modulation = network.expert.modulate(torch.tensor(self.flow.times, device=self.device))
        self._adapters = TextAdapters()
        self._capturer = capturer
        self._programs: Programs | None = None
        unnamed = joint_space(f"action{i + 1}" for i in range(config.action_dim))
        expert = ExpertSpec(
            name="actions",
            action_space=processor.action_space if processor else unnamed,
            horizon=config.horizon,
            width=config.action_dim,
            step=config.step,
            denoise_steps=steps,
        )
        self.spec = ModelSpec(
            family="pi05",
            cameras=config.cameras,
            image_size=(config.vision.image_size, config.vision.image_size),
            joints=config.joints,
            experts=(expert,),
            eos_ids=(config.eos_id,),
            feedback=processor.feedback if processor else (),
        )

    def load_adapter(self, folder: Path) -> None:
        """Load a text adapter (PEFT's LoRA folder); its name is the folder's. Before `prepare`."""
        self._adapters.load(folder, self.network.blocks, self.device, self.dtype)

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
        last = c.max_prefix + max(capacity.suffix_tokens, c.horizon, PACKED_ROWS)
        rotary = Rotary(b.head_dim, c.rope_base, last, self.device, self.dtype)
        self._programs = None
        self._passes = Passes(self.network, self._modulation, self._adapters, self.pool, rotary)

    def pool_bytes(self) -> int:
        return self.pool.bytes()

    def process(self, observation: Observation) -> Pi05Inputs:
        return self._need_processor().process(observation, self.device, self.dtype)

    def check_instruction(self, instruction: str) -> None:
        self._need_processor().check_instruction(instruction)

    def unprocess(
        self, actions: torch.Tensor, observation: Observation, expert: int = 0
    ) -> NDArray[np.float64]:
        return self._need_processor().unprocess(actions.cpu().numpy(), observation)

    def normalize(
        self, actions: NDArray[np.float64], observation: Observation, expert: int = 0
    ) -> torch.Tensor:
        known = torch.from_numpy(self._need_processor().normalize(actions, observation))
        padded = torch.zeros(self.config.horizon, self.config.action_dim)
        padded[:, : known.shape[1]] = known
        return padded.to(self.device)

    def tokenize(self, template: str, words: Mapping[str, str] | None = None) -> list[int]:
        return self._need_processor().tokenizer.tokenize(template, words)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._need_processor().tokenizer.detokenize(ids)

    def _need_processor(self) -> Processor:
        if self.processor is None:
            raise ModelError("this network was made without a processor: it takes tensors, not observations")
        return self.processor

    @torch.inference_mode()
    def prepare(self, inputs: Pi05Inputs) -> str:
        self._programs = None
        # A new one each time: memory of device programs is freed with the last of them.
        capturer = self._capturer or find_capturer(self.device)
        if capturer is None or not self.pool.over_pool:
            images = inputs.images.shape[0] * self.config.vision.tokens
            prefixes = range(images, images + self.config.max_prompt + 1)
            self._passes.decoder.create_kernels(self.capacity.max_rows, prefixes)
            return self.network.packing_problem
        # A capture runs over the prefix in a slot.
        self.encode(inputs, 0)
        static = Pi05StaticPasses(self._passes, inputs.images.shape[0])
        experts = [(self.spec.experts[0], self.flow)]
        try:
            self._programs = Programs(static, experts, capturer, self.capacity.max_rows, self.device)
        except RuntimeError as error:
            return f"{self.device} cannot capture its passes ({error}); they are launched kernel by kernel"
        return ""

    @torch.inference_mode()
    def encode(self, inputs: Pi05Inputs, slot: int) -> Prefix:
        count = self._count(inputs)
        places = self.pool.open_prefix(slot, count)
        if self._programs is None or not self._programs.prefill(inputs, slot):
            self._passes.decoder.prefill(self._passes.embed(inputs.images, inputs.tokens), places)
        return Prefix(count, count)

    @torch.inference_mode()
    def encode_hidden(self, inputs: Pi05Inputs, slot: int) -> torch.Tensor:
        """As `encode`, and return the prefix's final hidden states [tokens, width]."""
        places = self.pool.open_prefix(slot, self._count(inputs))
        x = self._passes.embed(inputs.images, inputs.tokens)
        hidden: torch.Tensor = self.network.norm(self._passes.decoder.prefill(x, places, with_hidden=True))
        return hidden

    def _count(self, inputs: Pi05Inputs) -> int:
        """Tokens of the prefix; ValueError when no slot holds them."""
        count = inputs.images.shape[0] * self.config.vision.tokens + inputs.tokens.shape[0]
        if not 0 < count <= self.config.max_prefix:
            raise ValueError(f"a prefix of {count} tokens does not fit a slot of {self.config.max_prefix}")
        return count

    @torch.inference_mode()
    def denoise(
        self, slot: int, noise: torch.Tensor, guide: Guide | None = None, expert: int = 0
    ) -> torch.Tensor:
        if self._programs is not None:
            return self._programs.denoise(slot, noise, guide, expert)
        horizon = self.config.horizon
        seen = self.pool.prefix_places(slot, workspace=horizon)
        count = seen.stop - seen.start - horizon
        read, bias = seen, None
        if self.dtype != torch.float32:
            read = slice(seen.start, seen.start + align(count + horizon))
            bias = torch.zeros(read.stop - read.start, dtype=self.dtype, device=self.device)
            bias[count + horizon :] = float("-inf")
        passes = self._passes
        reading = Reading(
            keys=self.pool.keys[:, :, read],
            values=self.pool.values[:, :, read],
            own=slice(count, count + horizon),
            turn=passes.rotary.at(slice(count, count + horizon)),
            bias=bias,
        )
        actions = integrate(
            noise.float(), self.flow, lambda x, step: passes.velocity(x, step, reading), guide
        )
        self.pool.clear(slice(seen.stop - horizon, seen.stop))
        return actions

    @torch.inference_mode()
    def extend(self, rows: Rows) -> torch.Tensor:
        if self._programs is not None:
            return self._programs.extend(rows)
        return self._passes.extend(rows)
