# SPDX-License-Identifier: Apache-2.0
"""Observations to pi0.5 inputs and actions back, for checkpoints of our own format.

Prompt:  <bos> Task: <instruction>. [Subtask: <subtask>.] [Memory: <memory>] State: <one token per joint>
Action:

The entry "feedback" of config.json sets which texts are fed back, in which order and with which template.
The processor of lerobot's checkpoints is in `lerobot`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer

from oxygen_ros.actions import ActionSpace, joint_space
from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.images import resize_with_pad
from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.processing import (
    STATE_BINS,
    HostToDevice,
    Quantiles,
    bin_state,
    check_joints,
    pick_cameras,
    read_action_space,
)
from oxygen_ros.models.tokenizer import TextTokenizer, read_tokenizer
from oxygen_ros.observation import Observation

# Text kind -> its template in the prompt, in the order of the prompt.
FEEDBACK: Final[Mapping[str, str]] = {"subtask": " Subtask: {text}.", "memory": " Memory: {text}"}


@dataclass(frozen=True, slots=True)
class Pi05Inputs:
    """The network's inputs, masked cameras left out.

    images:  [cameras, 3, S, S] in -1..1, in the model's camera order
    tokens:  int64 [prompt tokens]
    """

    images: torch.Tensor
    tokens: torch.Tensor


class Processor(Protocol):
    """The host side of a pi0.5 checkpoint.

    action_space:  of what `unprocess` returns [A]
    feedback:      text kinds that the prompt has a place for
    """

    action_space: ActionSpace
    feedback: tuple[str, ...]
    tokenizer: TextTokenizer

    def process(self, observation: Observation, device: torch.device, dtype: torch.dtype) -> Pi05Inputs: ...

    def check_instruction(self, instruction: str) -> None: ...

    def unprocess(self, actions: NDArray[np.float32], observation: Observation) -> NDArray[np.float64]: ...

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> NDArray[np.float32]: ...


class PlainProcessor:
    """The processor of our own checkpoint folders: tokenizer.json, norm_stats.json, config.json."""

    def __init__(
        self, config: Pi05Config, tokenizer: Tokenizer, raw: Mapping[str, Any], stats: Mapping[str, Any]
    ) -> None:
        """raw, stats: content of config.json, and of norm_stats.json's "norm_stats"."""
        joints = config.joints
        if not joints:
            raise ModelError('config.json: "joints" must name the joints of the state')
        space = self.action_space = _read_actions(config, raw)
        self.tokenizer = TextTokenizer(tokenizer, config.vocabulary, config.special_ids)
        self._config = config
        self._to_device = HostToDevice()
        self._state = Quantiles.read(stats, "state", len(joints))
        self._actions = Quantiles.read(stats, "actions", space.size)
        # Of the joints that the network gives as deltas, their places in the state.
        delta = raw.get("actions", {}).get("delta", ())
        self._is_delta = np.array([name in delta for name in space.columns])
        self._at = np.array([joints.index(name) if name in delta else 0 for name in space.columns])
        self._feedback = _read_feedback(raw)
        self.feedback = tuple(self._feedback)
        self._bin_base = int(raw.get("state_bin_base", config.vocabulary - STATE_BINS))
        if not 0 <= self._bin_base <= config.vocabulary - STATE_BINS:
            raise ModelError(
                f"config.json: state_bin_base must leave room for {STATE_BINS} ids in a vocabulary of "
                f"{config.vocabulary}, got {self._bin_base}"
            )

    @classmethod
    def load(cls, folder: Path, config: Pi05Config, raw: Mapping[str, Any]) -> PlainProcessor:
        for name in ("tokenizer.json", "norm_stats.json"):
            if not (folder / name).is_file():
                raise ModelError(
                    f'{folder}: {name} is missing; a folder with "model_type" in config.json has it, '
                    'lerobot\'s say "type": "pi05"'
                )
        try:
            stats = json.loads((folder / "norm_stats.json").read_text(encoding="utf-8"))["norm_stats"]
        except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError) as error:
            raise ModelError(
                f'{folder}/norm_stats.json must hold {{"norm_stats": {{...}}}}: {error!r}'
            ) from None
        return cls(config, read_tokenizer(folder / "tokenizer.json"), raw, stats)

    def process(self, observation: Observation, device: torch.device, dtype: torch.dtype) -> Pi05Inputs:
        size = self._config.vision.image_size
        present = pick_cameras(observation, self._config.cameras)
        stacked = np.stack([resize_with_pad(observation.images[name], size, size) for name in present])
        images = (self._to_device.send(stacked, device).permute(0, 3, 1, 2).float() / 127.5 - 1).to(dtype)
        tokens = torch.tensor(self._prompt(observation), dtype=torch.int64, device=device)
        return Pi05Inputs(images, tokens)

    def _prompt(self, observation: Observation) -> list[int]:
        check_joints(observation, self._config.joints)
        bins = bin_state(self._state.normalize(observation.joints)) + self._bin_base
        tokens, room = self._begin_prompt(observation.instruction)
        fed: list[int] = []
        for kind, template in self._feedback.items():
            if text := observation.feedback.get(kind):
                fed += self.tokenizer.encode(template.replace("{text}", text))
        # The model's own texts are cut, from their end; the instruction is kept whole.
        tokens += fed[: room - len(tokens)]
        encode = self.tokenizer.encode
        return [*tokens, *encode(" State: "), *bins.tolist(), *encode(" Action: ")]

    def check_instruction(self, instruction: str) -> None:
        """See Model.check_instruction; the state always takes as many tokens."""
        self._begin_prompt(instruction)

    def _begin_prompt(self, instruction: str) -> tuple[list[int], int]:
        """The prompt's beginning and the tokens it has room for. Raises ValueError when it does not fit."""
        encode = self.tokenizer.encode
        tokens = [self._config.bos_id, *encode(f"Task: {instruction}.")]
        state = len(encode(" State: ")) + len(self._config.joints) + len(encode(" Action: "))
        room = self._config.max_prompt - state
        if len(tokens) > room:
            raise ValueError(
                f'the instruction "{instruction[:40]}..." has {len(tokens)} tokens, '
                f"the prompt has room for {room}: shorten it"
            )
        return tokens, room

    def unprocess(self, actions: NDArray[np.float32], observation: Observation) -> NDArray[np.float64]:
        out = self._actions.unnormalize(actions[:, : len(self._at)].astype(np.float64))
        now = observation.joints[self._at]
        result: NDArray[np.float64] = out + np.where(self._is_delta, now, 0.0)
        return result

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> NDArray[np.float32]:
        now = observation.joints[self._at]
        return self._actions.normalize(actions - np.where(self._is_delta, now, 0.0)).astype(np.float32)


def _read_actions(config: Pi05Config, raw: Mapping[str, Any]) -> ActionSpace:
    """The action space from config.json: "components", or "joints"; by default the state's joints."""
    entry = raw.get("actions", {})
    if "components" in entry:
        space = read_action_space("config.json", entry["components"], config.joints)
    else:
        names = tuple(entry.get("joints", config.joints))
        unknown = [name for name in names if name not in config.joints]
        if unknown:
            raise ModelError(f'config.json: action joint "{unknown[0]}" is not among {list(config.joints)}')
        if len(set(names)) != len(names):
            raise ModelError(f"config.json: actions.joints names a joint twice: {list(names)}")
        space = joint_space(names)
    unknown = [name for name in entry.get("delta", ()) if name not in space.joints]
    if unknown:
        raise ModelError(f'config.json: delta joint "{unknown[0]}" is not among {list(space.joints)}')
    if space.size > config.action_dim:
        raise ModelError(f"config.json: {space.size} actions do not fit action_dim {config.action_dim}")
    return space


def _read_feedback(raw: Mapping[str, Any]) -> Mapping[str, str]:
    """Text kinds and their templates in the prompt, from config.json."""
    feedback = raw.get("feedback", FEEDBACK)
    if not isinstance(feedback, Mapping):
        raise ModelError(
            f'config.json: "feedback" must be an object of templates by text kind, got {feedback!r}'
        )
    for kind, template in feedback.items():
        if not isinstance(template, str) or template.count("{text}") != 1:
            raise ModelError(
                f'config.json: feedback "{kind}" must be a template with one {{text}} in it, got {template!r}'
            )
    return feedback
