# SPDX-License-Identifier: Apache-2.0
"""Random numbers from (seed, stamp) alone, so that a replayed bag gives the same chunks and texts.

Philox is counter based: the same key gives the same numbers on every machine, in any order of
calls (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").
"""

from __future__ import annotations

import zlib

import numpy as np
from numpy.typing import NDArray

_WORD = 0xFFFF_FFFF_FFFF_FFFF


def draw_noise(seed: int, stamp: int, shape: tuple[int, ...], expert: int = 0) -> NDArray[np.float32]:
    """Standard normal noise for the denoise loop of an expert for the observation at `stamp` [ns]."""
    return _generator(seed, stamp, 0, 0, 0, expert).standard_normal(shape, dtype=np.float32)


def draw_uniform(seed: int, stamp: int, kind: str, index: int) -> float:
    """The number in [0, 1) that picks token `index` of a sampled text."""
    return float(_generator(seed, stamp, 1, zlib.crc32(kind.encode()), index, 0).random())


def _generator(seed: int, stamp: int, *counter: int) -> np.random.Generator:
    key = np.array([seed & _WORD, stamp & _WORD], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=np.array(counter, dtype=np.uint64)))
