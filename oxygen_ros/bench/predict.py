# SPDX-License-Identifier: Apache-2.0
"""What a tick costs by its components alone, the ratio that follows, and the k for a tick time.

    tick = prefills · P + completions · C + D + Σ over its decode steps of E(rows)

P, C, D and E are times of one prefill, of what only text adds to a prefix (nothing in most families), one
denoise loop and one decode step, each measured alone. A measured tick's time beyond this is the
cost of scheduling.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from oxygen_ros.bench.workload import Shape, TickPlan, fill_ticks, make_plan


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds of the components; decode steps by (rows, prefixes)."""

    prefill: float
    denoise: float
    decode: Mapping[Shape, float]
    completion: float = 0.0

    def step(self, shape: Shape) -> float:
        """Seconds of a decode step: as measured, else between the nearest measured row counts."""
        if shape in self.decode:
            return self.decode[shape]
        rows, seconds = zip(*sorted((rows, cost) for (rows, _), cost in self.decode.items()), strict=True)
        return interpolate(shape[0], rows, seconds)


def interpolate(at: float, places: tuple[int, ...], values: tuple[float, ...]) -> float:
    """Linear between ascending places; beyond the last in proportion, below the first the first."""
    after = bisect_left(places, at)
    if after == 0:
        return values[0]
    if after == len(places):
        return values[-1] * at / places[-1]
    low, high = places[after - 1], places[after]
    return values[after - 1] + (values[after] - values[after - 1]) * (at - low) / (high - low)


def predict_tick(plan: TickPlan, costs: Costs) -> float:
    """Seconds of one tick from its components."""
    whole = plan.prefills * costs.prefill + plan.completions * costs.completion + costs.denoise
    return whole + sum(costs.step(shape) for shape in plan.steps)


def predict_ratio(
    isolated: Iterable[TickPlan], isolated_costs: Costs, ticks: Iterable[TickPlan], costs: Costs
) -> float:
    """How many times longer the isolated ticks take, by components."""
    slow = sum(predict_tick(plan, isolated_costs) for plan in isolated)
    return slow / sum(predict_tick(plan, costs) for plan in ticks)


@dataclass(frozen=True, slots=True)
class Choice:
    """A possible k: the tick it is predicted to take [s], and the ticks from a request to its text."""

    k: int
    tick: float
    text_ticks: int


def choices(n: int, requests: int, suffix: int, costs: Costs) -> list[Choice]:
    """Every k from 1 to N that fits into the rows of a step, with its predicted steady tick."""
    found = []
    for k in range(1, n + 1):
        life = fill_ticks(n, k)
        try:
            plan = make_plan("oxygen", [[n] * requests] * (life + 1), k, suffix)
        except ValueError:
            continue  # more in flight than one step has rows for: a larger k is needed
        found.append(Choice(k, predict_tick(plan.ticks[-1], costs), life))
    return found


def recommend(possible: Iterable[Choice], tick: float) -> Choice | None:
    """The largest k whose tick fits: texts end soonest. None when none fits."""
    return max((choice for choice in possible if choice.tick <= tick), key=lambda c: c.k, default=None)


def describe_choice(
    dtype: str, n: int, requests: int, suffix: int, costs: Costs, tick: float
) -> dict[str, str | int | float | None]:
    """An entry of the JSON's `recommended_k`: the k for ticks of `tick` seconds, and its description."""
    possible = choices(n, requests, suffix, costs)
    choice = recommend(possible, tick)
    asked = f"a tick of {tick * 1e3:.0f} ms"
    if choice is not None:
        words = f"k = {choice.k} for {asked} (predicted {choice.tick * 1e3:.0f} ms); "
        words += f"a text takes {choice.text_ticks} tick{'s' * (choice.text_ticks > 1)}"
    elif possible:
        fastest = min(possible, key=lambda c: c.tick)
        words = f"no k fits {asked}; the shortest is {fastest.tick * 1e3:.0f} ms with k = {fastest.k}"
    else:
        words = f"{requests} texts a tick never fit into the rows of one step"
    k, predicted = (choice.k, choice.tick * 1e3) if choice else (None, None)
    words = f"{dtype}, N {n}: {words}"
    return {"dtype": dtype, "n": n, "tick_ms": tick * 1e3, "k": k, "predicted_ms": predicted, "words": words}
