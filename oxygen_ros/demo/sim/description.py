# SPDX-License-Identifier: Apache-2.0
"""The demo robot as a URDF, made from the scene: `python -m oxygen_ros.demo.sim.description` prints it.

Bodies, shapes, joints, limits and cameras are read off the compiled MuJoCo model, so that RViz, the
node's limits and the simulation cannot differ.

Frames: `world` is the scene's world frame; each body is a link at its joint; each camera has its optical
frame (z forward, x right in the picture, REP-103). The joint `gripper` is the distance between the finger
pads, as in joint_states; in the URDF it moves a link without a shape, and each finger mimics half of it.
"""

from __future__ import annotations

import math
import sys
import xml.etree.ElementTree as xml
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.physics import mujoco
from oxygen_ros.demo.sim.scene import mjcf

FINGERS: Final = ("finger_left", "finger_right")
# From MuJoCo's camera axes (looks along -z, y up in the picture) to a ROS optical frame's.
_OPTICAL: Final = np.diag([1.0, -1.0, -1.0])


@cache
def urdf() -> str:
    """The description, as `robot_description` carries it."""
    model = mujoco.MjModel.from_xml_string(mjcf())
    robot = xml.Element("robot", name="oxygen_demo")
    robot.append(xml.Comment(" made by oxygen_ros.demo.sim.description; do not edit "))
    xml.SubElement(robot, "link", name="world")
    for body in _find_arm(model):
        _add_body(robot, model, body)
    xml.SubElement(robot, "link", name="gripper_opening")
    gripper = _add_joint(robot, "gripper", "prismatic", "hand", "gripper_opening", np.zeros(3), np.eye(3))
    xml.SubElement(gripper, "axis", xyz="0 1 0")
    _add_limit(gripper, g.JOINTS.index("gripper"), model)
    for camera in range(model.ncam):
        _add_camera(robot, model, camera)
    xml.indent(robot)
    return '<?xml version="1.0"?>\n' + xml.tostring(robot, encoding="unicode") + "\n"


def _find_arm(model: Any) -> Iterable[int]:
    """Ids of the arm's bodies, parents first: MuJoCo numbers them so."""
    root = model.body("base").id
    arm = {root}
    for body in range(root + 1, model.nbody):
        if model.body_parentid[body] in arm:
            arm.add(body)
    return sorted(arm)


def _add_body(robot: xml.Element, model: Any, body: int) -> None:
    name, parent = model.body(body).name, model.body(model.body_parentid[body]).name
    link = xml.SubElement(robot, "link", name=name)
    for geom in range(model.ngeom):
        if model.geom_bodyid[geom] == body:
            _add_shape(link, model, geom)
    place, turn = model.body_pos[body], _matrix(model.body_quat[body])
    if model.body_jntnum[body] == 0:
        _add_joint(robot, f"{parent}_to_{name}", "fixed", parent, name, place, turn)
        return
    number = model.body_jntadr[body]
    axis = " ".join(f"{value:g}" for value in model.jnt_axis[number])
    joint = _add_joint(
        robot,
        model.joint(number).name,
        "prismatic" if name in FINGERS else "revolute",
        parent,
        name,
        place,
        turn,
    )
    xml.SubElement(joint, "axis", xyz=axis)
    if name in FINGERS:
        xml.SubElement(joint, "mimic", joint="gripper", multiplier="0.5")
        low, high = model.jnt_range[number]
        speed = float(g.JOINT_SPEED[g.JOINTS.index("gripper")]) / 2
        xml.SubElement(
            joint, "limit", lower=f"{low:g}", upper=f"{high:g}", effort="14", velocity=f"{speed:g}"
        )
    else:
        _add_limit(joint, g.JOINTS.index(model.joint(number).name), model)


def _add_limit(joint: xml.Element, index: int, model: Any) -> None:
    """Of a commanded joint: its range, the speed the arm is made for, and its actuator's greatest force."""
    effort = model.actuator(g.JOINTS[index]).forcerange[1]
    xml.SubElement(
        joint,
        "limit",
        lower=f"{g.JOINT_LOWER[index]:g}",
        upper=f"{g.JOINT_UPPER[index]:g}",
        effort=f"{effort:g}",
        velocity=f"{g.JOINT_SPEED[index]:g}",
    )


def _add_shape(link: xml.Element, model: Any, geom: int) -> None:
    """A geom as visuals. A capsule, which URDF does not have, is a cylinder with two spheres."""
    kind, size = mujoco.mjtGeom(int(model.geom_type[geom])), model.geom_size[geom]
    place, turn = model.geom_pos[geom], _matrix(model.geom_quat[geom])
    ends = turn[:, 2] * size[1]
    radius, length = f"{size[0]:g}", f"{2 * size[1]:g}"
    parts: list[tuple[NDArray[np.float64], str, dict[str, str]]] = []
    if kind == mujoco.mjtGeom.mjGEOM_BOX:
        parts.append((place, "box", {"size": " ".join(f"{2 * value:g}" for value in size)}))
    elif kind in (mujoco.mjtGeom.mjGEOM_CYLINDER, mujoco.mjtGeom.mjGEOM_CAPSULE):
        parts.append((place, "cylinder", {"radius": radius, "length": length}))
        if kind == mujoco.mjtGeom.mjGEOM_CAPSULE:
            parts += [(place + end, "sphere", {"radius": radius}) for end in (ends, -ends)]
    else:
        raise ValueError(f"the arm has a shape that is no box, cylinder or capsule: {kind}")
    material = int(model.geom_matid[geom])
    color = model.mat_rgba[material] if material >= 0 else model.geom_rgba[geom]
    for at, shape, sizes in parts:
        visual = xml.SubElement(link, "visual")
        _add_origin(visual, at, turn)
        xml.SubElement(xml.SubElement(visual, "geometry"), shape, sizes)
        name = model.material(material).name if material >= 0 else f"geom{geom}"
        paint = xml.SubElement(visual, "material", name=name)
        xml.SubElement(paint, "color", rgba=" ".join(f"{value:g}" for value in color))


def _add_camera(robot: xml.Element, model: Any, camera: int) -> None:
    parent = model.body(model.cam_bodyid[camera]).name
    name = f"camera_{model.camera(camera).name}_optical_frame"
    xml.SubElement(robot, "link", name=name)
    turn = _matrix(model.cam_quat[camera]) @ _OPTICAL
    _add_joint(robot, f"{parent}_to_{name}", "fixed", parent, name, model.cam_pos[camera], turn)


def _add_joint(
    robot: xml.Element, name: str, kind: str, parent: str, child: str, place: Any, turn: NDArray[np.float64]
) -> xml.Element:
    joint = xml.SubElement(robot, "joint", name=name, type=kind)
    _add_origin(joint, place, turn)
    xml.SubElement(joint, "parent", link=parent)
    xml.SubElement(joint, "child", link=child)
    return joint


def _add_origin(element: xml.Element, place: Any, turn: NDArray[np.float64]) -> None:
    """place: [3] m; turn: rotation [3, 3], as URDF's fixed-axis roll, pitch, yaw."""
    pitch = math.asin(max(-1.0, min(1.0, -turn[2, 0])))
    if abs(turn[2, 0]) < 1.0 - 1e-9:
        roll, yaw = math.atan2(turn[2, 1], turn[2, 2]), math.atan2(turn[1, 0], turn[0, 0])
    else:
        # Straight up or down roll and yaw turn about the same axis: yaw gets all of it.
        roll, yaw = 0.0, math.atan2(-turn[0, 1], turn[1, 1])
    xyz = " ".join(f"{value + 0.0:.6g}" for value in np.round(place, 9))
    rpy = " ".join(f"{value + 0.0:.9g}" for value in np.round([roll, pitch, yaw], 9))
    xml.SubElement(element, "origin", xyz=xyz, rpy=rpy)


def _matrix(quaternion: Any) -> NDArray[np.float64]:
    """Rotation [3, 3] of a quaternion w, x, y, z."""
    flat = np.zeros(9)
    mujoco.mju_quat2Mat(flat, np.asarray(quaternion, np.float64))
    return flat.reshape(3, 3)


if __name__ == "__main__":
    sys.stdout.write(urdf())
