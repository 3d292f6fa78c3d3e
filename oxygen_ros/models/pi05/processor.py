# SPDX-License-Identifier: Apache-2.0
"""Observations to pi0.5 inputs and actions back, for checkpoints of our own format.

Prompt:  <bos> Task: <instruction>. [Subtask: <subtask>.] [Memory: <memory>.] State: <one token per joint>
Action:

Here lives resizing, the prompt and quantile normalisation, on the host, and what a processor is. Text to
ids is `words`; the processor of lerobot's checkpoints is `lerobot`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from tokenizers import Tokenizer

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.pi05.checks import check_joints, pick_cameras
from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.pi05.words import Words, read_tokenizer
from oxygen_ros.models.staging import Staging
from oxygen_ros.observation import Observation

STATE_BINS = 256


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the network takes in: only what is there, masked cameras left out.

    images:  [cameras, 3, S, S] in -1..1, in the model's camera order
    tokens:  int64 [prompt tokens]
    """

    images: torch.Tensor
    tokens: torch.Tensor


class Processor(Protocol):
    """The host side of a pi0.5 checkpoint."""

    action_joints: tuple[str, ...]

    def process(self, observation: Observation, device: torch.device, dtype: torch.dtype) -> Inputs: ...

    def unprocess(self, actions: NDArray[np.float32], observation: Observation) -> NDArray[np.float64]: ...

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> NDArray[np.float32]: ...

    def tokenize(self, text: str) -> list[int]: ...

    def detokenize(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Quantiles:
    """Normalisation by the 1 % and 99 % quantiles: q01 -> -1, q99 -> 1, no clipping."""

    q01: NDArray[np.float64]
    q99: NDArray[np.float64]

    @classmethod
    def read(cls, stats: Mapping[str, Any], name: str, size: int) -> Quantiles:
        if name not in stats:
            raise ModelError(f'norm_stats.json has no "{name}" (it has: {", ".join(stats)})')
        found = {}
        for quantile in ("q01", "q99"):
            try:
                values = np.asarray(stats[name][quantile], dtype=np.float64)
            except (KeyError, TypeError, ValueError):
                values = np.empty(0)
            if values.shape != (size,) or not np.isfinite(values).all():
                raise ModelError(f"norm_stats.json: {name} {quantile} must be {size} finite numbers")
            found[quantile] = values
        if (found["q01"] > found["q99"]).any():
            at = int(np.flatnonzero(found["q01"] > found["q99"])[0])
            raise ModelError(
                f"norm_stats.json: {name} q01 must not exceed q99, entry {at} has {found['q01'][at]} and "
                f"{found['q99'][at]}"
            )
        return cls(found["q01"], found["q99"])

    @property
    def _span(self) -> NDArray[np.float64]:
        # A joint that never moved has no span; lerobot divides by 1e-8 there. A smaller one is none either.
        span: NDArray[np.float64] = np.maximum(self.q99 - self.q01, 1e-8)
        return span

    def normalize(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return 2 * (x - self.q01) / self._span - 1

    def unnormalize(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        return (x + 1) / 2 * self._span + self.q01


def bin_state(normalized: NDArray[np.float64]) -> NDArray[np.int64]:
    """Bins 0..255 of equal width over -1..1; what lies outside goes to the first or last."""
    edges = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
    return np.clip(np.digitize(normalized, edges) - 1, 0, STATE_BINS - 1)


class PlainProcessor:
    """The processor of our own checkpoint folders: tokenizer.json, norm_stats.json, config.json."""

    def __init__(
        self, config: Pi05Config, tokenizer: Tokenizer, raw: Mapping[str, Any], stats: Mapping[str, Any]
    ):
        joints = config.joints
        if not joints:
            raise ModelError('config.json: "joints" must name the joints of the state')
        actions = raw.get("actions", {})
        self.action_joints: tuple[str, ...] = tuple(actions.get("joints", joints))
        delta = tuple(actions.get("delta", ()))
        for what, names, among in (
            ("action joint", self.action_joints, joints),
            ("delta joint", delta, self.action_joints),
        ):
            unknown = [name for name in names if name not in among]
            if unknown:
                raise ModelError(f'config.json: {what} "{unknown[0]}" is not among {list(among)}')
        if len(set(self.action_joints)) != len(self.action_joints):
            raise ModelError(f"config.json: actions.joints names a joint twice: {list(self.action_joints)}")
        count = len(self.action_joints)
        if count > config.action_dim:
            raise ModelError(f"config.json: {count} action joints do not fit action_dim {config.action_dim}")
        self._config = config
        self._words = Words(tokenizer, config)
        self._staging = Staging()
        self._state = Quantiles.read(stats, "state", len(joints))
        self._actions = Quantiles.read(stats, "actions", len(self.action_joints))
        self._is_delta = np.array([name in delta for name in self.action_joints])
        self._at = np.array([joints.index(name) for name in self.action_joints])
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

    def process(self, observation: Observation, device: torch.device, dtype: torch.dtype) -> Inputs:
        size = self._config.vision.image_size
        present = pick_cameras(observation, self._config.cameras)
        stacked = np.stack([_resize(observation.images[name], size) for name in present])
        images = (self._staging.send(stacked, device).permute(0, 3, 1, 2).float() / 127.5 - 1).to(dtype)
        tokens = torch.tensor(self._prompt(observation), dtype=torch.int64, device=device)
        return Inputs(images, tokens)

    def _prompt(self, observation: Observation) -> list[int]:
        check_joints(observation, self._config.joints)
        bins = bin_state(self._state.normalize(observation.joints)) + self._bin_base
        state = [*self.tokenize(" State: "), *bins.tolist(), *self.tokenize(" Action: ")]
        words = [self._config.bos_id, *self.tokenize(f"Task: {observation.instruction}.")]
        said = self.tokenize(f" Subtask: {observation.subtask}.") if observation.subtask else []
        said += self.tokenize(f" Memory: {observation.memory}") if observation.memory else []
        room = self._config.max_prompt - len(state)
        if len(words) > room:
            raise ValueError(
                f'the instruction "{observation.instruction[:40]}..." has {len(words)} tokens, '
                f"the prompt has room for {room}: shorten it"
            )
        # The model's own sentences give way, the memory first: they are nothing a person said.
        return [*words, *said[: room - len(words)], *state]

    def unprocess(self, actions: NDArray[np.float32], observation: Observation) -> NDArray[np.float64]:
        out = self._actions.unnormalize(actions[:, : len(self._at)].astype(np.float64))
        now = observation.joints[self._at]
        result: NDArray[np.float64] = out + np.where(self._is_delta, now, 0.0)
        return result

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> NDArray[np.float32]:
        now = observation.joints[self._at]
        return self._actions.normalize(actions - np.where(self._is_delta, now, 0.0)).astype(np.float32)

    def tokenize(self, text: str) -> list[int]:
        return self._words.tokenize(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._words.detokenize(ids)


def _resize(image: NDArray[np.uint8], size: int) -> NDArray[np.uint8]:
    """Bilinear with antialias to size x size, padded with black to keep the proportions."""
    height, width = image.shape[:2]
    if (height, width) == (size, size):
        return image
    ratio = max(width / size, height / size)
    shape = (max(int(width / ratio), 1), max(int(height / ratio), 1))
    resized = np.asarray(Image.fromarray(image).resize(shape, Image.Resampling.BILINEAR))
    out = np.zeros((size, size, 3), dtype=np.uint8)
    top, left = (size - shape[1]) // 2, (size - shape[0]) // 2
    out[top : top + shape[1], left : left + shape[0]] = resized
    return out
