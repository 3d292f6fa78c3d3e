# SPDX-License-Identifier: Apache-2.0
"""The values that cross every layer: the inputs of one instant, and the rest of the last chunk.

`robot.synchronizer` makes observations of messages; each model family's `process` makes tensors of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class Observation:
    """Camera images, joint state and texts, coherent in time, for one tick.

    stamp:        time of the images [ns since the epoch of the ROS clock]
    images:       camera name (as the model names it) -> uint8 [height, width, 3], RGB, row 0 on top
    joints:       float64 [J], order of `ModelSpec.joints`, rad (revolute) or m (prismatic)
    instruction:  the robot's task
    feedback:     text kind -> the model's own last text of that kind, for the kinds fed back into the prompt;
                  a kind without a text yet is absent
    """

    stamp: int
    images: Mapping[str, NDArray[np.uint8]]
    joints: NDArray[np.float64]
    instruction: str
    feedback: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Leftover:
    """What is left of the last chunk for the times of a new one, and how much the new one is held to it.

    actions:     float64 [H, A], the robot's units, in the expert's action space; row i is due when the new
                 chunk's action i is
    weights:     float64 [H] in 0..1; 1: will have been executed, 0: free
    max_weight:  upper bound of the guidance weight of a denoise step
    """

    actions: NDArray[np.float64]
    weights: NDArray[np.float64]
    max_weight: float
