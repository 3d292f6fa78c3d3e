# SPDX-License-Identifier: Apache-2.0
"""How a text ends: cut at its stop text, and told with what is needed to know what it was about.

Here lives no state; when a text ends is for `scheduler` and `texts` to say.
"""

from __future__ import annotations

from collections.abc import Sequence

from oxygen_ros.engine.admission import Arrival
from oxygen_ros.engine.request import FinishedText, FinishReason, TextRequest


def cut_at_stop(text: str, stops: Sequence[str]) -> str:
    """The text before the first of the stop texts in it; the whole text when there is none."""
    return text[: min((at for stop in stops if (at := text.find(stop)) >= 0), default=len(text))]


def tell_end(
    asked: Arrival | TextRequest,
    reason: FinishReason,
    text: str,
    tokens: Sequence[int],
    steps: int,
    tick: int,
    seconds: float,
) -> FinishedText:
    """What the caller of the engine gets of a request that ended at `tick`, `seconds` after it was asked."""
    observation = asked.frame.observation
    return FinishedText(
        id=asked.id,
        task=asked.task,
        text=text,
        finish_reason=reason,
        stamp=observation.stamp,
        instruction=observation.instruction,
        memory=observation.memory,
        subtask=observation.subtask,
        tick_asked=asked.tick_asked,
        tick_finished=tick,
        tokens=tuple(tokens),
        steps=steps,
        seconds=seconds,
    )
