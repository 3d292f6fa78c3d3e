# SPDX-License-Identifier: Apache-2.0
"""MuJoCo, imported so that physics works where pictures do not.

MuJoCo loads the OpenGL library `MUJOCO_GL` names while it is imported, and on a
machine without it that import fails in many ways. So the variable is "disabled" meanwhile; `render` makes
the graphics context later, for the first picture, and reports what is missing.
"""

from __future__ import annotations

import os

_wanted = os.environ.get("MUJOCO_GL")
os.environ["MUJOCO_GL"] = "disabled"
try:
    import mujoco
finally:
    if _wanted is None:
        del os.environ["MUJOCO_GL"]
    else:
        os.environ["MUJOCO_GL"] = _wanted

__all__ = ["mujoco"]
