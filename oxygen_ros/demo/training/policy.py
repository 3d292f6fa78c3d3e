# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that drives the arm between labels: the policy of DAgger.

From pictures to a chunk, without text: its memory is an input. `rollout` is the whole loop, with the model's
own memory.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.demo.sim import words
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.training.collect import Frames, Policy
from oxygen_ros.demo.training.records import NOT_YET
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.models import Capacity, load_model
from oxygen_ros.observation import Observation


def load_policy(folder: Path) -> Policy:
    """The policy of a checkpoint folder; errors as in `load_model`."""
    model = load_model(folder)
    model.allocate(Capacity(prefixes=1, suffixes=1, suffix_tokens=1, max_rows=1))
    expert = model.spec.experts[0]
    shape = (expert.horizon, expert.width)

    def drive(
        pictures: Frames, joints: NDArray[np.float64], task: Task, remembered: int, stamp: int
    ) -> NDArray[np.float64]:
        feedback = {} if remembered == NOT_YET else {"memory": words.memory(task, remembered)}
        observation = Observation(stamp, pictures, joints, task.instruction, feedback)
        model.encode(model.process(observation), 0)
        noise = torch.from_numpy(draw_noise(0, stamp, shape))
        return model.unprocess(model.denoise(0, noise), observation)

    return drive
