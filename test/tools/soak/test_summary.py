# SPDX-License-Identifier: Apache-2.0
"""What a run's figures are worth: every broken bound makes it fail, and is reported."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import islice

import pytest

from soak.faults import KINDS, draw_faults
from soak.summary import FaultResult, Summary


def make_good() -> Summary:
    memory = [(float(at), 200_000_000 + (20_000_000 if at < 50 else 0)) for at in range(300)]
    return Summary(
        1, 300.0, 3000, 2, 2990, 2990, [FaultResult("nan of joint_states", 3.0, 0.5, 0.2)], memory=memory
    )


def test_a_good_run_passes() -> None:
    summary = make_good()
    assert summary.find_breaches() == []
    assert summary.find_growth() == pytest.approx(0.0)
    assert summary.summarize().endswith("memory +0.00%; waited 0 s for a CPU: PASS")
    assert "\n" not in summary.summarize()


def add(outcome: FaultResult) -> Callable[[Summary], None]:
    return lambda summary: summary.outcomes.append(outcome)


def grow(summary: Summary) -> None:
    summary.memory = [(at, int(2e8 + 1e4 * at)) for at, _ in summary.memory]


BREACHES: dict[str, tuple[Callable[[Summary], None], str]] = {
    "not reported": (
        add(FaultResult("a", 1.0, None, 0.1, "all is well")),
        "not reported; .* said: all is well",
    ),
    "reported late": (add(FaultResult("a", 1.0, 1.01, 0.1)), "reported after 1.01 s"),
    "not recovered": (add(FaultResult("a", 1.0, 0.1, None)), "no chunk came after it"),
    "recovered late": (add(FaultResult("a", 1.0, 0.1, 2.01)), "recovered after 2.01 s"),
    "bad chunk": (
        lambda summary: summary.bad_chunks.append("tick 3: stale"),
        "chunk from bad input: tick 3: stale",
    ),
    "leak": (lambda summary: setattr(summary, "slots_leaked", 1), "1 slots leaked"),
    "memory": (grow, "memory grew by 1.1"),
    "no faults": (lambda summary: summary.outcomes.clear(), "no fault was injected"),
    "no chunks": (lambda summary: setattr(summary, "chunks", 0), "no chunk was published"),
    "crash": (lambda summary: summary.failures.append("the node ended"), "the node ended"),
}


@pytest.mark.parametrize("name", BREACHES)
def test_every_breach_fails_the_run(name: str) -> None:
    summary = make_good()
    spoil, words = BREACHES[name]
    spoil(summary)
    (breach,) = summary.find_breaches()
    assert re.search(words, breach)
    assert summary.summarize().endswith("FAIL, 1 breaches")


def test_growth_of_a_short_run_is_not_judged() -> None:
    summary = make_good()
    grow(summary)
    summary.memory = summary.memory[:100]
    assert summary.find_growth() is None
    assert "too short to judge" in summary.summarize()


def test_faults_follow_from_the_seed_and_leave_no_kind_out() -> None:
    def take(seed: int, count: int) -> list[str]:
        return [
            f"{fault} {fault.seconds} {fault.pause}"
            for fault in islice(draw_faults(seed, list(KINDS)), count)
        ]

    assert take(1, 50) == take(1, 50) != take(2, 50)
    for start in (0, len(KINDS)):
        kinds = {words.split()[0] for words in take(3, start + len(KINDS))[start:]}
        assert kinds == set(KINDS)
