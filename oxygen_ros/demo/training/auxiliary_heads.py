# SPDX-License-Identifier: Apache-2.0
"""Training-only heads; they are dropped at export.

Spotting: each image patch predicts for each color whether a block's center is in it, its offset and its
turn; the truth comes from the scene's cameras. Pointing: half way through the backbone, after patches have
read the instruction, they predict which one has the block to go to. Planning: the last prompt token predicts
the whole chunk without noise, so that the action expert finds it in that token's keys and values early.
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

from oxygen_ros.demo.sim.geometry import COLORS
from oxygen_ros.demo.sim.kinematics import gripper_pose
from oxygen_ros.demo.sim.scene import mjcf
from oxygen_ros.demo.training.records import PHASES

_EACH: Final = 5
"""Numbers of a patch for each color: presence, offset (2), turn (2)."""


class SpottingHead(nn.Module):
    """A linear layer on image tokens [..., width] -> [..., colors, 5]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read = nn.Linear(width, len(COLORS) * _EACH)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.read(patches).unflatten(-1, (len(COLORS), _EACH))
        return out


class PointingHead(nn.Module):
    """A linear layer on image tokens [..., patches, width] -> logits [..., 1 + patches]; first: in none."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.read = nn.Linear(width, 1)

    def forward(self, patches: torch.Tensor) -> torch.Tensor:
        said: torch.Tensor = self.read(F.rms_norm(patches, patches.shape[-1:])).squeeze(-1)
        return F.pad(said, (1, 0))


class PlanningHead(nn.Module):
    """Linear layers on the last prompt token [B, layers, width] -> chunks [B, layers, H, D]."""

    def __init__(self, layers: int, width: int, horizon: int, dim: int) -> None:
        super().__init__()
        self.read = nn.ModuleList(nn.Linear(width, horizon * dim) for _ in range(layers))
        self._shape = (horizon, dim)

    def forward(self, last: torch.Tensor) -> torch.Tensor:
        normed = F.rms_norm(last, last.shape[-1:])
        said = [read(normed[:, i]) for i, read in enumerate(self.read)]
        return torch.stack(said, 1).unflatten(-1, self._shape)


def planning_loss(said: torch.Tensor, actions: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Error of chunks [B, layers, H, D], linear where large: some frames have two right answers."""
    error = F.smooth_l1_loss(said, actions[:, None].expand_as(said), reduction="none", beta=0.1).mean(-1)
    loss: torch.Tensor = (error * weights[:, None]).sum() / (weights.sum() * said.shape[1]).clamp(min=1)
    return loss


def pointing_loss(said: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of the patch to go to. truth: int64 [B, cameras], 0 for none, else 1 + its number."""
    return F.cross_entropy(said.flatten(0, 1), truth.flatten())


def spotting_loss(said: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """Cross-entropy of presence plus squared errors of offset and turn where a block is."""
    present = truth[..., 0]
    found = F.binary_cross_entropy_with_logits(
        said[..., 0], present, pos_weight=torch.tensor(4.0, device=said.device)
    )
    off = ((said[..., 1:] - truth[..., 1:]) ** 2 * present[..., None]).sum() / present.sum().clamp(min=1)
    return found + 0.5 * off


def target_of(record: np.void) -> NDArray[np.float64] | None:
    """Where [3] the block is that the record's hand is about to take; None when it takes none."""
    blocks = record["blocks"].astype(np.float64)
    mine = blocks[blocks[:, 4] == record["acted"]]
    if PHASES[record["phase"]] not in ("reach", "grasp") or not len(mine):
        return None
    here = gripper_pose(record["joints"].astype(np.float64))
    nearest: NDArray[np.float64] = mine[np.argmin(np.hypot(mine[:, 0] - here.x, mine[:, 1] - here.y))]
    return nearest[:3]


class Projector:
    """Blocks in the world to patches of each camera's picture."""

    def __init__(self, cameras: Sequence[str], grid: int) -> None:
        """grid: patches along one side of a picture."""
        self._model = mujoco.MjModel.from_xml_string(mjcf())
        self._data = mujoco.MjData(self._model)
        self._cameras = [self._model.camera(name).id for name in cameras]
        self._grid = grid

    def project(self, joints: NDArray[np.float64], blocks: NDArray[np.float64]) -> NDArray[np.float32]:
        """Truth [cameras, grid * grid, colors, 5] of joints [7] and blocks [n, 5] (x, y, z, yaw, color)."""
        grid = self._grid
        self._pose(joints)
        truth = np.zeros((len(self._cameras), grid, grid, len(COLORS), _EACH), np.float32)
        hand = gripper_pose(joints).yaw
        shown = blocks[blocks[:, 4] >= 0]
        for c, camera in enumerate(self._cameras):
            where, near = self._look(camera, shown[:, :3])
            yaw = shown[:, 3] - (hand if self._model.camera(camera).name == "wrist" else 0.0)
            offset = where - np.floor(where) - 0.5
            # The block nearest to a patch's middle is written last and stays.
            for i in np.argsort(-np.hypot(*offset.T)):
                column, row = np.floor(where[i]).astype(int)
                if near[i] and 0 <= column < grid and 0 <= row < grid:
                    turn = (np.cos(4 * yaw[i]), np.sin(4 * yaw[i]))
                    truth[c, row, column, int(shown[i, 4])] = (1.0, *(2 * offset[i]), *turn)
        return truth.reshape(len(self._cameras), grid * grid, len(COLORS), _EACH)

    def locate(self, joints: NDArray[np.float64], point: NDArray[np.float64]) -> NDArray[np.int64]:
        """Number of the patch [cameras] a `point` [3] is seen in, from 1; 0 where it is out of view."""
        self._pose(joints)
        found = np.zeros(len(self._cameras), np.int64)
        for c, camera in enumerate(self._cameras):
            where, near = self._look(camera, point[None])
            column, row = np.floor(where[0]).astype(int).tolist()
            if near[0] and 0 <= column < self._grid and 0 <= row < self._grid:
                found[c] = 1 + row * self._grid + column
        return found

    def _pose(self, joints: NDArray[np.float64]) -> None:
        self._data.qpos[:6] = joints[:6]
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_camlight(self._model, self._data)

    def _look(
        self, camera: int, points: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Places [n, 2] (column, row) in patches of `points` [n, 3]; whether they are before the camera."""
        data = self._data
        local = (points - data.cam_xpos[camera]) @ data.cam_xmat[camera].reshape(3, 3)
        depth = -local[:, 2]
        near = depth > 0.01
        focal = self._grid / 2 / np.tan(np.radians(self._model.cam_fovy[camera]) / 2)
        where = np.stack([local[:, 0], -local[:, 1]], 1) / np.where(near, depth, 1)[:, None]
        return self._grid / 2 + focal * where, near
