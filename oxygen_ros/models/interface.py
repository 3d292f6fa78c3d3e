# SPDX-License-Identifier: Apache-2.0
"""The interface a model family implements, and the few values that cross it.

Here lives no computation and no family. The engine knows models only through this file.

The families it was designed against (pi05 is implemented; the others were checked on paper against
their reference data):

=============== ============================ =========================== ===========================
family          `encode` leaves in the slot  `denoise` reads             `extend` reads
=============== ============================ =========================== ===========================
pi05            K/V of every layer           K/V of the same layer,      K/V of every layer,
                (bidirectional prefix)       S Euler steps, adaRMS       causal suffix
xiaomi_xr0      K/V of every layer; state;   K/V of the *last n* layers, K/V of every layer;
                largest position per axis;   causal queries from         `position` from
                action mask                  largest position + 1        `Prefix.next_position`
starvla_pi_v3   K/V of every layer; every    layer i reads projected     as xiaomi_xr0 (mRoPE: the
                layer's hidden states, at    hidden state i (its         next position is not the
                best already projected       cross K/V can be made       number of tokens)
                                             in `encode`)
starvla_gr00t   K/V of every layer; last     last hidden state, S steps  as starvla_pi_v3
                hidden state; robot state
starvla_oft     K/V of every layer up to     the N gathered hidden       K/V of the tokens before
                the action placeholders;     states, one pass; `noise`   the placeholders:
                the N gathered states        is ignored                  `Prefix.tokens` stops there
recurrent       the state after the prefix   that state                  a fork of it per suffix
(hybrid) models                                                          slot: `fork`
=============== ============================ =========================== ===========================

So a slot belongs to the family: the engine hands out slot numbers and never looks inside.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.observation import Observation

# Sizes of a decode step for which costs are kept and device programs are recorded.
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the engine and the robot side must know of a model; fixed after load.

    family:          name of the family, e.g. "pi05"
    cameras:         camera names, in the model's order; a camera absent from an observation is masked
    image_size:      (height, width) [px] the vision tower sees
    joints:          joint names, in the order of the state vector [J]
    action_joints:   joint names the actions are for [A]; a subset of `joints`, in the actions' order
    representation:  of what `unprocess` returns: "position" (it makes deltas absolute) | "velocity"
    horizon:         H, actions in one chunk
    action_dim:      D, width of one action inside the model (>= A; the rest is padding)
    step:            seconds between two actions of a chunk
    denoise_steps:   S, Euler steps of one chunk
    vocabulary:      number of token ids
    eos_ids:         ids that end a text
    max_prefix:      P, the largest number of prefix tokens
    cache_bytes_per_token: bytes one cached token takes over all layers
    """

    family: str
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    joints: tuple[str, ...]
    action_joints: tuple[str, ...]
    representation: str
    horizon: int
    action_dim: int
    step: float
    denoise_steps: int
    vocabulary: int
    eos_ids: tuple[int, ...]
    max_prefix: int
    cache_bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The sizes of the static pools, in slots and tokens. Set once; nothing grows afterwards.

    frames:         slots for prefixes
    suffixes:       slots for text requests
    suffix_tokens:  tokens one suffix slot holds (prompt suffix + text + draft room)
    max_rows:       most rows of one `extend`
    """

    frames: int
    suffixes: int
    suffix_tokens: int
    max_rows: int


@dataclass(frozen=True, slots=True)
class Prefix:
    """What `encode` reports of the prefix it left in a slot.

    tokens:         valid tokens in the slot
    next_position:  position of the first token after it (equal to `tokens` except under mRoPE)
    """

    tokens: int
    next_position: int


@dataclass(frozen=True, slots=True)
class Guide:
    """Pulls a new chunk towards what will have been executed (chunk joining).

    previous:    [H, D] actions in the model's normalised units
    weights:     [H, D] in 0..1; all zero means no guidance
    max_weight:  upper bound of the guidance weight
    """

    previous: torch.Tensor
    weights: torch.Tensor
    max_weight: float = 10.0


class Rows:
    """The rows of one `extend`: one row is one token of one request.

    Persistent device tensors of `max_rows` entries, made once; the first `count` hold a step.
    The engine writes them; a model only reads them. Rows of one frame stand together.

    token, position, frame_slot, suffix_slot, write_at, adapter:  int64 [max_rows]
        `write_at` is the place in the suffix slot this row's K/V goes to; the row attends to its
        frame's prefix and to places 0..write_at of its suffix slot. `adapter` 0 is none.
    wants_logits:  int64 [max_rows]; the first `wanted` are indices of rows whose logits are wanted
    frame_spans:   (frame_slot, first row, one past the last row) on the host, for loops over frames
    longest:       largest `write_at` + 1, on the host
    """

    FIELDS = ("token", "position", "frame_slot", "suffix_slot", "write_at", "adapter", "wants_logits")

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.max_rows = max_rows
        self.block = torch.zeros(len(self.FIELDS), max_rows, dtype=torch.int64, device=device)
        (
            self.token,
            self.position,
            self.frame_slot,
            self.suffix_slot,
            self.write_at,
            self.adapter,
            self.wants_logits,
        ) = self.block.unbind(0)
        self.count = 0
        self.wanted = 0
        self.longest = 0
        self.frame_spans: Sequence[tuple[int, int, int]] = ()


class Model(ABC):
    """One model family, loaded. All calls come from one thread: the engine's owner."""

    spec: ModelSpec
    device: torch.device
    capacity: Capacity

    @abstractmethod
    def allocate(self, capacity: Capacity) -> None:
        """Make the static pools. Called once, before the first `encode`; drops earlier pools."""

    @abstractmethod
    def process(self, observation: Observation) -> Any:
        """Tokenise, resize and normalise an observation (host side).

        Raises ValueError that names the camera, joint or text which does not fit the model.
        """

    @abstractmethod
    def encode(self, inputs: Any, slot: int) -> Prefix:
        """Run the backbone once over the prefix and leave in frame `slot` what later readers need."""

    @abstractmethod
    def denoise(self, slot: int, noise: torch.Tensor, guide: Guide | None = None) -> torch.Tensor:
        """Actions [H, D] (normalised) from frame `slot` and `noise` [H, D]; the prefix is not changed."""

    @abstractmethod
    def extend(self, rows: Rows) -> torch.Tensor:
        """One forward pass over `rows.count` rows; logits [rows.wanted, vocabulary]."""

    @abstractmethod
    def unprocess(self, actions: torch.Tensor, observation: Observation) -> NDArray[np.float64]:
        """Normalised actions [H, D] to robot units [H, A] (rad, m; absolute positions for deltas)."""

    @abstractmethod
    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> torch.Tensor:
        """`unprocess` undone: robot units [H, A] to normalised float32 [H, D] on the model's device.

        Deltas are taken from `observation`, whichever one the actions were made from: so a guide made of
        the chunk before is in the frame of the new one. Padding beyond A is zero, as in training.
        """

    @abstractmethod
    def tokenize(self, text: str) -> list[int]:
        """Token ids of plain text; special tokens are never parsed out of it."""

    @abstractmethod
    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids; special ids, control characters and leading white space are left out."""

    def record(self, inputs: Any) -> str:
        """Record device programs (CUDA graphs) for prefixes like `inputs`, which `process` made.

        Called once after `allocate`, before the first real tick; what stands in the pools is lost. Returns
        why passes are slower here than they need be (nothing could be recorded; a build of torch lacks an
        operator); "" when all is well, or where there is nothing to record.
        """
        return ""

    def fork(self, slot: int, suffix_slot: int) -> None:  # noqa: B027 - nothing to do is the usual case
        """Prepare a fresh suffix slot that continues frame `slot`. Only recurrent state needs copying."""

    @property
    @abstractmethod
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded text adapters; adapter id i + 1 is the i-th."""

    @abstractmethod
    def pool_bytes(self) -> int:
        """Bytes of the static pools."""
