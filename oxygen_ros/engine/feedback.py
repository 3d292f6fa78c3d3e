# SPDX-License-Identifier: Apache-2.0
"""Texts fed back into the prompt, at a tick set by a rule alone.

A text asked at tick t enters the prompt at tick t + lag. If it has not ended by then it is dropped and
counted, so that every mode and every machine feeds the same texts at the same ticks.
"""

from __future__ import annotations

from oxygen_ros.engine.request import FinishedText


class Feedback:
    """The text of one kind in the prompt, tick by tick."""

    def __init__(self, kind: str, lag: int) -> None:
        """lag: ticks from the question to the prompt (>= 1)."""
        if lag < 1:
            raise ValueError(f"{kind}: lag must be at least 1 tick, got {lag}")
        self.kind = kind
        self.lag = lag
        self.dropped = 0
        self._current = ""
        self._asked: dict[int, str | None] = {}  # by the tick it was asked at; None until it ends

    def expect(self, tick: int) -> None:
        """A text of this kind was asked for at `tick`."""
        self._asked[tick] = None

    def deliver(self, finished: FinishedText) -> None:
        """A text of this kind ended; an incomplete one counts as unfinished."""
        if finished.tick_asked in self._asked and finished.finish_reason.is_complete:
            self._asked[finished.tick_asked] = finished.text

    def at(self, tick: int) -> str:
        """The text in this tick's prompt, "" for none. To be called once per tick, in order."""
        for asked in [t for t in self._asked if t + self.lag <= tick]:
            text = self._asked.pop(asked)
            if text is None:
                self.dropped += 1
            else:
                self._current = text
        return self._current

    def clear(self) -> None:
        """Forget the current text and all that are under way (new instruction, clock jump)."""
        self._current = ""
        self._asked.clear()
