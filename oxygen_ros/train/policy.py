# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as something that drives the arm between labels: the policy of DAgger.

Here lives the shortest way from pictures to a chunk, without text: what it remembers is told to it.
The whole loop, with its own memory, is `rollout`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.models import Capacity, load_model
from oxygen_ros.observation import Observation
from oxygen_ros.sim import words
from oxygen_ros.sim.task import Task
from oxygen_ros.train.collect import Frames, Policy
from oxygen_ros.train.records import NOT_YET


def load_policy(folder: Path) -> Policy:
    """The policy of a checkpoint folder; errors as in `load_model`."""
    model = load_model(folder)
    model.allocate(Capacity(frames=1, suffixes=1, suffix_tokens=1, max_rows=1))
    shape = (model.spec.horizon, model.spec.action_dim)

    def drive(
        pictures: Frames, joints: NDArray[np.float64], task: Task, remembered: int, stamp: int
    ) -> NDArray[np.float64]:
        memory = "" if remembered == NOT_YET else words.memory(task, remembered)
        observation = Observation(stamp, pictures, joints, task.instruction, memory)
        model.encode(model.process(observation), 0)
        noise = torch.from_numpy(draw_noise(0, stamp, shape))
        return model.unprocess(model.denoise(0, noise), observation)

    return drive
