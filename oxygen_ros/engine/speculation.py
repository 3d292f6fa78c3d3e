# SPDX-License-Identifier: Apache-2.0
"""Drafts from the last finished text of the same kind: a robot mostly says what it just said.

Here lives only the guess. The scheduler lets spare rows check it; a wrong guess costs nothing
but those rows, and never changes a greedy token.
"""

from __future__ import annotations

from collections.abc import Sequence


class Drafts:
    """The last text of each kind, as a source of guesses."""

    def __init__(self, longest: int) -> None:
        """longest: most tokens of one draft; 0 switches speculation off."""
        if longest < 0:
            raise ValueError(f"draft length must be 0 (off) or more tokens, got {longest}")
        self.longest = longest
        self._last: dict[str, tuple[int, ...]] = {}

    def remember(self, kind: str, tokens: Sequence[int]) -> None:
        """Keep a finished text (with its end token) as the next drafts of its kind."""
        self._last[kind] = tuple(tokens)

    def propose(self, kind: str, tokens: Sequence[int], room: int) -> list[int]:
        """Guess up to `room` tokens that follow `tokens`; empty when there is nothing to go by."""
        room = min(room, self.longest)
        last = self._last.get(kind)
        if room < 1 or not last:
            return []
        at = self._align(last, tokens)
        return list(last[at : at + room]) if at is not None else []

    @staticmethod
    def _align(last: tuple[int, ...], tokens: Sequence[int]) -> int | None:
        """Where in the last text the new one stands: same place if it agrees, else after the same pair."""
        count = len(tokens)
        if count == 0:
            return 0
        if count < len(last) and last[count - 1] == tokens[-1]:
            return count
        if count < 2:
            return None
        pair = (tokens[-2], tokens[-1])
        places = [i for i in range(2, len(last)) if (last[i - 2], last[i - 1]) == pair]
        # Texts that differ by a word or two keep nearly the same place: take the nearest match.
        return min(places, key=lambda place: abs(place - count), default=None)
