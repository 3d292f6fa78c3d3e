# SPDX-License-Identifier: Apache-2.0
"""Euler steps of flow matching from noise (t = 1) to actions (t = 0), with an optional guide.

Here lives the integration and real-time-chunking guidance (Black et al. 2025); the velocity is the
caller's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from oxygen_ros.models.interface import Guide


def guidance_weight(time: float, most: float) -> float:
    """Weight of the correction at denoise time t: min(most, t/tau * (t^2 + tau^2)/t^2), tau = 1 - t."""
    tau = 1.0 - time
    if tau <= 0.0:
        return most
    return min(most, (time / tau) * (time * time + tau * tau) / (time * time))


def integrate(
    noise: torch.Tensor,
    times: Sequence[float],
    velocity: Callable[[torch.Tensor, int], torch.Tensor],
    guide: Guide | None = None,
    pulls: torch.Tensor | None = None,
) -> torch.Tensor:
    """Actions [H, D] from noise [H, D]: x <- x - v / S at each of the S times.

    velocity(x, step) is the network's [H, D] in float32. The guide pulls the clean actions that
    x would end at, x - t * v, towards `guide.previous` where its weights say so. pulls: [S] the guidance
    weights of the steps, where they must be read on the device; default: from `guide.max_weight`.
    """
    x = noise
    dt = -1.0 / len(times)
    for step, time in enumerate(times):
        v = velocity(x, step)
        if guide is not None:
            error = (guide.previous - (x - time * v)) * guide.weights
            v = v - (guidance_weight(time, guide.max_weight) if pulls is None else pulls[step]) * error
        x = x + dt * v
    return x
