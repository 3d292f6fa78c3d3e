# SPDX-License-Identifier: Apache-2.0
"""Differences of positions and points between two of them, on a straight line.

All code in robot/ that measures or interpolates positions calls these two functions, and limits.py brings
positions onto this line once (`_Group.find_targets`). A joint that turns freely would need a difference of at
most half a turn here.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Positions = TypeVar("Positions", float, NDArray[np.float64])


def subtract(to: Positions, start: Positions) -> Positions:
    """The way from `start` to `to`."""
    return to - start


def interpolate(start: Positions, to: Positions, share: Positions | float) -> Positions:
    """The point at `share` of the way from `start` (0) to `to` (1); an array of shares broadcasts."""
    return start + share * subtract(to, start)
