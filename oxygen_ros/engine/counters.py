# SPDX-License-Identifier: Apache-2.0
"""What the engine counts and times: totals since it was made, phases of the newest tick."""

from __future__ import annotations

from dataclasses import dataclass, fields

from oxygen_ros.engine.request import FinishReason


@dataclass(slots=True)
class Counters:
    """What the engine has done since it was made, or since `restart`; in between it only grows.

    prefills:      those of the baselines' texts included
    rows:          of all decode steps
    finished:      texts that reached their end or token limit; the others: expired by age, rejected or
                   dropped without a slot, cancelled by a caller or an error
    """

    ticks: int = 0
    prefills: int = 0
    decode_steps: int = 0
    rows: int = 0
    finished: int = 0
    expired: int = 0
    rejected: int = 0
    dropped: int = 0
    cancelled: int = 0

    def restart(self) -> None:
        """Count from zero, as after a warm-up; only while no text is under way: its age is in ticks."""
        for counter in fields(self):
            setattr(self, counter.name, 0)

    def count_end(self, reason: FinishReason) -> None:
        if reason.is_complete:
            self.finished += 1
        elif reason is FinishReason.AGE:
            self.expired += 1
        elif reason is FinishReason.REJECTED:
            self.rejected += 1
        elif reason is FinishReason.DROPPED:
            self.dropped += 1
        else:
            self.cancelled += 1


@dataclass(slots=True)
class Phases:
    """Seconds of the phases of the newest tick, and what its text used.

    text:           of every `advance` since the tick began
    granted_steps:  decode steps the budget allowed when the text began to advance
    """

    process: float = 0.0
    prefill: float = 0.0
    denoise: float = 0.0
    text: float = 0.0
    granted_steps: int = 0
    used_steps: int = 0
    rows: int = 0
