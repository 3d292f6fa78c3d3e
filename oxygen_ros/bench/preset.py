# SPDX-License-Identifier: Apache-2.0
"""What is measured: a preset of a model family with random weights, its robot, made-up observations.

Speed does not depend on the values of the weights, so nothing is downloaded. What a family must provide is
`ModelPreset`; the known ones are listed in `families`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
import torch
from torch import nn

from oxygen_ros.bench.floors import ComponentFloors
from oxygen_ros.models.interface import Model
from oxygen_ros.observation import Observation

CAMERAS = ("base", "left_wrist", "right_wrist")
# Prompts are made of it: one token in the models of every preset.
WORD = "word"


@dataclass(frozen=True, slots=True)
class BenchRobot:
    """A robot's cameras, joints and actions.

    cameras:  of CAMERAS; the others are masked
    joints:   J, numbers of the state
    actions:  A, numbers of an action
    """

    cameras: tuple[str, ...]
    joints: int
    actions: int

    @property
    def joint_names(self) -> tuple[str, ...]:
        return tuple(f"joint{i + 1}" for i in range(self.joints))


ROBOTS: Mapping[str, BenchRobot] = {
    "libero": BenchRobot(CAMERAS[:2], joints=8, actions=7),
    "droid": BenchRobot(CAMERAS[:2], joints=8, actions=8),
    "aloha": BenchRobot(CAMERAS, joints=14, actions=14),
}


class ModelPreset(ABC):
    """One preset of one model family, for one robot: models of random weights, and their sizes.

    robot:       a model of the preset sees CAMERAS and this robot's joints
    image_size:  (height, width) of camera images [px]
    most_prompt: tokens of the longest prompt
    can_draft:   whether its models can take back tokens of a wrong draft, see `ModelSpec.can_rewind`
    ablation:    module with a function `ablate` (see pi05.ablation) for `oxygen_bench --ablate`; "": none
    """

    robot: BenchRobot
    image_size: tuple[int, int]
    most_prompt: int
    can_draft: ClassVar[bool] = True
    ablation: ClassVar[str] = ""

    @classmethod
    @abstractmethod
    def make(
        cls, preset: str, robot: BenchRobot, *, horizon: int | None = None, denoise_steps: int | None = None
    ) -> Self:
        """The preset by name; H and S are the preset's own where they are None."""

    @abstractmethod
    def draw_weights(self, seed: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        """Random weights as they are served, drawn in their own dtype on their own device."""

    @abstractmethod
    def make_model(self, weights: nn.Module) -> Model:
        """A model over shared weights with pools of its own. No token ends its texts, so that N is exact."""

    @abstractmethod
    def count_prompt(self, observation: Observation) -> int:
        """Tokens of an observation's prompt, state included, images not."""

    @abstractmethod
    def count_prefix(self, prompt_tokens: int) -> int:
        """Tokens of the prefix of an observation with a prompt of that length."""

    def floors(self, weights: nn.Module, prefix_tokens: int) -> ComponentFloors | None:
        """The matrix products of each component alone; None: the table of components is without floors."""
        return None


def suffix_of(tokens: int) -> str:
    """A prompt suffix of exactly so many tokens."""
    return " ".join([WORD] * tokens)


class Scene:
    """The same observations for every mode: at round r always the same pixels, joints, words and stamp."""

    def __init__(self, preset: ModelPreset, *, prompt_tokens: int, distinct: int, seed: int) -> None:
        """prompt_tokens: of the whole prompt, state included
        distinct:      observations in rotation; 1: always the same

        Raises ValueError when the prompt is shorter than its fixed parts and the state, or longer than
        the preset's.
        """
        chance = np.random.default_rng(seed)
        robot, shape = preset.robot, (*preset.image_size, 3)
        self._joints = [chance.uniform(-1, 1, robot.joints) for _ in range(distinct)]
        self._images = [
            {name: chance.integers(0, 256, shape, dtype=np.uint8) for name in robot.cameras}
            for _ in range(distinct)
        ]
        self._instruction = ""
        least = preset.count_prompt(self.at(0))
        if not least <= prompt_tokens <= preset.most_prompt:
            raise ValueError(
                f"the prompt must have {least}..{preset.most_prompt} tokens (its frame and the state take "
                f"{least}), got {prompt_tokens}"
            )
        self._instruction = suffix_of(prompt_tokens - least)
        self.prefix_tokens = preset.count_prefix(prompt_tokens)

    def at(self, number: int) -> Observation:
        """The observation of a round; rounds of the warm-up may be negative."""
        which = number % len(self._joints)
        stamp = 1_000_000_000 + number
        return Observation(stamp, self._images[which], self._joints[which], self._instruction)
