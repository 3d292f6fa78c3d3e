# SPDX-License-Identifier: Apache-2.0
"""Text kinds are data: the standard four, one of a user's own, and what is refused."""

from __future__ import annotations

import pytest
from engine_toy import build, recite, run_tick, see

from oxygen_ros.engine import STANDARD_KINDS, Budget, Session, TextKind, TextTask


def test_the_standard_kinds_are_four_entries() -> None:
    assert list(STANDARD_KINDS) == ["memory", "narration", "subtask", "answer"]
    assert all(kind.name == name for name, kind in STANDARD_KINDS.items())
    assert [name for name, kind in STANDARD_KINDS.items() if kind.is_question] == ["answer"]
    # What is acted on ends with the instruction it was about; what people read goes on.
    assert [n for n, kind in STANDARD_KINDS.items() if kind.cancel_on_instruction] == ["memory", "subtask"]


def test_a_fifth_kind_is_asked_like_any_other_and_fed_back() -> None:
    hazard = TextTask(kind="hazard", prompt="Hazard: ", max_tokens=4)
    engine, _ = build(prefixes=20, suffixes=20)
    session = Session(engine, [TextKind(hazard, every_n_ticks=2, feed_after=3)], Budget(steps=4))
    seen, texts = [], []
    for tick in range(1, 9):
        report = run_tick(session, see(tick, tick), lambda started: seen.append(started.observation))
        texts += report.finished
    assert {text.kind for text in texts} == {"hazard"}
    assert [observation.feedback for observation in seen[:3]] == [{}, {}, {}]
    assert seen[3].feedback == {"hazard": recite(seen[0], hazard).text}


@pytest.mark.parametrize(
    ("prompt", "options", "words"),
    [
        ("Say: ", {}, "hazard: it would never be asked"),
        ("Say: ", {"every_n_ticks": -1}, "every_n_ticks must not be negative, got -1"),
        ("Say: ", {"every_n_ticks": 1, "feed_after": -2}, "lag must be at least 1 tick, got -2"),
        ("{question}?", {"every_n_ticks": 2}, "asked by questions alone"),
        ("{question}?", {"on_instruction": True}, "asked by questions alone"),
    ],
)
def test_a_kind_that_contradicts_itself_is_named(prompt: str, options: dict[str, int], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        TextKind(TextTask(kind="hazard", prompt=prompt), **options)  # type: ignore[arg-type]
