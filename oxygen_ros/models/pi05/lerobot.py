# SPDX-License-Identifier: Apache-2.0
"""Observations to pi0.5 inputs and actions back, for policy folders as lerobot saves them.

Prompt:  <bos>Task: <instruction>, State: <bins of the state, as words>;
Action:<space>

Such a checkpoint was trained without subtasks and memories: no text is fed back, and it acts on the
instruction alone. Texts can still be asked for; they continue the same prefix.
The computation is lerobot 0.6.1's (policies/pi05, processor).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.images import resize_with_pad_torch
from oxygen_ros.models.lerobot.normalization import Vector
from oxygen_ros.models.lerobot.pipeline import Options
from oxygen_ros.models.lerobot.policy import Recipe, read_recipe
from oxygen_ros.models.pi05.config import Pi05Config
from oxygen_ros.models.pi05.processor import Pi05Inputs
from oxygen_ros.models.processing import STATE_BINS, HostToDevice, check_joints, pick_cameras
from oxygen_ros.models.tokenizer import TextTokenizer, read_tokenizer
from oxygen_ros.observation import Observation

_EDGES: Final = np.linspace(-1, 1, STATE_BINS + 1)[:-1]
_PROMPT_STEPS: Final[Mapping[str, Options]] = {
    "pi05_prepare_state_tokenizer_processor_step": {
        "max_state_dim": None,  # the state is not padded for the prompt
        "task_key": ("task",),
        "include_state_in_prompt": (True,),
    },
    "tokenizer_processor": {
        "max_length": None,
        "task_key": ("task",),
        "padding_side": None,  # padding is not computed, on whichever side
        "padding": None,
        "truncation": None,  # what would be cut is refused
        "tokenizer_name": None,
    },
}
# Entries of config.json that ask for another network, or for more than one observation.
_ONLY: Final = {"n_obs_steps": 1, "use_visual_memory": False, "use_proprioceptive_memory": False}


class LerobotProcessor:
    """The processor of lerobot's policy folders; `config` is the network's with the recipe's names in it."""

    feedback: tuple[str, ...] = ()

    def __init__(self, config: Pi05Config, recipe: Recipe, tokenizer: TextTokenizer) -> None:
        options = recipe.prompt["tokenizer_processor"]
        bos = tokenizer.find("<bos>")
        if bos != config.bos_id:
            raise ModelError(
                f'tokenizer.json: "<bos>" has id {bos}, the network was trained with {config.bos_id}: it is '
                f"not the tokenizer {options.get('tokenizer_name', _TOKENIZER)}"
            )
        self.config = replace(
            config,
            cameras=recipe.cameras,
            joints=recipe.robot.joints,
            step=recipe.robot.step,
            max_prompt=options.get("max_length", config.max_prompt),
        )
        self.action_space = recipe.robot.actions
        self.tokenizer = tokenizer
        self._recipe = recipe
        self._to_device = HostToDevice()
        # The number of a state's tokens varies. An instruction is checked with the longest state, so that an
        # accepted one does not fail later.
        self._longest = max(
            map(str, range(-1, STATE_BINS)), key=lambda number: len(tokenizer.encode(f" {number}"))
        )
        self._measured: tuple[str, int] | None = None  # an instruction and the most tokens of its prompt

    @classmethod
    def load(cls, folder: Path, config: Pi05Config, raw: dict[str, Any]) -> LerobotProcessor:
        """Read a folder's pipelines, tokenizer and oxygen.json. Raises ModelError naming what is wrong."""
        recipe = read_recipe(folder, raw, _PROMPT_STEPS, _ONLY)
        file = folder / "tokenizer.json"
        if not file.is_file():
            name = recipe.prompt["tokenizer_processor"].get("tokenizer_name", _TOKENIZER)
            raise ModelError(
                f"{file} is missing: lerobot does not save it. The checkpoint was made with the tokenizer "
                f'"{name}"; copy its tokenizer.json into the folder'
            )
        return cls(config, recipe, TextTokenizer(read_tokenizer(file), config.vocabulary, config.special_ids))

    def process(self, observation: Observation, device: torch.device, dtype: torch.dtype) -> Pi05Inputs:
        present = pick_cameras(observation, self.config.cameras)
        ids = [self.config.bos_id, *self.tokenizer.encode(self.write_prompt(observation))]
        self._check_length(observation.instruction, len(ids))
        tokens = torch.tensor(ids, dtype=torch.int64, device=device)
        pixels = [observation.images[name] for name in present]
        # Cameras may differ in size: their bytes go to the device in one copy.
        sent = self._to_device.send(np.concatenate([image.reshape(-1) for image in pixels]), device)
        images, at = [], 0
        for image in pixels:
            scaled = sent[at : at + image.size].view(image.shape).permute(2, 0, 1) / 255
            images.append(resize_with_pad_torch(scaled, self.config.vision.image_size))
            at += image.size
        return Pi05Inputs(torch.stack(images).to(dtype), tokens)

    def write_prompt(self, observation: Observation) -> str:
        """The string that is tokenized. Raises ValueError for joints that are no state of this model."""
        check_joints(observation, self.config.joints)
        state = self._recipe.state.normalize(observation.joints.astype(np.float32))
        # Below -1 is bin -1, and nothing is clipped.
        bins = np.digitize(state, _EDGES) - 1
        return _write(observation.instruction, [str(number) for number in bins])

    def check_instruction(self, instruction: str) -> None:
        """See Model.check_instruction; with the state that takes the most tokens."""
        self._check_length(instruction)

    def _check_length(self, instruction: str, count: int = 0) -> None:
        measured = self._measured
        if measured is None or measured[0] != instruction:
            longest = _write(instruction, [self._longest] * len(self.config.joints))
            self._measured = measured = (instruction, 1 + len(self.tokenizer.encode(longest)))
        count, most = max(count, measured[1]), self.config.max_prompt
        if count > most:
            raise ValueError(
                f'the instruction "{instruction[:40]}..." makes a prompt of up to {count} tokens, '
                f"the checkpoint was trained with {most}: shorten it"
            )

    def unprocess(self, actions: NDArray[np.float32], observation: Observation) -> NDArray[np.float64]:
        out = self._recipe.actions.unnormalize(actions[:, : self.action_space.size].astype(np.float32))
        return (out + self._find_offsets(observation)).astype(np.float64)

    def normalize(self, actions: NDArray[np.float64], observation: Observation) -> NDArray[np.float32]:
        """The inverse of `unprocess`, except for actions that are constant in the data.

        There any deviation is millions in the network's units and would distort the whole chunk: the value
        seen in training is used.
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
        offsets: Vector = np.zeros(len(relative), np.float32)
        offsets[relative] = observation.joints[np.flatnonzero(relative)]
        return offsets


_TOKENIZER: Final = "PaliGemma's"


def _write(instruction: str, bins: Sequence[str]) -> str:
    task = instruction.strip().replace("_", " ").replace("\n", " ")
    return f"Task: {task}, State: {' '.join(bins)};\nAction: "
