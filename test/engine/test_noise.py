# SPDX-License-Identifier: Apache-2.0
"""Random numbers from (seed, stamp) alone: golden first values, no state between calls, sampling."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.engine.noise import draw_noise, draw_uniform
from oxygen_ros.engine.sampling import choose_greedy, choose_sampled

STAMP = 1_700_000_000_123_456_789
NOISE_0 = [0.059911, 0.0155596, -1.1644385, -0.1326471]
NOISE_7 = [1.2627102, 1.5450594, 1.0463219, 1.4465942]
UNIFORM_0 = 0.04459709340848028
UNIFORM_7 = 0.4285579175132629
seeds, stamps = st.integers(-(2**40), 2**40), st.integers(-(2**62), 2**62)


def test_the_first_values_never_change() -> None:
    """Pinned: a bag recorded today replays to the same chunks in ten years."""
    assert draw_noise(0, 0, (4,)).tolist() == pytest.approx(NOISE_0, abs=1e-6)
    assert draw_noise(7, STAMP, (2, 2)).ravel().tolist() == pytest.approx(NOISE_7, abs=1e-6)
    assert draw_uniform(0, 0, "memory", 0) == pytest.approx(UNIFORM_0, abs=1e-15)
    assert draw_uniform(7, STAMP, "answer", 3) == pytest.approx(UNIFORM_7, abs=1e-15)


@given(keys=st.lists(st.tuples(seeds, stamps), min_size=2, max_size=6, unique=True), order=st.randoms())
def test_the_order_of_calls_does_not_matter(keys: list[tuple[int, int]], order: object) -> None:
    first = {key: draw_noise(*key, (3, 2)) for key in keys}
    order.shuffle(keys)  # type: ignore[attr-defined]
    for key in keys:
        draw_uniform(*key, "memory", 1)
        assert np.array_equal(draw_noise(*key, (3, 2)), first[key])
    values = [array.tobytes() for array in first.values()]
    assert len(set(values)) == len(values)


def test_noise_is_standard_normal_float32() -> None:
    noise = np.concatenate([draw_noise(1, stamp, (50, 32)) for stamp in range(40)])
    assert noise.dtype == np.float32
    assert abs(noise.mean()) < 0.02
    assert noise.std() == pytest.approx(1.0, abs=0.02)


def test_uniform_depends_on_everything_it_is_drawn_from() -> None:
    keys = [(s, t, k, i) for s in (0, 1) for t in (0, 1) for k in ("memory", "answer") for i in range(50)]
    drawn = [draw_uniform(*key) for key in keys]
    assert len(set(drawn)) == len(keys)
    assert all(0 <= number < 1 for number in drawn)
    assert np.mean(drawn) == pytest.approx(0.5, abs=0.06)


# -- sampling ------------------------------------------------------------------------------------


def _plain(logits: np.ndarray, temperature: float, top_p: float, uniform: float) -> int:
    """Nucleus sampling in words: most probable first, until they sum to top_p, then one at random.

    Returns the place in the order of probability.
    """
    weights = np.exp((logits - logits.max()) / temperature)
    shares = np.sort(weights / weights.sum())[::-1]
    size = next((n for n in range(1, len(shares) + 1) if shares[:n].sum() >= top_p), len(shares))
    lot = uniform * shares[:size].sum()
    return next((n for n in range(size) if lot < shares[: n + 1].sum()), size - 1)


@given(
    seed=st.integers(0, 10_000),
    temperature=st.floats(0.2, 3),
    top_p=st.floats(0.05, 1),
    uniform=st.floats(0, 1, exclude_max=True),
)
def test_sampling_agrees_with_a_plain_one(
    seed: int, temperature: float, top_p: float, uniform: float
) -> None:
    logits = np.random.default_rng(seed).standard_normal(12).astype(np.float32) * 3
    knobs = (torch.tensor([x]) for x in (temperature, top_p, uniform))
    chosen = int(choose_sampled(torch.from_numpy(logits)[None], *knobs))
    place = np.argsort(-logits, kind="stable").tolist().index(chosen)
    # Float32 sums may fall to either side of an edge.
    near = [
        _plain(logits.astype(np.float64), temperature, min(p, 1.0), min(max(u, 0.0), 1.0))
        for p in (top_p - 1e-5, top_p, top_p + 1e-5)
        for u in (uniform - 1e-5, uniform, uniform + 1e-5)
    ]
    assert min(near) <= place <= max(near)


def test_sampled_frequencies_are_the_probabilities() -> None:
    logits = torch.tensor([[0.0, 1.0, 2.0, -1.0]]).repeat(2000, 1)
    uniform = (torch.arange(2000) + 0.5) / 2000
    chosen = choose_sampled(logits, torch.full((2000,), 2.0), torch.ones(2000), uniform)
    shares = torch.bincount(chosen, minlength=4) / 2000
    assert torch.allclose(shares, torch.softmax(logits[0] / 2, 0), atol=1e-3)


def test_rows_are_sampled_each_by_its_own_knobs() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.9]] * 3)
    chosen = choose_sampled(
        logits, torch.tensor([1.0, 1.0, 1.0]), torch.tensor([0.1, 1.0, 1.0]), torch.tensor([0.99, 0.99, 0.6])
    )
    assert chosen.tolist() == [1, 0, 2]


def test_a_lot_that_rounds_to_one_never_picks_an_impossible_token() -> None:
    logits = torch.tensor([[0.0, 1.0, -90.0]])
    last = 1 - 2**-53  # the largest double below 1
    assert choose_sampled(logits, torch.ones(1), torch.ones(1), torch.tensor([last])).tolist() == [0]


def test_a_tiny_nucleus_is_greedy_and_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[1.0, 5.0, 5.0, 0.0]])
    assert choose_greedy(logits).tolist() == [1]
    assert choose_sampled(logits, torch.ones(1), torch.tensor([1e-6]), torch.tensor([0.999])).tolist() == [1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_greedy_is_the_first_of_the_largest_whatever_the_signs(dtype: torch.dtype) -> None:
    rows = [
        torch.randn(97, generator=torch.Generator().manual_seed(0)),
        -torch.rand(97, generator=torch.Generator().manual_seed(1)) - 1,  # all below zero
        torch.tensor([-1.0, -0.0, 0.0, -2.0]).repeat(25)[:97],  # the largest are zeros of either sign
        torch.tensor([1.0, 3.0, 3.0, -9.0]).repeat(25)[:97],  # a tie above zero
        torch.full((97,), -torch.inf),
    ]
    for logits in (torch.stack(rows), rows[0][None], torch.stack(rows)[:0]):
        logits = logits.to(dtype)
        first = [row.index(max(row)) for row in logits.tolist()]
        assert choose_greedy(logits).tolist() == first


def test_each_expert_has_noise_of_its_own() -> None:
    assert np.array_equal(draw_noise(7, STAMP, (4,), expert=0), draw_noise(7, STAMP, (4,)))
    drawn = [draw_noise(7, STAMP, (4,), expert).tobytes() for expert in range(4)]
    assert len(set(drawn)) == 4
