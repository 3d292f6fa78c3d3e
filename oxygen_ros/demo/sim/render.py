# SPDX-License-Identifier: Apache-2.0
"""Off-screen pictures of a MuJoCo model, or an error with the packages to install.

`MUJOCO_GL` chooses the backend of the graphics context (egl when unset). A context belongs to the thread
that made it: make, use and close an `OffscreenCamera` in one thread.
"""

from __future__ import annotations

import importlib
import os
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim.physics import mujoco

_BACKENDS: Final = ("egl", "osmesa", "glfw")
_SAMPLES: Final = 4
_CURE: Final = (
    "on Debian 12 or Ubuntu install: sudo apt-get install libegl1 libgl1-mesa-dri "
    "(for MUJOCO_GL=osmesa: libosmesa6); then run again with MUJOCO_GL=egl"
)


class GraphicsUnavailable(RuntimeError):
    """No off-screen OpenGL context can be made; the message names the packages to install."""


class OffscreenCamera:
    """Draws the model into a picture of one size, from any of the model's cameras."""

    def __init__(self, model: mujoco.MjModel, height: int, width: int, smooth: bool) -> None:
        """`smooth` antialiases (about three times slower on a CPU).

        Raises GraphicsUnavailable without OpenGL, ValueError for a size the model's buffer cannot hold.
        """
        most = model.vis.global_
        if not (0 < height <= most.offheight and 0 < width <= most.offwidth):
            raise ValueError(
                f"picture {height} x {width} px; it must be within {most.offheight} x {most.offwidth}"
            )
        self._model = model
        self._shape = (height, width, 3)
        self._rect = mujoco.MjrRect(0, 0, width, height)
        self._gl = _make_context(height, width)
        self._gl.make_current()
        model.vis.quality.offsamples = _SAMPLES if smooth else 0
        try:
            self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100.value)
        except mujoco.FatalError as error:
            self._gl.free()
            raise GraphicsUnavailable(f"OpenGL starts but cannot draw: {error}; {_CURE}") from error
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN.value, self._context)
        self._scene = mujoco.MjvScene(model=model, maxgeom=400)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._view = mujoco.MjvCamera()
        self._view.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._options = mujoco.MjvOption()

    def draw(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """A new picture uint8 [H, W, 3] (RGB, row 0 on top). Raises ValueError for an unknown camera."""
        number = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
        if number < 0:
            known = ", ".join(self._model.camera(i).name for i in range(self._model.ncam))
            raise ValueError(f"camera {camera!r} does not exist; the cameras are {known}")
        self._view.fixedcamid = number
        self._gl.make_current()
        mujoco.mjv_updateScene(
            self._model, data, self._options, None, self._view, mujoco.mjtCatBit.mjCAT_ALL.value, self._scene
        )
        mujoco.mjr_render(self._rect, self._scene, self._context)
        picture = np.empty(self._shape, np.uint8)
        mujoco.mjr_readPixels(picture, None, self._rect, self._context)
        return np.ascontiguousarray(picture[::-1])

    def close(self) -> None:
        """Free the context. Call it from the thread that made it."""
        self._gl.make_current()
        self._context.free()
        self._gl.free()


def _make_context(height: int, width: int) -> Any:
    backend = os.environ.get("MUJOCO_GL", "").lower() or "egl"
    if backend not in _BACKENDS:
        raise GraphicsUnavailable(f"MUJOCO_GL={backend!r} is unknown; use one of {', '.join(_BACKENDS)}")
    # Mesa's software renderer is fastest for pictures this small when it starts no threads of its own.
    os.environ.setdefault("LP_NUM_THREADS", "0")
    try:
        return importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
    except (ImportError, AttributeError, OSError, RuntimeError) as error:
        # A missing library shows up as any of these, depending on which one is missing.
        raise GraphicsUnavailable(f"no OpenGL context with MUJOCO_GL={backend}: {error}; {_CURE}") from error
