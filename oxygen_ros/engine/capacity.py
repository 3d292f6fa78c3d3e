# SPDX-License-Identifier: Apache-2.0
"""How many slots the text of a configuration needs, so that nothing has to grow later.

Here lives the arithmetic of DESIGN rule 6 and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oxygen_ros.engine.budget import Budget
from oxygen_ros.models.interface import Capacity


@dataclass(frozen=True, slots=True)
class Load:
    """How much text one kind asks for.

    max_tokens:     N, token limit of one text
    prompt_tokens:  tokens of its prompt suffix
    every_n_ticks:  a request every so many ticks; 0: only when somebody asks
    at_once:        requests of a kind without cadence that may be under way together
    """

    max_tokens: int
    prompt_tokens: int
    every_n_ticks: int = 1
    at_once: int = 4


def ticks_of_text(max_tokens: int, steps: int) -> int:
    """Ticks a text of `max_tokens` needs at `steps` decode steps a tick: ceil(N / k)."""
    return -(-max_tokens // max(steps, 1))


def plan_capacity(
    loads: Iterable[Load], budget: Budget, *, share: bool, batch: bool, draft: int = 0, spare_frames: int = 0
) -> Capacity:
    """Slots for the given loads at worst.

    A text asked every n ticks and alive for a = ceil(N / k) ticks has ceil(a / n) requests under
    way. With `share` the requests of one tick hold one frame, so frames are bounded by the longest
    life as well; without, each request holds its own. One frame more is the next observation's.
    """
    loads = list(loads)
    requests = frames_by_life = longest = 0
    for load in loads:
        # Without `batch` every text ends inside its tick.
        life = ticks_of_text(load.max_tokens, budget.steps) if batch else 1
        if load.every_n_ticks > 0:
            requests += -(-life // load.every_n_ticks)
            frames_by_life = max(frames_by_life, life)
        else:
            requests += load.at_once
            frames_by_life = max(frames_by_life, load.at_once)
        longest = max(longest, load.prompt_tokens + load.max_tokens)
    frames = min(requests, frames_by_life) if share else requests
    return Capacity(
        frames=max(frames, 1) + 1 + spare_frames,
        suffixes=max(requests, 1),
        suffix_tokens=max(longest, 1) + draft,
        max_rows=budget.rows,
    )
