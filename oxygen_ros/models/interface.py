# SPDX-License-Identifier: Apache-2.0
"""The interface a model family implements, and the few values that cross it.

The engine uses models only through this file. The families it was designed for (pi05 is implemented; the
others were checked on paper against their reference data):

=============== ============================ =========================== ===========================
family          `encode` leaves in the slot  `denoise` reads             `extend` reads
=============== ============================ =========================== ===========================
pi05            K/V of every layer           K/V of the same layer,      K/V of every layer,
                (bidirectional prefix)       S Euler steps, adaRMS       causal suffix
xiaomi_xr0      K/V of every layer; state;   K/V of the *last n* layers, K/V of every layer;
                largest position per axis;   causal queries from         `position` from
                action mask                  largest position + 1        `Prefix.next_position`
starvla_pi_v3   every layer's hidden states, layer i reads projected     as xiaomi_xr0 (mRoPE: the
                projected; `complete` adds   hidden state i              next position is not the
                the K/V only text needs                                  number of tokens)
starvla_gr00t   last hidden state; robot     last hidden state, S steps  as starvla_pi_v3
                state; `complete` as above
starvla_oft     the N gathered hidden        the N gathered states, one  K/V of the tokens before
                states; K/V up to the action pass; `noise` is ignored    the placeholders:
                placeholders                                             `Prefix.tokens` stops there
recurrent       the state after the prefix   that state                  a copy of it per suffix
(hybrid) models                                                          slot: `fork`; no rewinding
=============== ============================ =========================== ===========================

Several heads on one backbone are several experts of one model. The content of a slot is private to the
family: the engine only assigns slot numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.actions import ActionSpace
from oxygen_ros.observation import Observation

# Sizes of a decode step for which costs are kept and device programs are captured.
ROW_BUCKETS = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, slots=True)
class ExpertSpec:
    """One action head; fixed after load.

    name:           unique among the model's experts
    action_space:   of what `unprocess` returns [A]; joints are named as in `ModelSpec.joints`
    horizon:        H, actions in one chunk
    width:          D, numbers of one action inside the model (>= A; the rest is padding)
    step:           seconds between two actions of a chunk
    denoise_steps:  S, integration steps of one chunk
    """

    name: str
    action_space: ActionSpace
    horizon: int
    width: int
    step: float
    denoise_steps: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """What the engine and the robot side need of a model; fixed after load.

    family:      name of the family, e.g. "pi05"
    cameras:     camera names, in the model's order; a camera absent from an observation is masked
    image_size:  (height, width) [px] the vision tower sees
    joints:      joint names, in the order of the state vector [J]
    experts:     the action heads, all of which read the same prefix
    eos_ids:     token ids that end a text
    feedback:    text kinds that the prompt has a place for, see `Observation.feedback`
    can_rewind:  whether rows of a suffix may be written over. False for recurrent state: no drafts then
    """

    family: str
    cameras: tuple[str, ...]
    image_size: tuple[int, int]
    joints: tuple[str, ...]
    experts: tuple[ExpertSpec, ...]
    eos_ids: tuple[int, ...]
    feedback: tuple[str, ...] = ()
    can_rewind: bool = True


@dataclass(frozen=True, slots=True)
class Capacity:
    """The sizes of the static pools, in slots and tokens. Set once; nothing grows afterwards.

    prefixes:       slots for encoded observations
    suffixes:       slots for text requests
    suffix_tokens:  tokens one suffix slot holds (prompt suffix + text + draft room)
    max_rows:       most rows of one `extend`
    """

    prefixes: int
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
    """Pulls a new chunk towards what will have been executed (real-time chunking).

    previous:    [H, D] actions in the model's normalized units
    weights:     [H, D] in 0..1; all zero means no guidance
    max_weight:  upper bound of the guidance weight
    """

    previous: torch.Tensor
    weights: torch.Tensor
    max_weight: float = 10.0


class Rows:
    """The rows of one `extend`: one row is one token of one request.

    Persistent device tensors of `max_rows` entries, made once; the first `count` hold a step.
    The engine writes them; a model only reads them. Rows of one prefix stand together; within them rows of
    one suffix, in the order of their positions.

    token, position, prefix_slot, suffix_slot, write_at, adapter:  int64 [max_rows]
        `write_at` is the place in the suffix slot this row's state goes to; the row attends to its
        prefix and to places 0..write_at of its suffix slot. `adapter` 0 is none.
    wants_logits:  int64 [max_rows]; the first `wanted` are indices of rows whose logits are wanted

    On the host, for loops over slots:
    prefix_spans, suffix_spans:  (slot, first row, one past the last row), in the order of the rows
    longest:       largest `write_at` + 1
    """

    FIELDS = ("token", "position", "prefix_slot", "suffix_slot", "write_at", "adapter", "wants_logits")

    def __init__(self, max_rows: int, device: torch.device) -> None:
        self.max_rows = max_rows
        self.block = torch.zeros(len(self.FIELDS), max_rows, dtype=torch.int64, device=device)
        (
            self.token,
            self.position,
            self.prefix_slot,
            self.suffix_slot,
            self.write_at,
            self.adapter,
            self.wants_logits,
        ) = self.block.unbind(0)
        self.count = 0
        self.wanted = 0
        self.longest = 0
        self.prefix_spans: Sequence[tuple[int, int, int]] = ()
        self.suffix_spans: Sequence[tuple[int, int, int]] = ()


class Model(ABC):
    """One model family, loaded. All calls come from one thread: the engine's owner. Methods that compute run
    under `torch.inference_mode()`, which the family sets."""

    spec: ModelSpec
    device: torch.device
    capacity: Capacity

    @abstractmethod
    def allocate(self, capacity: Capacity) -> None:
        """Make the static pools. Called once, before the first `encode`; drops earlier pools."""

    def prepare(self, inputs: Any) -> str:
        """Prepare for prefixes like `inputs`, from `process`: capture device programs (CUDA graphs), create
        kernels for every size that can occur.

        Called once after `allocate`, before the first tick; the content of the pools is lost. Returns why
        passes are slower than necessary (no capture; a build of torch lacks an operator), else "".
        """
        return ""

    # -- a tick ------------------------------------------------------------------------------

    @abstractmethod
    def process(self, observation: Observation) -> Any:
        """Tokenize, resize and normalize an observation (host side).

        Raises ValueError that names the camera, joint or text which does not fit the model.
        """

    def check_instruction(self, instruction: str) -> None:  # noqa: B027 - a prompt without a limit is allowed
        """Raise ValueError when no prompt has room for the instruction, whatever the joints. Fast."""

    @abstractmethod
    def encode(self, inputs: Any, slot: int) -> Prefix:
        """Run the backbone over the prefix and leave in prefix slot `slot` what the action experts read."""

    @abstractmethod
    def denoise(
        self, slot: int, noise: torch.Tensor, guide: Guide | None = None, expert: int = 0
    ) -> torch.Tensor:
        """Actions [H, D] (normalized) of an expert from prefix `slot` and `noise` [H, D].

        The prefix is not changed.
        """

    @abstractmethod
    def unprocess(
        self, actions: torch.Tensor, observation: Observation, expert: int = 0
    ) -> NDArray[np.float64]:
        """Normalized actions [H, D] to the expert's action space [H, A]."""

    @abstractmethod
    def normalize(
        self, actions: NDArray[np.float64], observation: Observation, expert: int = 0
    ) -> torch.Tensor:
        """`unprocess` undone: actions [H, A] to normalized float32 [H, D] on the model's device.

        Deltas inside the model are taken from `observation`, whichever one the actions were made from: so a
        guide made of the last chunk is relative to the new observation. Padding beyond A is zero, as in
        training.
        """

    # -- text --------------------------------------------------------------------------------

    def complete(self, slot: int) -> None:  # noqa: B027 - nothing to do is the usual case
        """Add to prefix `slot` what only text reads. Called after the actions left, before the first `fork`
        or row of that prefix, once; not at all when no text is asked about it."""

    def fork(self, slot: int, suffix_slot: int) -> None:  # noqa: B027 - nothing to do is the usual case
        """Prepare a fresh suffix slot that continues prefix `slot`. Only recurrent state needs copying."""

    @abstractmethod
    def extend(self, rows: Rows) -> torch.Tensor:
        """One forward pass over `rows.count` rows; logits [rows.wanted, vocabulary]."""

    @abstractmethod
    def tokenize(self, template: str, words: Mapping[str, str] | None = None) -> list[int]:
        """Token ids of a prompt template. Special tokens that the template itself spells are honored (chat
        turns); "{name}" is replaced by words["name"], in which nothing is parsed for special tokens."""

    @abstractmethod
    def detokenize(self, ids: Sequence[int]) -> str:
        """Text of token ids; special ids, control characters and leading white space are left out."""

    @property
    @abstractmethod
    def adapters(self) -> tuple[str, ...]:
        """Names of the loaded text adapters; adapter id i + 1 is the i-th."""

    @abstractmethod
    def pool_bytes(self) -> int:
        """Bytes of the static pools."""
