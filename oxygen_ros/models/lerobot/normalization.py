# SPDX-License-Identifier: Apache-2.0
"""The normalization of one vector as lerobot's normalizer steps compute it, with their saved statistics.

In float32 and in lerobot's order of operations (its normalize_processor.py): the last bit decides on which
side of an edge a state's bin lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.models.errors import ModelError

Vector = NDArray[np.float32]

# Mode -> the two statistics it is made of.
_STATISTICS: Mapping[str, tuple[str, str]] = {
    "QUANTILES": ("q01", "q99"),
    "QUANTILE10": ("q10", "q90"),
    "MIN_MAX": ("min", "max"),
    "MEAN_STD": ("mean", "std"),
}
MODES = (*_STATISTICS, "IDENTITY")


@dataclass(frozen=True, slots=True)
class Scale:
    """x -> (x - mean) / (std + eps), or low..high -> -1..1 without clipping, or x itself.

    mode:  one of MODES
    a, b:  float32 [size]: mean and std, or low and high
    eps:   stands in for a span of zero, and is added to std
    """

    mode: str
    a: Vector
    b: Vector
    eps: np.float32

    @classmethod
    def read(
        cls, file: Path, statistics: Mapping[str, Vector], key: str, size: int, mode: str, eps: float
    ) -> Scale:
        """The scale of the vector `key` from a state file's tensors.

        Raises ModelError for an unknown mode and for missing or impossible statistics.
        """
        if mode == "IDENTITY":
            nothing = np.zeros(size, np.float32)
            return cls(mode, nothing, nothing, np.float32(eps))
        if mode not in _STATISTICS:
            raise ModelError(f'{file}: normalization "{mode}" of {key} is not one of {", ".join(MODES)}')
        found = []
        for name in _STATISTICS[mode]:
            values = statistics.get(f"{key}.{name}")
            if values is None:
                raise ModelError(
                    f"{file}: {key}.{name} is missing, {mode} needs it; without it the robot's numbers would "
                    "reach the network as they are"
                )
            if values.shape != (size,) or not np.isfinite(values).all():
                raise ModelError(
                    f"{file}: {key}.{name} must be {size} finite numbers, it has shape {values.shape}"
                )
            found.append(values)
        a, b = found
        wrong = np.flatnonzero(b < 0) if mode == "MEAN_STD" else np.flatnonzero(a > b)
        if wrong.size:
            at = int(wrong[0])
            names = " and ".join(f"{key}.{name}" for name in _STATISTICS[mode])
            raise ModelError(f"{file}: {names} cannot be {a[at]} and {b[at]}, entry {at}")
        return cls(mode, a, b, np.float32(eps))

    @property
    def _span(self) -> Vector:
        span: Vector = self.b - self.a
        return np.where(span == 0, self.eps, span)

    @property
    def rest(self) -> tuple[NDArray[np.bool_], np.float32]:
        """Which numbers are constant in the data [size], and their normalized value."""
        if self.mode == "MEAN_STD":
            return self.b == 0, np.float32(0)
        return (self.a == self.b) & (self.mode != "IDENTITY"), np.float32(-1)

    def normalize(self, x: Vector) -> Vector:
        """Robot units [..., size] to the network's."""
        if self.mode == "IDENTITY":
            return x
        if self.mode == "MEAN_STD":
            return (x - self.a) / (self.b + self.eps)
        return np.float32(2) * (x - self.a) / self._span - np.float32(1)

    def unnormalize(self, x: Vector) -> Vector:
        """The network's units [..., size] to the robot's."""
        if self.mode == "IDENTITY":
            return x
        if self.mode == "MEAN_STD":
            return x * self.b + self.a
        return (x + np.float32(1)) * self._span / np.float32(2) + self.a
