# SPDX-License-Identifier: Apache-2.0
"""The simulation: a seed in; joint targets in, states and pictures out. Deterministic.

The only code that touches MuJoCo's data. No ROS, no policy. A `World` belongs to one thread (its pictures'
graphics context does).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.kinematics import Pose, inverse
from oxygen_ros.demo.sim.physics import mujoco
from oxygen_ros.demo.sim.render import OffscreenCamera
from oxygen_ros.demo.sim.scene import HIDDEN_GROUP, PARKING, RGBA, SHOWN_GROUP, SMOOTH, mjcf
from oxygen_ros.demo.sim.state import Block, State
from oxygen_ros.demo.sim.task import Task

_SUBSTEPS: Final = round(g.CONTROL_PERIOD / g.PHYSICS_STEP)
_SPACING: Final = 0.069
"""Least distance between two blocks' centers [m]: open fingers fit between, at one of two yaws."""
_MARGIN: Final = 0.029
"""From a block's center to the mat's edge [m]: a block at any yaw stays on the mat."""
_DRAWS: Final = 20_000


def rest_joints() -> NDArray[np.float64]:
    """Joints [7] of the rest pose, gripper open."""
    return np.append(inverse(Pose(*g.REST_POSE)), g.OPEN)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All of a world at one instant, for `World.restore`. Opaque."""

    physics: NDArray[np.float64]
    targets: NDArray[np.float64]
    previous: NDArray[np.float64]
    colors: tuple[str, ...]


class World:
    """The arm, the table, the box and the blocks of one layout."""

    def __init__(self, seed: int = 0, task: Task | None = None) -> None:
        """`task` decides which color there are most blocks of; None means the default task."""
        self.task = task or Task()
        self._model = mujoco.MjModel.from_xml_string(mjcf())
        self._data = mujoco.MjData(self._model)
        self._cameras: dict[tuple[int, int, bool], OffscreenCamera] = {}
        names = [f"block{i}" for i in range(g.MAX_BLOCKS)]
        self._block_body = [self._model.body(name).id for name in names]
        self._block_geom = [self._model.geom(name).id for name in names]
        self._block_qpos = [int(self._model.joint(name).qposadr[0]) for name in names]
        self._pads = (self._model.geom("pad_left").id, self._model.geom("pad_right").id)
        self._colors: tuple[str, ...] = ()
        self.reset(seed)

    # --- time -----------------------------------------------------------------------------------

    def reset(self, seed: int) -> None:
        """A new layout: three or four blocks of the task's color, one or two others; the arm at rest."""
        self.seed = seed
        rng = np.random.default_rng(seed)
        mujoco.mj_resetData(self._model, self._data)
        rest = rest_joints()
        self._data.qpos[:6] = rest[:6]
        self._data.qpos[6:8] = rest[6] / 2
        self._data.ctrl[:] = rest
        self._targets = rest
        self._previous = rest.copy()
        others = [color for color in g.COLORS if color != self.task.color]
        colors = [self.task.color] * int(rng.integers(3, 5))
        colors += [str(c) for c in rng.choice(others, int(rng.integers(1, 3)), replace=False)]
        self._colors = tuple(colors)
        self._paint()
        for i, (x, y) in enumerate(_scatter(rng, len(colors))):
            self._place(i, (x, y, g.BLOCK / 2), float(rng.uniform(-math.pi / 4, math.pi / 4)))
        mujoco.mj_forward(self._model, self._data)

    def step(self, targets: NDArray[np.float64]) -> None:
        """Advance one control period while the command moves evenly from the last targets to `targets` [7].

        Targets outside a joint's range are moved to its end, as the actuators do. Raises ValueError
        for a wrong shape or a value that is not finite.
        """
        wanted = np.asarray(targets, dtype=np.float64)
        if wanted.shape != (len(g.JOINTS),):
            raise ValueError(f"targets have shape {wanted.shape}; they must be [{len(g.JOINTS)}]")
        if not np.isfinite(wanted).all():
            bad = g.JOINTS[int(np.flatnonzero(~np.isfinite(wanted))[0])]
            raise ValueError(f"target of {bad} is not finite: {wanted.tolist()}")
        self._previous, self._targets = self._targets, g.clip_joints(wanted)
        for i in range(1, _SUBSTEPS + 1):
            self._data.ctrl[:] = self._previous + (self._targets - self._previous) * (i / _SUBSTEPS)
            mujoco.mj_step(self._model, self._data)

    def advance(self, seconds: float) -> None:
        """Advance by whole control periods (rounded) while the command stays where it is."""
        for _ in range(round(seconds / g.CONTROL_PERIOD)):
            self.step(self._targets)

    # --- what is seen ---------------------------------------------------------------------------

    @property
    def time(self) -> float:
        """Seconds since the reset."""
        return float(self._data.time)

    def joint_positions(self) -> NDArray[np.float64]:
        """Measured joints [7] in the order of `geometry.JOINTS`; rad, the gripper's opening in m."""
        return _seven(self._data.qpos)

    def joint_velocities(self) -> NDArray[np.float64]:
        """Their rates [7], rad/s and m/s."""
        return _seven(self._data.qvel)

    def joint_efforts(self) -> NDArray[np.float64]:
        """What the actuators push with [7], N m and N."""
        return np.array(self._data.actuator_force)

    def state(self) -> State:
        """Everything at this instant, as an immutable value that later steps do not change."""
        held = self._held_blocks()
        blocks = tuple(self._read_block(i, i in held) for i in range(len(self._colors)))
        arrays = (
            self.joint_positions(),
            self.joint_velocities(),
            self._targets.copy(),
            (self._targets - self._previous) / g.CONTROL_PERIOD,
        )
        for array in arrays:
            array.flags.writeable = False
        return State(self.time, *arrays, blocks)

    def blocks_in_box(self, color: str) -> int:
        """How many blocks of `color` are in the box."""
        return self.state().count_in_box(color)

    def render(
        self, camera: str, height: int = 224, width: int = 224, smooth: bool | None = None
    ) -> NDArray[np.uint8]:
        """A picture uint8 [height, width, 3] (RGB, row 0 on top) from "top", "wrist" or "side".

        `smooth` antialiases; None means as `scene.SMOOTH` says for the camera.
        Raises `render.GraphicsUnavailable`, which names the packages to install.
        """
        key = (height, width, SMOOTH.get(camera, False) if smooth is None else smooth)
        if key not in self._cameras:
            self._cameras[key] = OffscreenCamera(self._model, *key)
        return self._cameras[key].draw(self._data, camera)

    # --- changes by hand ------------------------------------------------------------------------

    def place_block(self, index: int, position: tuple[float, float, float], yaw: float = 0.0) -> None:
        """Put block `index` (in play) somewhere, at rest: for tests and for layouts made by hand."""
        if not 0 <= index < len(self._colors):
            raise ValueError(f"block {index} is not in play; there are {len(self._colors)}")
        self._place(index, position, yaw)
        mujoco.mj_forward(self._model, self._data)

    def place_arm(self, joints: NDArray[np.float64]) -> None:
        """Put the arm somewhere [7], at rest and commanded to stay there: for layouts made by hand."""
        placed = g.clip_joints(joints)
        self._data.qpos[:6], self._data.qpos[6:8] = placed[:6], placed[6] / 2
        self._data.qvel[:8] = 0.0
        self._data.ctrl[:] = placed
        self._targets, self._previous = placed, placed.copy()
        mujoco.mj_forward(self._model, self._data)

    def remove_block(self, index: int) -> None:
        """Take the last block out of play; raises ValueError for any other, whose numbers would shift."""
        if index != len(self._colors) - 1:
            raise ValueError(f"only the last block ({len(self._colors) - 1}) can be removed, not {index}")
        self._colors = self._colors[:-1]
        self._paint()
        self._place(index, (PARKING[0] - 0.1 * index, PARKING[1], PARKING[2]), 0.0)
        mujoco.mj_forward(self._model, self._data)

    def snapshot(self) -> Snapshot:
        """All of the world, for `restore`."""
        kind = mujoco.mjtState.mjSTATE_INTEGRATION.value
        physics = np.empty(mujoco.mj_stateSize(self._model, kind))
        mujoco.mj_getState(self._model, self._data, physics, kind)
        return Snapshot(physics, self._targets.copy(), self._previous.copy(), self._colors)

    def restore(self, snapshot: Snapshot) -> None:
        """Back to a snapshot; what follows is the same as it was then, bit for bit."""
        mujoco.mj_setState(
            self._model, self._data, snapshot.physics, mujoco.mjtState.mjSTATE_INTEGRATION.value
        )
        self._targets, self._previous = snapshot.targets.copy(), snapshot.previous.copy()
        self._colors = snapshot.colors
        self._paint()
        mujoco.mj_forward(self._model, self._data)

    def close(self) -> None:
        """Free the graphics contexts."""
        while self._cameras:
            self._cameras.popitem()[1].close()

    # --- inside ---------------------------------------------------------------------------------

    def _place(self, index: int, position: tuple[float, float, float], yaw: float) -> None:
        at = self._block_qpos[index]
        self._data.qpos[at : at + 7] = (*position, math.cos(yaw / 2), 0.0, 0.0, math.sin(yaw / 2))
        speed = int(self._model.body_dofadr[self._block_body[index]])
        self._data.qvel[speed : speed + 6] = 0.0

    def _paint(self) -> None:
        for index, body in enumerate(self._block_body):
            first = int(self._model.body_geomadr[body])
            last = first + int(self._model.body_geomnum[body])
            shown = index < len(self._colors)
            self._model.geom_group[first:last] = SHOWN_GROUP if shown else HIDDEN_GROUP
            if shown:
                faces = np.array(RGBA[self._colors[index]])
                edges = faces * (0.72, 0.72, 0.72, 1.0)
                self._model.geom_rgba[first] = edges
                self._model.geom_rgba[first + 1 : last] = faces

    def _held_blocks(self) -> set[int]:
        touched: dict[int, set[int]] = {}
        for pair in self._data.contact.geom:
            for pad, other in ((pair[0], pair[1]), (pair[1], pair[0])):
                if pad in self._pads and other in self._block_geom:
                    touched.setdefault(self._block_geom.index(other), set()).add(int(pad))
        return {block for block, pads in touched.items() if len(pads) == len(self._pads)}

    def _read_block(self, index: int, held: bool) -> Block:
        at = self._block_qpos[index]
        x, y, z, *turn = (float(v) for v in self._data.qpos[at : at + 7])
        reach = g.BOX_OUTER / 2
        inside = abs(x - g.BOX_CENTER[0]) < reach and abs(y - g.BOX_CENTER[1]) < reach
        below = z < g.BOX_HEIGHT - 0.01
        return Block(
            self._colors[index],
            (x, y, z),
            (turn[0], turn[1], turn[2], turn[3]),
            inside and below and not held,
            held,
        )


def _seven(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The arm's six and the sum of the two fingers: MuJoCo's first eight to our seven."""
    return np.append(values[:6], values[6] + values[7])


def _scatter(rng: np.random.Generator, count: int) -> list[tuple[float, float]]:
    """`count` places on the mat, none closer than `_SPACING`; starts over when no place is left."""
    reach = np.array(g.MAT_SIZE) / 2 - _MARGIN
    places: list[NDArray[np.float64]] = []
    misses = 0
    for _ in range(_DRAWS):
        place = np.array(g.MAT_CENTER) + rng.uniform(-reach, reach)
        if all(np.hypot(*(place - other)) >= _SPACING for other in places):
            places.append(place)
            misses = 0
        else:
            misses += 1
        if misses > 60:
            places, misses = [], 0
        if len(places) == count:
            return [(float(x), float(y)) for x, y in places]
    raise RuntimeError(f"no room for {count} blocks {_SPACING} m apart on a mat of {g.MAT_SIZE} m")
