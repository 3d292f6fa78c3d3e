# SPDX-License-Identifier: Apache-2.0
"""A flow-matching policy whose answer is known: chunks scattered about the expert's plan, no two alike.

Here lives the stand-in for a model in `joins`: a Gaussian about the scripted expert's plan, with deviations
that change slowly along the chunk and grow towards its end, as those of a learned policy do. Its velocity
field is exact, so the denoise loop, the guide and the schedule are those of the models (models.pi05.flow),
without a network in between.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.models.interface import Guide
from oxygen_ros.models.pi05.flow import integrate
from oxygen_ros.observation import Previous
from oxygen_ros.sim.expert import plan
from oxygen_ros.sim.state import State
from oxygen_ros.sim.task import Task

SCATTER: Final = np.array([0.03, 0.03, 0.03, 0.03, 0.03, 0.03, 0.002])
"""Standard deviation of an action at the chunk's end, of each joint [rad, the gripper m]."""
_AT_ONCE: Final = 0.25
"""Part of it that the first action has already."""
_MEMORY: Final = 0.3
"""Seconds along the chunk over which deviations change."""
UNIT: Final = np.array([0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.03])
"""What 1 is in the model's units: deltas from the joints observed [rad, the gripper m]."""


class ScatteredExpert:
    """Chunks [H, 7] of joint targets for a state."""

    def __init__(self, task: Task, horizon: int, step: float, denoise_steps: int, seed: int) -> None:
        self.horizon, self.step, self.denoise_steps = horizon, step, denoise_steps
        self._task = task
        self._noise = np.random.default_rng(seed)
        self._times = [1.0 - k / denoise_steps for k in range(denoise_steps)]
        at = step * np.arange(1, horizon + 1)
        grown = _AT_ONCE + (1 - _AT_ONCE) * at / at[-1]
        alike = np.exp(-0.5 * ((at[:, None] - at) / _MEMORY) ** 2)
        covariance = alike * grown[:, None] * grown + 1e-8 * np.eye(horizon)
        # E[x1 | x_t] = mean + gain (x_t - (1 - t) mean), for every joint alike, up to its scale.
        self._gains = [
            [torch.from_numpy(self._gain(covariance * scale**2, t)).float() for scale in SCATTER / UNIT]
            for t in self._times
        ]

    def act(self, state: State, previous: Previous | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A chunk, and the expert's own plan it is scattered about, both [H, 7].

        previous: what the denoise loop is guided towards
        """
        wanted = plan(state, self._task, self.horizon, self.step)
        joints = state.positions
        mean = self._normalize(wanted, joints)
        guide = None
        if previous is not None:
            weights = torch.from_numpy(previous.weights).float()[:, None].expand_as(mean)
            guide = Guide(self._normalize(previous.actions, joints), weights, previous.max_weight)
        noise = torch.from_numpy(self._noise.standard_normal(wanted.shape)).float()

        def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
            t = self._times[step]
            away = x - (1 - t) * mean
            clean = mean + torch.stack([gain @ away[:, j] for j, gain in enumerate(self._gains[step])], 1)
            return (x - clean) / t

        actions = integrate(noise, self._times, velocity, guide)
        return actions.double().numpy() * UNIT + joints, wanted

    @staticmethod
    def _gain(covariance: NDArray[np.float64], t: float) -> NDArray[np.float64]:
        seen = (1 - t) ** 2 * covariance + t**2 * np.eye(len(covariance))
        gain: NDArray[np.float64] = (1 - t) * np.linalg.solve(seen, covariance).T
        return gain

    @staticmethod
    def _normalize(actions: NDArray[np.float64], joints: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy((actions - joints) / UNIT).float()
