# SPDX-License-Identifier: Apache-2.0
"""Chance from (seed, stamp) alone, so that a replayed bag gives the same chunks and texts.

Philox is counter based: the same key gives the same numbers on every machine, in any order of
calls (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

_WORD = 0xFFFF_FFFF_FFFF_FFFF


def draw_noise(seed: int, stamp: int, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Standard normal noise for the denoise loop of the observation at `stamp` [ns]."""
    key = np.array([seed & _WORD, stamp & _WORD], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key)).standard_normal(shape, dtype=np.float32)


def draw_uniform(seed: int, stamp: int, kind: str, index: int) -> float:
    """The number in [0, 1) that picks token `index` of a sampled text."""
    key = np.array([seed & _WORD, stamp & _WORD], dtype=np.uint64)
    counter = np.array([1, zlib.crc32(kind.encode()), index, 0], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key, counter=counter)).random())
