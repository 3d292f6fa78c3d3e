# SPDX-License-Identifier: Apache-2.0
"""YUV camera layouts to RGB, in numpy. Sizes were checked by the caller (images.py).

The colours are those of ITU-R BT.601, studio range (Y 16..235, chroma 16..240), as V4L2 defines these
pixel formats and as OpenCV converts them; chroma of a 2x1 or 2x2 cell is repeated, not interpolated.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BITS = 16
_BAND = 16  # rows
_LUMA, _RED_V, _GREEN_U, _GREEN_V, _BLUE_U = (
    round(value * (1 << _BITS)) for value in (255 / 219, 1.596027, -0.391762, -0.812968, 2.017232)
)


def packed_422_to_rgb(rows: NDArray[np.uint8], luma_first: bool) -> NDArray[np.uint8]:
    """Rows of two-pixel cells [H, 2W] to RGB [H, W, 3]; W is even.

    luma_first: True for Y U Y V (`yuyv`), False for U Y V Y (`uyvy`)
    """
    height, width = rows.shape[0], rows.shape[1] // 2
    cells = rows.reshape(height, width // 2, 4)
    luma_at = 0 if luma_first else 1
    luma = cells[..., luma_at::2].reshape(height, width)
    chroma = cells[..., 1 - luma_at :: 2]
    return _to_rgb(luma, chroma[..., 0].repeat(2, axis=1), chroma[..., 1].repeat(2, axis=1))


def semi_planar_420_to_rgb(rows: NDArray[np.uint8], u_first: bool) -> NDArray[np.uint8]:
    """A luma plane over an interleaved chroma plane, [3H/2, W], to RGB [H, W, 3]; H and W are even.

    u_first: True for `nv12` (U V), False for `nv21` (V U)
    """
    width = rows.shape[1]
    height = rows.shape[0] * 2 // 3
    chroma = rows[height:].reshape(height // 2, width // 2, 2)
    full = chroma.repeat(2, axis=0).repeat(2, axis=1)
    u_at = 0 if u_first else 1
    return _to_rgb(rows[:height], full[..., u_at], full[..., 1 - u_at])


def _to_rgb(luma: NDArray[np.uint8], u: NDArray[np.uint8], v: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Planes [H, W] of Y, U and V to RGB [H, W, 3] in 16-bit fixed point.

    In bands of rows small enough for the intermediate values to stay in the processor's cache.
    """
    rgb = np.empty((*luma.shape, 3), np.uint8)
    for top in range(0, luma.shape[0], _BAND):
        band = slice(top, top + _BAND)
        y = (luma[band].astype(np.int32) - 16).clip(0) * _LUMA + (1 << (_BITS - 1))
        du = u[band].astype(np.int32) - 128
        dv = v[band].astype(np.int32) - 128
        rgb[band, :, 0] = ((y + _RED_V * dv) >> _BITS).clip(0, 255)
        rgb[band, :, 1] = ((y + _GREEN_U * du + _GREEN_V * dv) >> _BITS).clip(0, 255)
        rgb[band, :, 2] = ((y + _BLUE_U * du) >> _BITS).clip(0, 255)
    return rgb
