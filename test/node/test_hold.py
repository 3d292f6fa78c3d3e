# SPDX-License-Identifier: Apache-2.0
"""The hold against a trajectory that is being published at that moment."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.node.commands import Commands
from oxygen_ros.robot.joining import Trajectory

WAY = Trajectory(1, np.array([10**8, 2 * 10**8]), np.array([[0.1], [0.2]]), 1, np.array([0.0]))


def test_nothing_goes_out_under_hold_whoever_sends_it() -> None:
    """The worker asks `may_move` before it makes a trajectory, and the hold may come after it asked."""
    sent: list[JointTrajectory] = []
    publisher = SimpleNamespace(publish=sent.append)
    commands = Commands(SimpleNamespace(create_publisher=lambda *_: publisher))  # type: ignore[arg-type]
    commands.send(["a"], WAY)
    assert sent == [], "commands are not enabled"
    commands.is_enabled = True
    commands.send(["a"], WAY)
    assert [len(message.points) for message in sent] == [2]
    standing = JointState(name=["a"], position=[0.5])
    assert commands.hold(["a"], [standing], 1, 0.1) == "held at the current position"
    assert [list(point.positions) for point in sent[1].points] == [[0.5]]
    commands.send(["a"], WAY)
    # Switched off and on again, it is still held.
    commands.is_enabled = False
    commands.is_enabled = True
    commands.send(["a"], WAY)
    assert len(sent) == 2
    assert commands.release() == "released"
    commands.send(["a"], WAY)
    assert len(sent) == 3
