# SPDX-License-Identifier: Apache-2.0
"""How many slots the configured text needs: pools are made once and never grow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from oxygen_ros.engine.budget import Budget
from oxygen_ros.models.interface import Capacity


@dataclass(frozen=True, slots=True)
class Load:
    """How much text one kind asks for.

    max_tokens:     N, token limit of one text
    prompt_tokens:  tokens of its prompt suffix
    every_n_ticks:  a request every so many ticks; 0: only on request
    at_once:        requests of a kind without cadence that may be under way together
    """

    max_tokens: int
    prompt_tokens: int
    every_n_ticks: int = 1
    at_once: int = 4


def ticks_of_text(max_tokens: int, steps: int) -> int:
    """Ticks a text of `max_tokens` needs at `steps` decode steps a tick: ceil(N / k)."""
    return -(-max_tokens // max(steps, 1))


def plan_capacity(loads: Iterable[Load], budget: Budget, *, mode: str = "oxygen", draft: int = 0) -> Capacity:
    """Slots for the given loads at worst, when every tick grants its `budget.steps`.

    A text asked every n ticks and alive for a = ceil(N / k) ticks has ceil(a / n) requests under
    way. The requests of one tick hold one prefix, and no prefix is held longer than the longest
    life. One more prefix is for the next observation.

    Where the prompts of one tick do not fit into one step beside the live texts, a prompt may go
    through row by row, and its steps count as those of as many tokens more.

    mode: as in `make_engine`. The baselines "isolated" and "batched" need a prefix for each request;
    "isolated" and "shared" run one text at a time, inside its tick.
    """
    loads = list(loads)
    longest = max((load.prompt_tokens + load.max_tokens for load in loads), default=1)
    requests, life = 1, 1
    if mode in ("batched", "oxygen"):
        requests, life = _under_way(loads, budget.steps, prompt_by_rows=False)
        prompt_rows = sum(_count(load, 1) * (load.prompt_tokens - 1) for load in loads)
        if requests + prompt_rows > budget.rows:
            requests, life = _under_way(loads, budget.steps, prompt_by_rows=True)
    prefixes = min(requests, life) if mode in ("shared", "oxygen") else requests
    return Capacity(
        prefixes=max(prefixes, 1) + 1,
        suffixes=max(requests, 1),
        suffix_tokens=max(longest, 1) + draft,
        max_rows=budget.rows,
    )


def _under_way(loads: Sequence[Load], steps: int, *, prompt_by_rows: bool) -> tuple[int, int]:
    """Most requests alive together, and the longest life among them [ticks]."""
    requests = longest_life = 0
    for load in loads:
        more = max(load.prompt_tokens - 1, 0) if prompt_by_rows else 0
        life = ticks_of_text(load.max_tokens + more, steps)
        requests += _count(load, life)
        longest_life = max(longest_life, life)
    return requests, longest_life


def _count(load: Load, life: int) -> int:
    """Requests of one kind under way when each lives `life` ticks."""
    return -(-life // load.every_n_ticks) if load.every_n_ticks > 0 else load.at_once
