# SPDX-License-Identifier: Apache-2.0
"""What is measured: presets, the robots they drive, networks of random weights, made-up observations.

Here lives no timing. Speed does not depend on what the weights say, so nothing is downloaded; the
processor is the one that serves checkpoints of our own form, over a tokenizer of one token a word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from oxygen_ros.models.pi05.config import PRESETS, Pi05Config
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network
from oxygen_ros.models.pi05.processor import PlainProcessor
from oxygen_ros.observation import Observation

CAMERAS = ("base", "left_wrist", "right_wrist")
_WORD = "word"


@dataclass(frozen=True, slots=True)
class Robot:
    """What a robot shows and moves.

    cameras:  of the network's three; the others are masked
    joints:   J, numbers of the state
    actions:  A, numbers of an action
    """

    cameras: tuple[str, ...]
    joints: int
    actions: int


ROBOTS: Mapping[str, Robot] = {
    "libero": Robot(CAMERAS[:2], joints=8, actions=7),
    "droid": Robot(CAMERAS[:2], joints=8, actions=8),
    "aloha": Robot(CAMERAS, joints=14, actions=14),
}


def make_config(
    preset: str, robot: Robot, *, horizon: int | None = None, denoise_steps: int | None = None
) -> Pi05Config:
    """A preset's sizes with three cameras, this robot's joints, and H and S where they are given."""
    config = PRESETS[preset]
    return replace(
        config,
        cameras=CAMERAS,
        joints=tuple(f"joint{i + 1}" for i in range(robot.joints)),
        action_dim=max(config.action_dim, robot.actions),
        horizon=config.horizon if horizon is None else horizon,
        denoise_steps=config.denoise_steps if denoise_steps is None else denoise_steps,
    )


def make_processor(config: Pi05Config, robot: Robot) -> PlainProcessor:
    """The served processor over a vocabulary of words: every word and sign is one token."""
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 3, _WORD: 4}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()

    def span(count: int) -> dict[str, list[float]]:
        return {"q01": [-1.0] * count, "q99": [1.0] * count}

    raw = {"actions": {"joints": list(config.joints[: robot.actions])}}
    stats = {"state": span(robot.joints), "actions": span(robot.actions)}
    return PlainProcessor(config, tokenizer, raw, stats)


def make_model(network: Network, robot: Robot) -> Pi05:
    """A model over shared weights with pools of its own. No token ends its texts: N is exact."""
    model = Pi05(network, make_processor(network.config, robot))
    model.spec = replace(model.spec, eos_ids=())
    return model


def suffix_of(tokens: int) -> str:
    """A prompt suffix of exactly so many tokens."""
    return " ".join([_WORD] * tokens)


class Scene:
    """The same observations for every mode: at round r always the same pixels, joints, words and stamp."""

    def __init__(
        self, config: Pi05Config, robot: Robot, *, prompt_tokens: int, distinct: int, seed: int
    ) -> None:
        """prompt_tokens: of the whole prompt, state included
        distinct:      observations that take turns; 1: the robot sees the same for ever

        Raises ValueError when the prompt is shorter than its frame and state, or longer than the preset's.
        """
        chance = np.random.default_rng(seed)
        size = config.vision.image_size
        self._joints = [chance.uniform(-1, 1, robot.joints) for _ in range(distinct)]
        self._images = [
            {name: chance.integers(0, 256, (size, size, 3), dtype=np.uint8) for name in robot.cameras}
            for _ in range(distinct)
        ]
        self._instruction = ""
        processor = make_processor(config, robot)
        least = processor.process(self.at(0), torch.device("cpu"), torch.float32).tokens.shape[0]
        if not least <= prompt_tokens <= config.max_prompt:
            raise ValueError(
                f"the prompt must have {least}..{config.max_prompt} tokens (its frame and the state take "
                f"{least}), got {prompt_tokens}"
            )
        self._instruction = suffix_of(prompt_tokens - least)
        self.prefix_tokens = len(robot.cameras) * config.vision.tokens + prompt_tokens

    def at(self, number: int) -> Observation:
        """The observation of a round; rounds of the warm-up may be negative."""
        which = number % len(self._joints)
        stamp = 1_000_000_000 + number
        return Observation(stamp, self._images[which], self._joints[which], self._instruction)
