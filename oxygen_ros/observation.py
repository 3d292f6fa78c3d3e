# SPDX-License-Identifier: Apache-2.0
"""The one value that crosses every layer: what the robot saw and was told at one instant.

Here lives only the data. How it is sampled in time is `robot.sampler`; how it becomes
tensors is each model family's `process`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Observation:
    """Camera images, joint state and words, coherent in time, for one tick.

    stamp:        time of the images [ns since the epoch of the ROS clock]
    images:       camera name (as the model names it) -> uint8 [height, width, 3], RGB, row 0 on top
    joints:       float64 [J], order of `ModelSpec.joints`, rad (revolute) or m (prismatic)
    instruction:  what the robot is told to do
    memory:       the last memory sentence fed back, "" when there is none
    """

    stamp: int
    images: Mapping[str, NDArray[np.uint8]]
    joints: NDArray[np.float64]
    instruction: str
    memory: str = ""
