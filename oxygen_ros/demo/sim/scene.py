# SPDX-License-Identifier: Apache-2.0
"""The MuJoCo model of the demo robot, as MJCF text made from `geometry`.

Shapes, colors, lights, cameras, actuators. `python -m oxygen_ros.demo.sim.scene > scene.xml` gives a file
for MuJoCo's own viewer.

A black slit curtain in the box's hole hides the inside from all cameras; it collides with nothing, so blocks
fall through. The pool of blocks is fixed: the world colors the ones in play and hides the others.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g

CAMERAS: Final = ("top", "wrist", "side")
IMAGE_SIZE: Final = (224, 224)
"""Default (height, width) [px] of a picture."""

HIDDEN_GROUP: Final = 4
"""Geoms of this group are never drawn: blocks that are not in play."""
SHOWN_GROUP: Final = 0

RGBA: Final = {
    "red": (0.84, 0.13, 0.11, 1.0),
    "green": (0.13, 0.58, 0.24, 1.0),
    "blue": (0.10, 0.32, 0.82, 1.0),
}

SMOOTH: Final = {"top": False, "wrist": False, "side": True}
"""Whether a camera's pictures are antialiased: for people yes; for a model it only costs time."""

WRIST_EYE: Final = (-0.086, 0.0, 0.050)
"""The wrist camera in the hand's frame."""

PARKING: Final = (-1.6, 0.0, -0.70)
"""Where blocks that are not in play stand: on the floor, well outside every camera's view."""


def mjcf() -> str:
    """The whole model as MJCF text."""
    return f"""<mujoco model="oxygen_demo">
  <compiler angle="radian" autolimits="true"/>
  <option timestep="{g.PHYSICS_STEP}" integrator="implicitfast" cone="elliptic" impratio="10"
          noslip_iterations="2"/>
  <visual>
    <global offwidth="1280" offheight="960"/>
    <headlight ambient="0.36 0.36 0.38" diffuse="0.24 0.24 0.24" specular="0.05 0.05 0.05"/>
    <quality offsamples="0" shadowsize="0" numslices="18" numstacks="8" numquads="2"/>
    <map znear="0.02" zfar="30"/>
  </visual>
  <statistic extent="1" center="0.3 0 0.1"/>
{_assets()}
  <default>
    <geom friction="0.9 0.01 0.001" condim="4"/>
    <default class="visual"><geom contype="0" conaffinity="0" mass="0"/></default>
    <default class="link"><geom contype="0" conaffinity="0" density="900"/>
      <joint armature="0.1" damping="2"/></default>
    <default class="finger">
      <joint type="slide" range="0 {g.JOINT_UPPER[6] / 2}" armature="0.08" damping="6"/>
      <geom type="box" friction="1.6 0.02 0.002" condim="6" mass="0.03" material="dark"
            priority="1" solref="0.005 1" solimp="0.95 0.99 0.001"/></default>
  </default>
  <worldbody>
    <light directional="true" pos="0 0 2" dir="-0.35 0.45 -1" diffuse="0.46 0.45 0.42"
           specular="0.15 0.15 0.15" castshadow="false"/>
    <light directional="true" pos="0 0 2" dir="0.6 -0.5 -0.6" diffuse="0.14 0.15 0.18" specular="0 0 0"
           castshadow="false"/>
{_camera("top", (0.62, -0.03, 0.78), (0.332, -0.03, 0.02), 20)}
{_camera("side", (0.93, -0.60, 0.62), (0.185, 0.045, 0.170), 41)}
{_furniture()}
{_box()}
{_arm()}
{"".join(_block(i) for i in range(g.MAX_BLOCKS))}  </worldbody>
  <tendon>
    <fixed name="opening"><joint joint="finger_left" coef="1"/><joint joint="finger_right" coef="1"/></fixed>
  </tendon>
  <equality>
    <joint joint1="finger_left" joint2="finger_right" solref="0.005 1"/>
  </equality>
  <contact>
    <exclude body1="finger_left" body2="finger_right"/>
  </contact>
  <actuator>
{_actuators()}  </actuator>
</mujoco>
"""


def _assets() -> str:
    return """  <asset>
    <texture type="skybox" builtin="gradient" rgb1="0.80 0.86 0.92" rgb2="0.42 0.50 0.60"
             width="64" height="384"/>
    <texture name="floor" type="2d" builtin="checker" rgb1="0.50 0.54 0.58" rgb2="0.46 0.50 0.54"
             width="128" height="128"/>
    <material name="floor" texture="floor" texrepeat="14 14" specular="0"/>
    <material name="desk" rgba="0.80 0.68 0.53 1" specular="0.1" shininess="0.2"/>
    <material name="edge" rgba="0.55 0.43 0.31 1" specular="0.1"/>
    <material name="mat" rgba="0.30 0.33 0.37 1" specular="0"/>
    <material name="line" rgba="0.86 0.88 0.90 1" specular="0"/>
    <material name="shell" rgba="0.93 0.94 0.95 1" specular="0.35" shininess="0.5"/>
    <material name="dark" rgba="0.17 0.18 0.21 1" specular="0.3" shininess="0.5"/>
    <material name="accent" rgba="0.96 0.56 0.10 1" specular="0.3" shininess="0.5"/>
    <material name="carton" rgba="0.93 0.89 0.80 1" specular="0.05"/>
    <material name="roof" rgba="0.97 0.95 0.90 1" specular="0.05"/>
    <material name="curtain" rgba="0.05 0.05 0.06 1" specular="0"/>
    <material name="slit" rgba="0.17 0.17 0.18 1" specular="0"/>
  </asset>"""


def _furniture() -> str:
    x, y = g.MAT_CENTER
    dx, dy = g.MAT_SIZE[0] / 2, g.MAT_SIZE[1] / 2
    w = 0.004
    lines = "".join(
        _plain_box(px, py, 0.0006, sx, sy, 0.0006, "line")
        for px, py, sx, sy in (
            (x - dx, y, w / 2, dy + w / 2),
            (x + dx, y, w / 2, dy + w / 2),
            (x, y - dy, dx + w / 2, w / 2),
            (x, y + dy, dx + w / 2, w / 2),
        )
    )
    legs = "".join(
        _plain_box(px, py, -0.39, 0.025, 0.025, 0.36, "edge") for px in (-0.13, 0.57) for py in (-0.38, 0.38)
    )
    return f"""    <geom name="floor" type="plane" pos="0 0 -0.72" size="6 6 0.1" material="floor"/>
    <geom name="desk" type="box" pos="0.22 0 -0.015" size="0.40 0.43 0.015" material="desk"/>
{_plain_box(0.22, 0.0, -0.036, 0.385, 0.415, 0.012, "edge")}{legs}
{_plain_box(x, y, 0.0004, dx, dy, 0.0004, "mat")}{lines}"""


def _box() -> str:
    x, y = g.BOX_CENTER
    half, height, wall, hole = g.BOX_OUTER / 2, g.BOX_HEIGHT, g.BOX_WALL / 2, g.HOLE / 2
    strip = (half - hole) / 2
    at = hole + strip
    parts = [
        ("wall", half - wall, 0.0, height / 2, wall, half, height / 2, "carton"),
        ("wall", wall - half, 0.0, height / 2, wall, half, height / 2, "carton"),
        ("wall", 0.0, half - wall, height / 2, half, wall, height / 2, "carton"),
        ("wall", 0.0, wall - half, height / 2, half, wall, height / 2, "carton"),
        ("roof", at, 0.0, height - wall, strip, half, wall, "roof"),
        ("roof", -at, 0.0, height - wall, strip, half, wall, "roof"),
        ("roof", 0.0, at, height - wall, hole, strip, wall, "roof"),
        ("roof", 0.0, -at, height - wall, hole, strip, wall, "roof"),
    ]
    solid = "".join(
        f'<geom name="{name}{i}" type="box" pos="{px} {py} {pz}" size="{sx} {sy} {sz}" material="{m}"/>\n'
        for i, (name, px, py, pz, sx, sy, sz, m) in enumerate(parts)
    )
    depth, rim = height - g.CURTAIN_DEPTH, 0.003
    seen = "".join(
        _plain_box(*part)
        for part in (
            (0.0, 0.0, depth, half - 2 * wall, half - 2 * wall, 0.0005, "curtain"),
            (0.0, 0.0, depth + 0.0006, hole, 0.0008, 0.0003, "slit"),
            (0.0, 0.0, depth + 0.0006, 0.0008, hole, 0.0003, "slit"),
            (hole + rim, 0.0, height, rim, hole + 2 * rim, 0.001, "accent"),
            (-hole - rim, 0.0, height, rim, hole + 2 * rim, 0.001, "accent"),
            (0.0, hole + rim, height, hole, rim, 0.001, "accent"),
            (0.0, -hole - rim, height, hole, rim, 0.001, "accent"),
            (0.0, 0.0, height * 0.42, half + 0.0006, half + 0.0006, 0.006, "accent"),
        )
    )
    return f"""    <body name="box" pos="{x} {y} 0">
{solid}{seen}    </body>"""


def _arm() -> str:
    low, high = g.JOINT_LOWER, g.JOINT_UPPER

    def joint(i: int, axis: str) -> str:
        return f'<joint name="joint{i}" axis="{axis}" range="{low[i - 1]} {high[i - 1]}"/>'

    half = g.FOREARM / 2
    tip = g.HAND + g.FINGER_BELOW_TCP
    finger_half = (tip - 0.090) / 2
    finger_z = 0.090 + finger_half
    t = g.FINGER_THICKNESS / 2
    view = np.array([-0.022, 0.0, 0.17]) - np.array(WRIST_EYE)
    axes = _camera_axes(view, np.array([-1.0, 0.0, 0.0]))

    def finger(side: str, sign: int) -> str:
        return f"""                <body name="finger_{side}" gravcomp="1" childclass="finger">
                  <joint name="finger_{side}" axis="0 {sign} 0"/>
                  <geom name="pad_{side}" pos="0 {sign * t} {finger_z}" size="0.011 {t} {finger_half}"/>
                  {_plain_box(0.0, sign * (t + 0.0008), tip - 0.013, 0.0114, t, 0.0125, "accent")}
                </body>"""

    return f"""    <body name="base">
      <geom class="visual" type="cylinder" pos="0 0 0.012" size="0.085 0.012" material="dark"/>
      <geom class="visual" type="cylinder" pos="0 0 0.05" size="0.062 0.035" material="shell"/>
      <geom class="visual" type="cylinder" pos="0 0 0.089" size="0.0635 0.005" material="accent"/>
    <body name="link1" gravcomp="1" childclass="link">{joint(1, "0 0 1")}
      <geom type="cylinder" pos="0 0 0.13" size="0.054 0.04" material="shell"/>
      <geom type="cylinder" pos="0 0 {g.SHOULDER_HEIGHT}" zaxis="0 1 0" size="0.052 0.058" material="dark"/>
      <geom type="cylinder" pos="0 0 {g.SHOULDER_HEIGHT}" zaxis="0 1 0" size="0.040 0.061" material="accent"/>
      <body name="link2" pos="0 0 {g.SHOULDER_HEIGHT}" gravcomp="1">{joint(2, "0 1 0")}
        <geom type="capsule" fromto="0 0 0.02 0 0 {g.UPPER_ARM}" size="0.040" material="shell"/>
        <body name="link3" pos="0 0 {g.UPPER_ARM}" gravcomp="1">{joint(3, "0 1 0")}
          <geom type="cylinder" zaxis="0 1 0" size="0.042 0.046" material="dark"/>
          <geom type="cylinder" zaxis="0 1 0" size="0.031 0.049" material="accent"/>
          <geom type="capsule" fromto="0 0 0.02 0 0 {half - 0.03}" size="0.033" material="shell"/>
          <body name="link4" pos="0 0 {half}" gravcomp="1">{joint(4, "0 0 1")}
            <geom type="cylinder" pos="0 0 0.004" size="0.0335 0.006" material="accent"/>
            <geom type="capsule" fromto="0 0 0.02 0 0 {half - 0.02}" size="0.029" material="shell"/>
            <body name="link5" pos="0 0 {half}" gravcomp="1">{joint(5, "0 1 0")}
              <geom type="cylinder" zaxis="0 1 0" size="0.032 0.036" material="dark"/>
              <geom type="cylinder" zaxis="0 1 0" size="0.023 0.039" material="accent"/>
              <geom type="cylinder" pos="0 0 0.035" size="0.024 0.012" material="shell"/>
              <body name="hand" gravcomp="1">{joint(6, "0 0 1")}
                <geom type="cylinder" pos="0 0 0.056" size="0.027 0.010" material="dark"/>
                <geom type="box" pos="0 0 0.078" size="0.022 0.052 0.013" material="shell"
                      contype="1" conaffinity="1"/>
                {_plain_box(0.0, 0.0, 0.0905, 0.0224, 0.0524, 0.002, "dark")}
                {_plain_box(-0.050, 0.0, 0.050, 0.028, 0.010, 0.006, "dark")}
                {_plain_box(-0.078, 0.0, 0.030, 0.012, 0.018, 0.012, "dark")}
                <camera name="wrist" pos="{WRIST_EYE[0]} {WRIST_EYE[1]} {WRIST_EYE[2]}" fovy="74" {axes}/>
{finger("left", 1)}
{finger("right", -1)}
              </body>
            </body>
          </body>
        </body>
      </body>
    </body>
    </body>"""


def _block(index: int) -> str:
    x, y, z = PARKING
    half, inset, proud = g.BLOCK / 2, g.BLOCK / 2 - 0.0028, g.BLOCK / 2 + 0.0003
    faces = "".join(
        f'      <geom class="visual" group="{HIDDEN_GROUP}" type="box" size="{sx} {sy} {sz}"/>\n'
        for sx, sy, sz in ((proud, inset, inset), (inset, proud, inset), (inset, inset, proud))
    )
    return f"""    <body name="block{index}" pos="{x - 0.1 * index} {y} {z}">
      <freejoint name="block{index}"/>
      <geom name="block{index}" group="{HIDDEN_GROUP}" type="box" size="{half} {half} {half}" mass="0.04"/>
{faces}    </body>
"""


def _actuators() -> str:
    stiffness = (2400, 2400, 1800, 500, 500, 250)
    torque = (120, 120, 90, 40, 40, 20)
    arm = "".join(
        f'    <position name="joint{i + 1}" joint="joint{i + 1}" kp="{kp}" dampratio="1"'
        f' forcerange="{-f} {f}" ctrlrange="{g.JOINT_LOWER[i]} {g.JOINT_UPPER[i]}"/>\n'
        for i, (kp, f) in enumerate(zip(stiffness, torque, strict=True))
    )
    return arm + (
        f'    <position name="gripper" tendon="opening" kp="700" dampratio="1" forcerange="-14 14"'
        f' ctrlrange="0 {g.JOINT_UPPER[6]}"/>\n'
    )


def _plain_box(x: float, y: float, z: float, sx: float, sy: float, sz: float, material: str) -> str:
    """A box that is seen but not touched: center and half sizes [m]."""
    return (
        f'<geom class="visual" type="box" pos="{x} {y} {z}" size="{sx} {sy} {sz}" material="{material}"/>\n'
    )


def _camera(
    name: str, eye: tuple[float, float, float], target: tuple[float, float, float], fovy: float
) -> str:
    axes = _camera_axes(np.array(target) - np.array(eye), np.array([0.0, 0.0, 1.0]))
    return f'    <camera name="{name}" pos="{eye[0]} {eye[1]} {eye[2]}" fovy="{fovy}" {axes}/>'


def _camera_axes(view: NDArray[np.float64], up: NDArray[np.float64]) -> str:
    """The `xyaxes` of a camera that looks along `view` with `up` upwards in the picture."""
    right = np.cross(view, up)
    right /= np.linalg.norm(right)
    above = np.cross(right, view)
    above /= np.linalg.norm(above)
    return 'xyaxes="' + " ".join(f"{v:.6f}" for v in (*right, *above)) + '"'


if __name__ == "__main__":
    print(mjcf(), end="")
