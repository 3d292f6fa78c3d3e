# SPDX-License-Identifier: Apache-2.0
"""Flow integration: both directions of time, their guidance, and the times themselves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oxygen_ros.models import Guide, ModelError
from oxygen_ros.models.flow import Flow, denoise_times, guidance_weight, integrate

STEPS = 4


def velocity_at(time: float, x: torch.Tensor) -> torch.Tensor:
    """Some velocity field of noise-at-1 time."""
    return torch.sin(3 * x + time) - 0.5 * x


def draw(seed: int) -> torch.Tensor:
    return torch.randn(5, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("guide", [None, Guide(draw(1), draw(2).sigmoid(), 5.0), Guide(draw(1), draw(2) * 0)])
def test_time_may_run_either_way(guide: Guide | None) -> None:
    """The same field with time turned round (t -> 1 - t, v -> -v) leads to the same actions."""
    down = Flow([1.0 - k / STEPS for k in range(STEPS)])
    up = Flow([k / STEPS for k in range(STEPS)], noise_at=0.0)
    assert (down.step, up.step) == (-0.25, 0.25)
    one = integrate(draw(0), down, lambda x, step: velocity_at(down.times[step], x), guide)
    other = integrate(draw(0), up, lambda x, step: -velocity_at(1 - up.times[step], x), guide)
    torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)
    free = integrate(draw(0), down, lambda x, step: velocity_at(down.times[step], x))
    assert (guide is not None and bool(guide.weights.any())) == (not torch.allclose(one, free))


def test_an_exact_velocity_ends_at_the_actions() -> None:
    noise, actions = draw(0), draw(1)
    for flow, sign in ((Flow(denoise_times(7, "exact")), 1), (Flow(denoise_times(7, "ascending"), 0.0), -1)):
        got = integrate(noise, flow, lambda x, step, sign=sign: sign * (noise - actions))
        torch.testing.assert_close(got, actions, atol=1e-12, rtol=0)


@pytest.mark.parametrize("noise_at", [0.0, 1.0])
def test_weights_read_on_the_device_are_those_of_the_guide(noise_at: float) -> None:
    flow = Flow(denoise_times(5, "exact" if noise_at else "ascending"), noise_at)
    guide = Guide(draw(1), draw(2).sigmoid(), 3.0)
    weights = torch.tensor(flow.guidance_weights(3.0), dtype=torch.float64)
    both = [integrate(draw(0), flow, lambda x, _: -x, guide, given) for given in (None, weights)]
    torch.testing.assert_close(*both, atol=1e-12, rtol=0)


def test_guidance_weights_are_bounded_and_follow_the_paper() -> None:
    assert guidance_weight(1.0, 7.0) == 7.0
    for t in (0.2, 0.5, 0.8):
        tau = 1 - t
        assert math.isclose(guidance_weight(t, 99.0), t / tau * (t * t + tau * tau) / (t * t))
    assert guidance_weight(0.99, 10.0) == 10.0
    assert Flow([0.0, 0.5], noise_at=0.0).guidance_weights(9.0) == Flow([1.0, 0.5]).guidance_weights(9.0)


def test_denoise_times() -> None:
    for steps in (1, 2, 5, 10, 50):
        exact = denoise_times(steps, "exact")
        assert exact == [float(np.float32(1 - k / steps)) for k in range(steps)]
        assert denoise_times(steps, "ascending") == [float(np.float32(k / steps)) for k in range(steps)]
        summed = denoise_times(steps, "accumulated")
        np.testing.assert_allclose(summed, exact, atol=2e-6)
        assert summed[0] == exact[0] == 1.0
        assert min(summed) > 0
    assert denoise_times(10, "exact") != denoise_times(10, "accumulated")
    with pytest.raises(ModelError, match="at least 1, got 0"):
        denoise_times(0, "ascending")
