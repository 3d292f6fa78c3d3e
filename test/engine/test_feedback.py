# SPDX-License-Identifier: Apache-2.0
"""Texts that are fed back enter the prompt at exactly t + lag, or are dropped and counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.engine import FinishedText, FinishReason, TextTask
from oxygen_ros.engine.feedback import Feedback


def _text(asked: int, text: str, reason: FinishReason = FinishReason.EOS) -> FinishedText:
    return FinishedText(
        id=asked, task=TextTask(kind="memory", prompt="Memory: "), text=text, finish_reason=reason,
        stamp=asked, instruction="", feedback={}, tick_asked=asked, tick_finished=asked, tokens=(), steps=1,
        seconds=0.0,
    )  # fmt: skip


def test_a_memory_enters_at_its_tick_and_not_before() -> None:
    feedback = Feedback("memory", 3)
    assert feedback.at(1) == ""
    feedback.expect(1)
    feedback.deliver(_text(1, "red is in"))
    assert [feedback.at(tick) for tick in (2, 3, 4, 5)] == ["", "", "red is in", "red is in"]
    assert feedback.dropped == 0


def test_the_last_moment_is_the_tick_before() -> None:
    feedback = Feedback("memory", 2)
    feedback.at(1)
    feedback.expect(1)
    feedback.at(2)
    feedback.deliver(_text(1, "just in time"))
    assert feedback.at(3) == "just in time"


def test_too_late_is_dropped_and_counted_and_the_old_memory_stays() -> None:
    feedback = Feedback("memory", 2)
    for tick in (1, 2):
        feedback.at(tick)
        feedback.expect(tick)
    feedback.deliver(_text(1, "first"))
    assert feedback.at(3) == "first"
    assert feedback.at(4) == "first"
    assert feedback.dropped == 1
    feedback.deliver(_text(2, "late"))
    assert feedback.at(5) == "first"
    assert feedback.dropped == 1


@pytest.mark.parametrize("reason", [r for r in FinishReason if not r.is_complete])
def test_an_incomplete_memory_counts_as_never_finished(reason: FinishReason) -> None:
    feedback = Feedback("memory", 1)
    feedback.at(1)
    feedback.expect(1)
    feedback.deliver(_text(1, "half a sen", reason))
    assert feedback.at(2) == ""
    assert feedback.dropped == 1


def test_clear_forgets_what_stands_and_what_is_under_way() -> None:
    feedback = Feedback("memory", 1)
    feedback.expect(1)
    feedback.deliver(_text(1, "old task"))
    assert feedback.at(2) == "old task"
    feedback.expect(2)
    feedback.clear()
    feedback.deliver(_text(2, "old task still"))
    assert feedback.at(3) == ""
    assert feedback.dropped == 0


@given(
    lag=st.integers(1, 6),
    asked=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    every=st.integers(1, 3),
)
def test_only_lag_and_lateness_matter(lag: int, asked: list[int], every: int) -> None:
    """asked[i]: ticks the memory of tick i takes; every: cadence of the questions."""
    feedback = Feedback("memory", lag)
    ready: dict[int, list[int]] = {}
    expected, dropped = "", 0
    for tick in range(1, len(asked) + 1):
        due = tick - lag
        if due >= 1 and (due - 1) % every == 0:
            if asked[due - 1] <= lag:
                expected = f"of {due}"
            else:
                dropped += 1
        assert feedback.at(tick) == expected
        assert feedback.dropped == dropped
        if (tick - 1) % every == 0:
            feedback.expect(tick)
            ready.setdefault(tick + asked[tick - 1] - 1, []).append(tick)  # 1: in this very tick
        for done in ready.pop(tick, []):
            feedback.deliver(_text(done, f"of {done}"))


def test_a_lag_is_at_least_one_tick() -> None:
    with pytest.raises(ValueError, match="at least 1 tick, got 0"):
        Feedback("memory", 0)
