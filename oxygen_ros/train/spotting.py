# SPDX-License-Identifier: Apache-2.0
"""Training-only heads that make image patches say where the blocks are.

For every patch and colour: is a block's centre in it, where in it, and how is it turned. Where the
centres are comes from the scene's own cameras. The head is dropped at export.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import mujoco
import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn

from oxygen_ros.sim.geometry import COLOURS
from oxygen_ros.sim.kinematics import gripper_pose
from oxygen_ros.sim.scene import mjcf

_EACH: Final = 5
"""Numbers a patch says of a colour: presence, offset (2), turn (2)."""


class SpottingHead(nn.Module):
    """A linear layer on image tokens [..., width] -> [..., colours, 5]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read = nn.Linear(width, len(COLOURS) * _EACH)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.read(patches).unflatten(-1, (len(COLOURS), _EACH))
        return out


def spotting_loss(said: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of presence plus squared errors of offset and turn where a block is."""
    present = truth[..., 0]
    found = F.binary_cross_entropy_with_logits(
        said[..., 0], present, pos_weight=torch.tensor(4.0, device=said.device)
    )
    off = ((said[..., 1:] - truth[..., 1:]) ** 2 * present[..., None]).sum() / present.sum().clamp(min=1)
    return found + 0.5 * off


class Projector:
    """Blocks in the world to patches of each camera's picture."""

    def __init__(self, cameras: Sequence[str], grid: int) -> None:
        """grid: patches along one side of a picture."""
        self._model = mujoco.MjModel.from_xml_string(mjcf())
        self._data = mujoco.MjData(self._model)
        self._cameras = [self._model.camera(name).id for name in cameras]
        self._grid = grid

    def project(self, joints: NDArray[np.float64], blocks: NDArray[np.float64]) -> NDArray[np.float32]:
        """Truth [cameras, grid * grid, colours, 5] of joints [7] and blocks [n, 5] (x, y, z, yaw, colour)."""
        data, grid = self._data, self._grid
        data.qpos[:6] = joints[:6]
        mujoco.mj_kinematics(self._model, data)
        mujoco.mj_camlight(self._model, data)
        truth = np.zeros((len(self._cameras), grid, grid, len(COLOURS), _EACH), np.float32)
        hand = gripper_pose(joints).yaw
        shown = blocks[blocks[:, 4] >= 0]
        for c, camera in enumerate(self._cameras):
            local = (shown[:, :3] - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)
            depth = -local[:, 2]
            near = depth > 0.01
            focal = grid / 2 / np.tan(np.radians(self._model.cam_fovy[camera]) / 2)
            where = np.stack([local[:, 0], -local[:, 1]], 1) / np.where(near, depth, 1)[:, None]
            where = grid / 2 + focal * where
            yaw = shown[:, 3] - (hand if self._model.camera(camera).name == "wrist" else 0.0)
            offset = where - np.floor(where) - 0.5
            # The block nearest to a patch's middle is written last and stays.
            for i in np.argsort(-np.hypot(*offset.T)):
                column, row = np.floor(where[i]).astype(int)
                if near[i] and 0 <= column < grid and 0 <= row < grid:
                    turn = (np.cos(4 * yaw[i]), np.sin(4 * yaw[i]))
                    truth[c, row, column, int(shown[i, 4])] = (1.0, *(2 * offset[i]), *turn)
        return truth.reshape(len(self._cameras), grid * grid, len(COLOURS), _EACH)
