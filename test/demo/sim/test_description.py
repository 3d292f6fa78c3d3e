# SPDX-License-Identifier: Apache-2.0
"""The demo robot's URDF: a tree whose kinematics and limits are those of the simulation."""

from __future__ import annotations

import xml.etree.ElementTree as xml
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("mujoco", reason="no MuJoCo: pip install mujoco")

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.description import urdf
from oxygen_ros.demo.sim.kinematics import forward

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def robot() -> xml.Element:
    return xml.fromstring(urdf())


def numbers(text: str) -> np.ndarray:
    return np.array([float(word) for word in text.split()])


def about(axis: np.ndarray, angle: float) -> np.ndarray:
    """Rodrigues' formula."""
    cross = np.array([[0, -axis[2], axis[1]], [axis[2], 0, -axis[0]], [-axis[1], axis[0], 0]])
    return np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross


def pose_of(robot: xml.Element, link: str, positions: dict[str, float]) -> np.ndarray:
    """The link's frame [4, 4] in `world`, as robot_state_publisher computes it."""
    frame = np.eye(4)
    joints = {joint.find("child").get("link"): joint for joint in robot.iter("joint")}
    while link != "world":
        joint = joints[link]
        origin, step = joint.find("origin"), np.eye(4)
        roll, pitch, yaw = numbers(origin.get("rpy"))
        x, y, z = np.eye(3)
        step[:3, :3] = about(z, yaw) @ about(y, pitch) @ about(x, roll)
        step[:3, 3] = numbers(origin.get("xyz"))
        if joint.get("type") != "fixed":
            mimic = joint.find("mimic")
            name = joint.get("name") if mimic is None else mimic.get("joint")
            value = positions.get(name, 0.0) * (1.0 if mimic is None else float(mimic.get("multiplier")))
            moved, axis = np.eye(4), numbers(joint.find("axis").get("xyz"))
            if joint.get("type") == "revolute":
                moved[:3, :3] = about(axis, value)
            else:
                moved[:3, 3] = axis * value
            step = step @ moved
        frame = step @ frame
        link = joint.find("parent").get("link")
    return frame


def test_is_one_tree_of_all_links(robot: xml.Element) -> None:
    links = [link.get("name") for link in robot.iter("link")]
    children = [joint.find("child").get("link") for joint in robot.iter("joint")]
    assert len(set(links)) == len(links)
    assert sorted(children) == sorted(set(links) - {"world"})
    for link in links:
        pose_of(robot, link, {})


@pytest.mark.parametrize("seed", range(4))
def test_hand_is_where_the_simulation_has_it(robot: xml.Element, seed: int) -> None:
    joints = np.random.default_rng(seed).uniform(g.JOINT_LOWER, g.JOINT_UPPER)
    frame = pose_of(robot, "hand", dict(zip(g.JOINTS, joints, strict=True)))
    place, turn = forward(joints)
    assert frame[:3, :3] == pytest.approx(turn, abs=1e-6)
    assert frame[:3, 3] + frame[:3, 2] * g.HAND == pytest.approx(place, abs=1e-6)


def test_fingers_are_as_far_apart_as_the_joint_says(robot: xml.Element) -> None:
    left, right = (pose_of(robot, f"finger_{side}", {"gripper": 0.05})[:3, 3] for side in ("left", "right"))
    assert np.linalg.norm(left - right) == pytest.approx(0.05)


def test_limits_are_those_of_the_arm(robot: xml.Element) -> None:
    joints = {joint.get("name"): joint.find("limit") for joint in robot.iter("joint")}
    for index, name in enumerate(g.JOINTS):
        limit = joints[name]
        found = [float(limit.get(key)) for key in ("lower", "upper", "velocity")]
        assert found == pytest.approx([g.JOINT_LOWER[index], g.JOINT_UPPER[index], g.JOINT_SPEED[index]])


def test_top_camera_looks_down_at_the_table(robot: xml.Element) -> None:
    """An optical frame's z axis leads from the eye to what is seen."""
    frame = pose_of(robot, "camera_top_optical_frame", {})
    eye, view = frame[:3, 3], frame[:3, 2]
    seen = eye - view * eye[2] / view[2]
    assert view[2] < -0.5
    assert abs(seen[0] - g.MAT_CENTER[0]) < 0.2
    assert abs(seen[1] - g.MAT_CENTER[1]) < 0.2


def test_shipped_file_is_current() -> None:
    """Launch files read it. Anew: `python -m oxygen_ros.demo.sim.description > resource/demo_robot.urdf`."""
    assert (ROOT / "resource" / "demo_robot.urdf").read_text() == urdf()
