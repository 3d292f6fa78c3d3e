# SPDX-License-Identifier: Apache-2.0
"""Toy model families: the plainest one, and one for each freedom of the interface.

`ToyFamily` shows what a family must implement, with the shared parts of oxygen_ros.models; each class below
it shows one difference of other families. Random weights from a fixed seed; no file is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from models_scene import make_tokenizer
from numpy.typing import NDArray

from oxygen_ros.actions import ActionComponent, ActionSpace, ComponentKind, joint_space
from oxygen_ros.models import Capacity, ExpertSpec, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.models.decoder import Decoder
from oxygen_ros.models.flow import Flow, denoise_times, integrate
from oxygen_ros.models.layers import DecoderBlock, Rotary
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pool import KvPool, attend, attend_sources
from oxygen_ros.models.processing import check_joints, pick_cameras
from oxygen_ros.models.tokenizer import TextTokenizer
from oxygen_ros.observation import Observation

WIDTH, HEADS, HEAD_DIM, VOCABULARY = 16, 2, 8, 260
CAMERAS, JOINTS = ("front", "side"), ("lift", "turn", "grip")
MAX_WORDS = 64
MAX_PREFIX = len(CAMERAS) + 1 + MAX_WORDS
ARM = ExpertSpec("arm", joint_space(JOINTS), horizon=6, width=4, step=0.05, denoise_steps=2)


@dataclass(frozen=True)
class ToyInputs:
    """colors: [cameras there, 3], the mean of each image; joints: [J]; tokens: int64 [words]"""

    colors: torch.Tensor
    joints: torch.Tensor
    tokens: torch.Tensor


class ToyFamily(Model):
    """One decoder block. Its K/V stand in the prefix slot; the expert and the text read them there."""

    experts: ClassVar[tuple[ExpertSpec, ...]] = (ARM,)
    special: ClassVar[tuple[str, ...]] = ("<eos>", "<pad>")  # the first one ends a text
    can_rewind: ClassVar[bool] = True

    def __init__(self) -> None:
        self.device = torch.device("cpu")
        tokenizer = make_tokenizer(self.special)
        eos = tokenizer.token_to_id(self.special[0])
        self.tokenizer = TextTokenizer(tokenizer, VOCABULARY, [eos])
        self.spec = ModelSpec(
            family="toy",
            cameras=CAMERAS,
            image_size=(8, 8),
            joints=JOINTS,
            experts=self.experts,
            eos_ids=(eos,),
            feedback=("memory",),
            can_rewind=self.can_rewind,
        )
        self.flows = [Flow(denoise_times(e.denoise_steps, "ascending"), noise_at=0.0) for e in self.experts]
        with torch.random.fork_rng():
            torch.manual_seed(0)
            self.block = DecoderBlock(WIDTH, HEADS, 1, HEAD_DIM, 2 * WIDTH, 1e-6).requires_grad_(False)
            self.embedding = torch.randn(VOCABULARY, WIDTH)
            self.head = torch.randn(WIDTH, VOCABULARY)
            self.see, self.feel = torch.randn(3, WIDTH), torch.randn(len(JOINTS), WIDTH)
            self.action_in = [torch.randn(e.width, WIDTH) for e in self.experts]
            self.action_out = [torch.randn(WIDTH, e.width) / WIDTH for e in self.experts]

    def allocate(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.pool = KvPool(
            capacity, layers=1, heads=HEADS, kv_heads=1, head_dim=HEAD_DIM, max_prefix=MAX_PREFIX,
            device=self.device, dtype=torch.float32,
        )  # fmt: skip
        rotary = Rotary(HEAD_DIM, 10000.0, MAX_PREFIX + capacity.suffix_tokens, self.device, torch.float32)
        self.decoder = Decoder([self.block], self.pool, rotary, TextAdapters())

    def pool_bytes(self) -> int:
        return self.pool.bytes()

    # -- a tick ------------------------------------------------------------------------------

    def process(self, observation: Observation) -> ToyInputs:
        cameras = pick_cameras(observation, CAMERAS)
        check_joints(observation, JOINTS)
        self.check_instruction(observation.instruction)
        said = f"{observation.instruction} {observation.feedback.get('memory', '')}"
        colors = np.stack([observation.images[name].mean((0, 1)) / 255 for name in cameras])
        tokens = torch.tensor(self.tokenizer.encode(said)[:MAX_WORDS])
        return ToyInputs(
            torch.from_numpy(colors).float(), torch.from_numpy(observation.joints).float(), tokens
        )

    def check_instruction(self, instruction: str) -> None:
        count = len(self.tokenizer.encode(instruction))
        if count > MAX_WORDS:
            raise ValueError(f"the instruction has {count} tokens, there is room for {MAX_WORDS}: shorten it")

    def embed(self, inputs: ToyInputs) -> torch.Tensor:
        """The prefix [P, width]."""
        words = self.embedding[inputs.tokens]
        return torch.cat((inputs.colors @ self.see, (inputs.joints @ self.feel)[None], words))

    def encode(self, inputs: ToyInputs, slot: int) -> Prefix:
        x = self.embed(inputs)
        self.decoder.prefill(x, self.pool.open_prefix(slot, len(x)))
        return Prefix(len(x), len(x))

    def denoise(
        self, slot: int, noise: torch.Tensor, guide: Guide | None = None, expert: int = 0
    ) -> torch.Tensor:
        def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
            stream = x @ self.action_in[expert]
            return (stream + self.look(slot, stream)) @ self.action_out[expert]

        return integrate(noise, self.flows[expert], velocity, guide)

    def look(self, slot: int, stream: torch.Tensor) -> torch.Tensor:
        """What the action tokens [H, width] see of a prefix: [H, width]."""
        places = self.pool.prefix_places(slot)
        q = stream.view(-1, HEADS, HEAD_DIM)
        return attend(q, self.pool.keys[0][:, places], self.pool.values[0][:, places])

    def unprocess(
        self, actions: torch.Tensor, observation: Observation, expert: int = 0
    ) -> NDArray[np.float64]:
        return actions[:, : self.experts[expert].action_space.size].double().numpy()

    def normalize(
        self, actions: NDArray[np.float64], observation: Observation, expert: int = 0
    ) -> torch.Tensor:
        spec = self.experts[expert]
        padded = torch.zeros(spec.horizon, spec.width)
        padded[:, : spec.action_space.size] = torch.from_numpy(actions)
        return padded

    # -- text --------------------------------------------------------------------------------

    def extend(self, rows: Rows) -> torch.Tensor:
        hidden = self.decoder.extend(self.embedding[rows.token[: rows.count]], rows)
        return hidden[rows.wants_logits[: rows.wanted]] @ self.head

    def tokenize(self, template: str, words: Mapping[str, str] | None = None) -> list[int]:
        return self.tokenizer.tokenize(template, words)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self.tokenizer.detokenize(ids)

    @property
    def adapters(self) -> tuple[str, ...]:
        return ()


class LateText(ToyFamily):
    """The expert reads the embedded prefix; the K/V that only text reads are computed by `complete`."""

    def allocate(self, capacity: Capacity) -> None:
        super().allocate(capacity)
        self.embedded = torch.zeros(capacity.prefixes, MAX_PREFIX, WIDTH)
        self.lengths = [0] * capacity.prefixes
        self.is_complete = [False] * capacity.prefixes

    def encode(self, inputs: ToyInputs, slot: int) -> Prefix:
        x = self.embed(inputs)
        self.embedded[slot, : len(x)] = x
        self.lengths[slot], self.is_complete[slot] = len(x), False
        return Prefix(len(x), len(x))

    def look(self, slot: int, stream: torch.Tensor) -> torch.Tensor:
        seen = self.embedded[slot, : self.lengths[slot]]
        return (stream @ seen.T).softmax(-1) @ seen

    def complete(self, slot: int) -> None:
        x = self.embedded[slot, : self.lengths[slot]]
        self.decoder.prefill(x, self.pool.open_prefix(slot, len(x)))
        self.is_complete[slot] = True

    def extend(self, rows: Rows) -> torch.Tensor:
        early = [slot for slot, _, _ in rows.prefix_spans if not self.is_complete[slot]]
        if early:
            raise RuntimeError(f"prefix slot {early[0]} has no K/V yet: `complete` comes before text")
        return super().extend(rows)


class TwoExperts(ToyFamily):
    """Two action heads on one prefix, with different horizons, steps and action spaces."""

    experts = (
        ARM,
        ExpertSpec(
            name="hand",
            action_space=ActionSpace(
                (
                    ActionComponent("tool", ComponentKind.CARTESIAN_POSITION, "m", frame="base"),
                    ActionComponent("tool", ComponentKind.ROTATION, "1", frame="base", rotation="matrix_6d"),
                    ActionComponent("jaw", ComponentKind.GRIPPER, "m"),
                )
            ),
            horizon=3,
            width=12,
            step=0.1,
            denoise_steps=4,
        ),
    )


class Recurrent(ToyFamily):
    """The state after the prefix is one vector: `fork` copies it, rows advance their copy in place."""

    can_rewind = False
    DECAY = 0.95

    def allocate(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.prefix_states = torch.zeros(capacity.prefixes, WIDTH)
        self.suffix_states = torch.zeros(capacity.suffixes, WIDTH)

    def pool_bytes(self) -> int:
        return self.prefix_states.nbytes + self.suffix_states.nbytes

    def encode(self, inputs: ToyInputs, slot: int) -> Prefix:
        x = self.embed(inputs)
        self.prefix_states[slot] = 0
        for token in x:
            self.prefix_states[slot] = self.DECAY * self.prefix_states[slot] + token
        return Prefix(len(x), len(x))

    def look(self, slot: int, stream: torch.Tensor) -> torch.Tensor:
        return self.prefix_states[slot].expand_as(stream)

    def fork(self, slot: int, suffix_slot: int) -> None:
        self.suffix_states[suffix_slot] = self.prefix_states[slot]

    def extend(self, rows: Rows) -> torch.Tensor:
        hidden = self.embedding[rows.token[: rows.count]].clone()
        for slot, first, last in rows.suffix_spans:
            for row in range(first, last):
                hidden[row] += self.DECAY * self.suffix_states[slot]
                self.suffix_states[slot] = hidden[row]
        return hidden[rows.wants_logits[: rows.wanted]] @ self.head


class OwnPool(ToyFamily):
    """The expert's K/V of a prefix stand in a pool of their own, with other heads and sizes; its own tokens
    have yet another number of K/V heads."""

    EXPERT_HEADS, EXPERT_KV_HEADS, EXPERT_DIM = 4, 2, 4

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(1)
        self.to_kv = torch.randn(WIDTH, 2 * self.EXPERT_KV_HEADS * self.EXPERT_DIM, generator=generator)

    def allocate(self, capacity: Capacity) -> None:
        super().allocate(capacity)
        self.expert_pool = KvPool(
            capacity, layers=1, kv_heads=self.EXPERT_KV_HEADS, head_dim=self.EXPERT_DIM,
            max_prefix=MAX_PREFIX, device=self.device, dtype=torch.float32,
        )  # fmt: skip

    def pool_bytes(self) -> int:
        return self.pool.bytes() + self.expert_pool.bytes()

    def encode(self, inputs: ToyInputs, slot: int) -> Prefix:
        prefix = super().encode(inputs, slot)
        kv = (self.embed(inputs) @ self.to_kv).view(prefix.tokens, 2, self.EXPERT_KV_HEADS, self.EXPERT_DIM)
        self.expert_pool.put(0, self.expert_pool.open_prefix(slot, prefix.tokens), kv[:, 0], kv[:, 1])
        return prefix

    def look(self, slot: int, stream: torch.Tensor) -> torch.Tensor:
        places = self.expert_pool.prefix_places(slot)
        q = stream.view(-1, self.EXPERT_HEADS, self.EXPERT_DIM)
        own = q.transpose(0, 1)  # the chunk's own keys and values: one K/V head for each query head
        prefix = self.expert_pool.keys[0][:, places], self.expert_pool.values[0][:, places], None
        return attend_sources(q, [prefix, (own, own, None)])


class Chat(ToyFamily):
    """Prompts are chat turns: their special tokens are honored, a person's words are never parsed for any."""

    special = ("<|im_end|>", "<|im_start|>")
    TURN: ClassVar[str] = "<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
