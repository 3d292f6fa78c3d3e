# SPDX-License-Identifier: Apache-2.0
"""Observations to pi0.5 inputs and actions back, for policy folders as lerobot saves them.

Prompt:  <bos>Task: <instruction>, State: <bins of the state, as words>;
Action:<space>

That is all the prompt of such a checkpoint: it was trained without subtasks and memories, and they are put
nowhere. It acts on the instruction alone; texts can still be asked for, they go on from the same prefix.
Here lives the computation, as lerobot 0.6.1 has it (policies/pi05, processor); which files say what is
`lerobot_files`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import interpolate, pad

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.pi05.checks import check_joints, pick_cameras
from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.pi05.lerobot_files import Recipe, read_recipe
from oxygen_ros.models.pi05.lerobot_scale import Vector
from oxygen_ros.models.pi05.processor import STATE_BINS, Inputs
from oxygen_ros.models.pi05.words import Words, read_tokenizer
from oxygen_ros.models.staging import Staging
from oxygen_ros.observation import Observation

_EDGES: Final = np.linspace(-1, 1, STATE_BINS + 1)[:-1]


class LerobotProcessor:
    """The processor of lerobot's policy folders; `config` is the network's with the recipe's names in it."""

    def __init__(self, config: Pi05Config, recipe: Recipe, words: Words) -> None:
        bos = words.find("<bos>")
        if bos != config.bos_id:
            raise ModelError(
                f'tokenizer.json: "<bos>" has id {bos}, the network was trained with {config.bos_id}: it is '
                f"not the tokenizer {recipe.tokenizer}"
            )
        self.config = replace(
            config,
            cameras=recipe.cameras,
            joints=recipe.robot.joints,
            step=recipe.robot.step,
            max_prompt=recipe.max_prompt,
        )
        self.action_joints = recipe.robot.actions
        self._recipe = recipe
        self._words = words
        self._staging = Staging()
        # States take more tokens or fewer. An instruction is judged by the longest one there can be: what
        # was let in does not fail when the arm has moved.
        self._longest = max(map(str, range(-1, STATE_BINS)), key=lambda bin_: len(words.tokenize(f" {bin_}")))
        self._measured: tuple[str, int] | None = None

    @classmethod
    def load(cls, folder: Path, config: Pi05Config, raw: dict[str, Any]) -> LerobotProcessor:
        """Read a folder's pipelines, tokenizer and oxygen.json. Raises ModelError naming what is wrong."""
        recipe = read_recipe(folder, raw)
        file = folder / "tokenizer.json"
        if not file.is_file():
            raise ModelError(
                f"{file} is missing: lerobot does not save it. The checkpoint was made with the tokenizer "
                f'"{recipe.tokenizer}"; copy its tokenizer.json into the folder'
            )
        return cls(config, recipe, Words(read_tokenizer(file), config))

    # -- observation to inputs ---------------------------------------------------------------

    def process(self, observation: Observation, device: torch.device, dtype: torch.dtype) -> Inputs:
        present = pick_cameras(observation, self.config.cameras)
        tokens = torch.tensor(self._encode(observation), dtype=torch.int64, device=device)
        pixels = [observation.images[name] for name in present]
        # Cameras may differ in size: their bytes go to the device in one piece.
        sent = self._staging.send(np.concatenate([image.reshape(-1) for image in pixels]), device)
        pictures, at = [], 0
        for image in pixels:
            picture = sent[at : at + image.size].view(image.shape).permute(2, 0, 1) / 255
            pictures.append(fit_picture(picture, self.config.vision.image_size))
            at += image.size
        return Inputs(torch.stack(pictures).to(dtype), tokens)

    def write_prompt(self, observation: Observation) -> str:
        """The string that is tokenised. Raises ValueError for joints that are no state of this model."""
        check_joints(observation, self.config.joints)
        state = self._recipe.state.normalize(observation.joints.astype(np.float32))
        # Below -1 is bin -1, and nothing is clipped.
        bins = np.digitize(state, _EDGES) - 1
        return _write(observation.instruction, [str(number) for number in bins])

    def _encode(self, observation: Observation) -> list[int]:
        said, most = observation.instruction, self.config.max_prompt
        ids = [self.config.bos_id, *self.tokenize(self.write_prompt(observation))]
        if self._measured is None or self._measured[0] != said:
            longest = _write(said, [self._longest] * len(self.config.joints))
            self._measured = (said, 1 + len(self.tokenize(longest)))
        count = max(len(ids), self._measured[1])
        if count > most:
            raise ValueError(
                f'the instruction "{said[:40]}..." makes a prompt of up to {count} tokens, '
                f"the checkpoint was trained with {most}: shorten it"
            )
        return ids

    # -- outputs to actions, and back --------------------------------------------------------

    def unprocess(self, actions: NDArray[np.float32], observation: Observation) -> NDArray[np.float64]:
        out = self._recipe.actions.unnormalize(actions[:, : len(self.action_joints)].astype(np.float32))
        return (out + self._find_offsets(observation)).astype(np.float64)

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> NDArray[np.float32]:
        """`unprocess` undone, but for what never moved in the data.

        There any deviation is millions in the network's units, and would pull the whole chunk astray: it is
        what it was in training.
        """
        scale = self._recipe.actions
        still, rest = scale.rest
        offsets = self._find_offsets(observation)
        normalized: NDArray[np.float32] = np.where(
            still, rest, scale.normalize(actions.astype(np.float32) - offsets)
        )
        return normalized

    def _find_offsets(self, observation: Observation) -> Vector:
        """What lerobot adds to each action [A]: the state's number at its place where it is relative."""
        relative = self._recipe.relative
        return np.where(relative, observation.joints[: len(relative)].astype(np.float32), np.float32(0))

    # -- words -------------------------------------------------------------------------------

    def tokenize(self, text: str) -> list[int]:
        return self._words.tokenize(text)

    def detokenize(self, ids: Sequence[int]) -> str:
        return self._words.detokenize(ids)


def _write(instruction: str, bins: Sequence[str]) -> str:
    task = instruction.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {task}, State: {' '.join(bins)};\nAction: "


def fit_picture(picture: torch.Tensor, size: int) -> torch.Tensor:
    """A picture [3, h, w] in 0..1 to [3, size, size] in -1..1, black around it to keep the proportions.

    Bilinear without antialias, corners not aligned; one pixel more at the bottom or the right where the rest
    is odd. lerobot 0.6.1: resize_with_pad_torch in policies/common/vla_utils.py.
    """
    height, width = picture.shape[1:]
    if (height, width) != (size, size):
        ratio = max(width / size, height / size)
        rows, columns = max(int(height / ratio), 1), max(int(width / ratio), 1)
        picture = interpolate(picture[None], (rows, columns), mode="bilinear", align_corners=False)[0]
        top, left = (size - rows) // 2, (size - columns) // 2
        picture = pad(picture.clamp(0, 1), (left, size - columns - left, top, size - rows - top))
    return picture * 2 - 1
