# SPDX-License-Identifier: Apache-2.0
"""What processors of all families share: the action space that a checkpoint declares."""

from __future__ import annotations

import pytest

from oxygen_ros.models import ModelError
from oxygen_ros.models.processing import read_action_space

JOINTS = ("lift", "turn")


def test_components_of_joints_the_state_does_not_have_are_refused_by_name() -> None:
    known = {"name": "turn", "kind": "joint_velocity", "unit": "rad/s"}
    hand = {"name": "hand", "kind": "gripper", "unit": "1"}
    assert read_action_space("config.json", [known, hand], JOINTS).columns == ("turn", "hand")
    with pytest.raises(ModelError, match=r'config.json: action joint "wrist" is not among .*lift'):
        read_action_space("config.json", [known, {**known, "name": "wrist"}], JOINTS)
