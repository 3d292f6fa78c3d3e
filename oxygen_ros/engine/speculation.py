# SPDX-License-Identifier: Apache-2.0
"""Drafts from the last finished text of the same kind: successive texts are mostly alike.

Spare rows check a draft. A wrong one costs only those rows and never changes a greedy token.
"""

from __future__ import annotations

from collections.abc import Sequence


class Drafts:
    """The last text of each kind, as a source of drafts."""

    def __init__(self, longest: int) -> None:
        """longest: most tokens of one draft; 0 switches speculation off."""
        if longest < 0:
            raise ValueError(f"draft length must be 0 (off) or more tokens, got {longest}")
        self.longest = longest
        self._last: dict[str, _Text] = {}

    def remember(self, kind: str, tokens: Sequence[int]) -> None:
        """Keep a finished text (with its end token) as the next drafts of its kind."""
        if self.longest > 0:
            self._last[kind] = _Text(tokens)

    def propose(self, kind: str, tokens: Sequence[int], room: int) -> list[int]:
        """Guess up to `room` tokens that follow `tokens`; empty when nothing matches."""
        room = min(room, self.longest)
        last = self._last.get(kind)
        if room < 1 or last is None:
            return []
        at = last.find(tokens)
        return last.tokens[at : at + room] if at is not None else []


class _Text:
    """A finished text, and the places after each pair of its tokens."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self._after: dict[tuple[int, int], list[int]] = {}
        for place in range(2, len(self.tokens)):
            self._after.setdefault((self.tokens[place - 2], self.tokens[place - 1]), []).append(place)

    def find(self, tokens: Sequence[int]) -> int | None:
        """Where in this text a new one stands: same place if it agrees, else after the same pair."""
        count = len(tokens)
        if count == 0:
            return 0
        if count < len(self.tokens) and self.tokens[count - 1] == tokens[-1]:
            return count
        places = self._after.get((tokens[-2], tokens[-1])) if count > 1 else None
        # Texts that differ by a word or two keep nearly the same place: take the nearest match.
        return min(places, key=lambda place: abs(place - count)) if places else None
