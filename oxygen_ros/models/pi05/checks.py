# SPDX-License-Identifier: Apache-2.0
"""Whether an observation fits a model: cameras, pixels, joints. Errors name what does not.

Here lives no computation: what becomes of an observation is each processor's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.observation import Observation


def pick_cameras(observation: Observation, cameras: Sequence[str]) -> list[str]:
    """Names of the cameras that are there, in the model's order.

    Raises ValueError for a camera the model does not know, for none at all, and for what is no image.
    """
    unknown = [name for name in observation.images if name not in cameras]
    if unknown:
        raise ValueError(f'camera "{unknown[0]}" is not one of the model\'s: {", ".join(cameras)}')
    present = [name for name in cameras if name in observation.images]
    if not present:
        raise ValueError(f"no camera image; the model looks through {', '.join(cameras)}")
    for name in present:
        image = observation.images[name]
        if image.ndim != 3 or image.shape[2] != 3 or image.size == 0 or image.dtype != np.uint8:
            raise ValueError(
                f'camera "{name}": an image is uint8 [height, width, 3], got {image.dtype} {image.shape}'
            )
    return present


def check_joints(observation: Observation, joints: Sequence[str]) -> None:
    """Raise ValueError unless the state has one finite number for each joint."""
    state = observation.joints
    if state.shape != (len(joints),):
        raise ValueError(f"the state must have {len(joints)} joints, got shape {state.shape}")
    if not np.isfinite(state).all():
        bad = joints[int(np.flatnonzero(~np.isfinite(state))[0])]
        raise ValueError(f'joint "{bad}" is not finite')
