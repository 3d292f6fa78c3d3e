# SPDX-License-Identifier: Apache-2.0
"""Fits a camera image into the square input of a vision tower: proportions are kept, the rest is black.

Two rules, because checkpoints were trained with two: Pillow's on the host (openpi), torch's on the device
(lerobot).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch.nn.functional import interpolate, pad


def resize_with_pad(image: NDArray[np.uint8], height: int, width: int) -> NDArray[np.uint8]:
    """Fit an image into height x width [px], centered on black.

    openpi-client's `resize_with_pad`: ratio = max(w / width, h / height), new size int(h / ratio),
    int(w / ratio), Pillow's bilinear filter (which averages when it shrinks), offset int(rest / 2).

    image: uint8 [h, w, 3]. Returns uint8 [height, width, 3]; `image` itself when the size already fits.
    Raises ValueError for another shape or type, or a size which is not positive.
    """
    if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
        raise ValueError(f"expected uint8 [h, w, 3], got {image.dtype} {list(image.shape)}")
    if height <= 0 or width <= 0 or 0 in image.shape:
        raise ValueError(f"cannot resize {list(image.shape)} to {height}x{width}: sizes must be positive")
    if image.shape[:2] == (height, width):
        return image
    rows, columns, top, left = _fit(image.shape[0], image.shape[1], height, width)
    resized = Image.fromarray(image).resize((columns, rows), Image.Resampling.BILINEAR)
    canvas = np.zeros((height, width, 3), np.uint8)
    canvas[top : top + rows, left : left + columns] = np.asarray(resized)
    return canvas


def resize_with_pad_torch(image: torch.Tensor, size: int) -> torch.Tensor:
    """Fit an image [3, h, w] in 0..1 into [3, size, size] in -1..1, centered on black.

    Bilinear without antialias, corners not aligned; one pixel more at the bottom or the right where the rest
    is odd. lerobot 0.6.1: resize_with_pad_torch in policies/common/vla_utils.py.
    """
    height, width = image.shape[1:]
    if (height, width) != (size, size):
        rows, columns, top, left = _fit(height, width, size, size)
        image = interpolate(image[None], (rows, columns), mode="bilinear", align_corners=False)[0]
        image = pad(image.clamp(0, 1), (left, size - columns - left, top, size - rows - top))
    return image * 2 - 1


def _fit(h: int, w: int, height: int, width: int) -> tuple[int, int, int, int]:
    """Rows, columns, top and left of an image of h x w fitted into height x width."""
    ratio = max(w / width, h / height)
    rows, columns = max(1, int(h / ratio)), max(1, int(w / ratio))
    return rows, columns, (height - rows) // 2, (width - columns) // 2
