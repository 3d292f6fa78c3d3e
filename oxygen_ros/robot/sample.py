# SPDX-License-Identifier: Apache-2.0
"""The two answers of the sampler: inputs that belong together, or what is missing.

Here lives only the data; how it is chosen is sampler.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.robot.streams import StreamProblem


@dataclass(frozen=True, slots=True)
class Sample:
    """Inputs coherent in time.

    stamp_ns:      the instant: the oldest stamp among the required cameras' images. Optional cameras do
                   not move it, so that a late optional image does not make a new instant.
    images:        camera -> payload as it was added; optional cameras may be absent
    joints:        float64 [J] at `stamp_ns`, in the buffer's order
    age_ns:        now - stamp_ns; below zero when the stamp is a little ahead
    skew_ns:       newest image stamp less the oldest, optional cameras included
    image_stamps:  camera -> stamp of its image
    received_ns:   when the last of these images was received [ns, the clock of the sampler's `received_ns`]
    is_new:        whether the instant differs from that of the sample taken before
    """

    stamp_ns: int
    images: dict[str, object]
    joints: NDArray[np.float64]
    age_ns: int
    skew_ns: int
    image_stamps: dict[str, int]
    received_ns: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """No coherent inputs; `problems` says for each stream at fault what it lacks. Never empty."""

    problems: tuple[StreamProblem, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems))
