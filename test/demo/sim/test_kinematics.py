# SPDX-License-Identifier: Apache-2.0
"""The arm's kinematics agree with themselves, with MuJoCo and with a drawing."""

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.kinematics import (
    Pose,
    Unreachable,
    forward,
    gripper_pose,
    inverse,
    tilt,
    wrap_half_turn,
)
from oxygen_ros.demo.sim.scene import mjcf

REACH = g.UPPER_ARM + g.FOREARM


def test_upright_when_every_joint_is_zero() -> None:
    position, turn = forward(np.zeros(6))
    np.testing.assert_allclose(position, [0.0, 0.0, g.SHOULDER_HEIGHT + REACH + g.HAND], atol=1e-12)
    np.testing.assert_allclose(turn, np.eye(3), atol=1e-12)


def test_forward_is_what_mujoco_computes() -> None:
    model = mujoco.MjModel.from_xml_string(mjcf())
    data = mujoco.MjData(model)
    hand = model.body("hand").id
    rng = np.random.default_rng(0)
    for _ in range(50):
        joints = rng.uniform(g.JOINT_LOWER, g.JOINT_UPPER)[:6]
        data.qpos[:6] = joints
        mujoco.mj_kinematics(model, data)
        position, turn = forward(joints)
        np.testing.assert_allclose(turn, data.xmat[hand].reshape(3, 3), atol=1e-12)
        np.testing.assert_allclose(position, data.xpos[hand] + turn[:, 2] * g.HAND, atol=1e-12)


@given(
    x=st.floats(0.20, 0.44),
    y=st.floats(-0.20, 0.30),
    z=st.floats(0.010, 0.24),
    yaw=st.floats(-math.pi, math.pi),
)
def test_inverse_then_forward_is_the_same_pose_over_the_workspace(
    x: float, y: float, z: float, yaw: float
) -> None:
    assume(math.hypot(x, y) < 0.455)
    joints = inverse(Pose(x, y, z, yaw))
    assert (joints >= g.JOINT_LOWER[:6]).all()
    assert (joints <= g.JOINT_UPPER[:6]).all()
    back = gripper_pose(joints)
    assert math.dist((back.x, back.y, back.z), (x, y, z)) < 1e-6  # asked for: 0.5 mm
    assert abs(wrap_half_turn(back.yaw - yaw)) < 1e-6
    assert tilt(joints) < 1e-6
    assert joints[3] == 0.0


def test_yaw_turns_the_line_of_the_fingers() -> None:
    joints = inverse(Pose(0.3, 0.1, 0.1, 0.4))
    fingers = forward(joints)[1][:, 1]
    along = np.array([-math.sin(0.4), math.cos(0.4), 0.0])
    assert abs(float(fingers @ along)) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("pose", "reason"),
    [
        (Pose(0.6, 0.0, 0.1, 0.0), r"the arm reaches 0\.500 m"),
        (Pose(-0.3, 0.01, 0.1, 0.0), r"joint1 would be 3\.1"),
        (Pose(0.02, 0.0, 0.03, 0.0), "joint"),
    ],
)
def test_out_of_reach_says_why(pose: Pose, reason: str) -> None:
    with pytest.raises(Unreachable, match=reason):
        inverse(pose)
