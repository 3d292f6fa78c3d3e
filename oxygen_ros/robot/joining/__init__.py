# SPDX-License-Identifier: Apache-2.0
"""How a new chunk joins the one before it.

rule.py    what is taken over: nothing, a weighted mean, or a guide for the denoiser; and the weights
joiner.py  the memory of the last chunk, and the leftover, blend and trajectory made from it
"""

from oxygen_ros.robot.joining.joiner import ChunkJoiner, Trajectory, find_rest
from oxygen_ros.robot.joining.rule import MODES, SCHEDULES, JoinRule, Mode, Schedule, weigh

__all__ = [
    "MODES", "SCHEDULES", "ChunkJoiner", "JoinRule", "Mode", "Schedule", "Trajectory", "find_rest", "weigh"
]  # fmt: skip
