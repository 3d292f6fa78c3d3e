# SPDX-License-Identifier: Apache-2.0
"""How a new chunk continues the one before it: replaced, blended or guided."""

from oxygen_ros.robot.joining.joiner import ChunkJoiner, Trajectory
from oxygen_ros.robot.joining.rule import MODES, SCHEDULES, JoinRule

__all__ = ["MODES", "SCHEDULES", "ChunkJoiner", "JoinRule", "Trajectory"]
