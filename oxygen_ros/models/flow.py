# SPDX-License-Identifier: Apache-2.0
"""Flow matching: Euler steps from noise to actions, optionally guided towards the last chunk.

The velocity network is the caller's. Families differ in which way time runs (pi0.5: noise at t = 1, actions
at t = 0; StarVLA and Xiaomi: noise at t = 0, actions at t = 1) and in how the times are rounded.
Guidance is real-time chunking (Black et al. 2025).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.interface import Guide


def denoise_times(steps: int, rule: str) -> list[float]:
    """The S times at which the velocity is taken, in float32.

    "accumulated"  1, 1 - 1/S, ..., 1/S, summed in float32 (openpi)
    "exact"        the same, each time rounded once (lerobot)
    "ascending"    0, 1/S, ..., 1 - 1/S, each rounded once (StarVLA, Xiaomi)

    Raises ModelError for fewer than one step.
    """
    if steps < 1:
        raise ModelError(f"denoise_steps must be at least 1, got {steps}")
    if rule != "accumulated":
        descending = rule == "exact"
        exact = [1.0 - k / steps if descending else k / steps for k in range(steps)]
        return torch.tensor(exact, dtype=torch.float64).float().tolist()
    times = [torch.tensor(1.0)]
    for _ in range(steps - 1):
        times.append(times[-1] + torch.tensor(-1.0 / steps))
    return [time.item() for time in times]


@dataclass(frozen=True, slots=True)
class Flow:
    """One integration from noise to actions in S equal steps.

    times:     of the S steps, see `denoise_times`
    noise_at:  the time of pure noise, 1 or 0; actions are at the other end
    """

    times: Sequence[float]
    noise_at: float = 1.0

    @property
    def step(self) -> float:
        """Signed length of a step."""
        return (1.0 - 2.0 * self.noise_at) / len(self.times)

    def guidance_weights(self, most: float) -> list[float]:
        """Weight of the guide's correction at each step, see `guidance_weight`."""
        return [guidance_weight(t if self.noise_at == 1.0 else 1.0 - t, most) for t in self.times]


def guidance_weight(time: float, most: float) -> float:
    """min(most, t / tau * (t^2 + tau^2) / t^2), tau = 1 - t, where t is the time left: 1 at the noise."""
    tau = 1.0 - time
    if tau <= 0.0:
        return most
    return min(most, (time / tau) * (time * time + tau * tau) / (time * time))


def integrate(
    noise: torch.Tensor,
    flow: Flow,
    velocity: Callable[[torch.Tensor, int], torch.Tensor],
    guide: Guide | None = None,
    weights: torch.Tensor | None = None,
) -> torch.Tensor:
    """Actions [H, D] from noise [H, D]: x <- x + v * step at each of the S times.

    velocity(x, step) is the network's [H, D] in float32. The guide pulls the clean actions that x would end
    at towards `guide.previous` where its weights say so.
    weights: [S] `flow.guidance_weights` where they must be read on the device; default: computed here
    """
    x, dt = noise, flow.step
    descends = flow.noise_at == 1.0
    pulls: Sequence[float] | torch.Tensor = ()
    if guide is not None:
        pulls = flow.guidance_weights(guide.max_weight) if weights is None else weights
    for step, time in enumerate(flow.times):
        v = velocity(x, step)
        if guide is not None:
            clean = x - time * v if descends else x + (1.0 - time) * v
            error = (guide.previous - clean) * guide.weights
            v = v - pulls[step] * error if descends else v + pulls[step] * error
        x = x + dt * v
    return x
