# SPDX-License-Identifier: Apache-2.0
"""Pictures of shards to the network's input. Here lives what is done to them on the way; sizes stay."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray


def to_images(frames: NDArray[np.uint8], rng: np.random.Generator, soften: bool) -> torch.Tensor:
    """uint8 [B, cameras, S, S, 3] to [B, cameras, 3, S, S] in -1..1.

    Some are softened: a camera's larger picture, made smaller, has no hard edges.
    """
    images = torch.from_numpy(frames).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    if not soften:
        return images
    size, channels = len(frames), images.shape[1] * 3
    flat = images.flatten(1, 2)
    kernel = torch.tensor([0.25, 0.5, 0.25])
    kernel = (kernel[:, None] * kernel).expand(channels, 1, 3, 3)
    soft = torch.nn.functional.conv2d(
        torch.nn.functional.pad(flat, (1, 1, 1, 1), mode="replicate"), kernel, groups=channels
    )
    share = torch.from_numpy(rng.uniform(-0.7, 1.0, size).clip(0).astype(np.float32))[:, None, None, None]
    bright = torch.from_numpy(rng.normal(0.0, 0.03, size).astype(np.float32))[:, None, None, None]
    return ((1 - share) * flat + share * soft + bright).view_as(images)
