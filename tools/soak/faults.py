# SPDX-License-Identifier: Apache-2.0
"""The kinds of faults a soak injects, and a sequence of them that follows from a seed.

Defines each fault and its report in /diagnostics; `injector` injects it.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

CAMERAS = ("top", "wrist")
STREAMS = (*CAMERAS, "joint_states")
TOPICS = {
    "top": "/camera/top/image_raw",
    "wrist": "/camera/wrist/image_raw",
    "joint_states": "/joint_states",
}
# Readings are refused beyond a joint's limits; this joint is the one that drivers spoil or leave out.
SPOILT_JOINT = "joint3"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of fault.

    targets:  the streams (or, for `mismatch`, the ends) it may befall
    part:     the part of /diagnostics that must report it
    words:    regular expression for what is said; `{topic}` stands for the target's topic
    seconds:  shortest and longest duration
    counted:  reported by a count among the part's values, not by its level
    """

    targets: tuple[str, ...]
    part: str
    words: str
    seconds: tuple[float, float] = (1.5, 3.5)
    counted: bool = False


KINDS = {
    # The driver is killed and started again after a while.
    "restart": Kind(STREAMS, "inputs", r"{topic}: (stale|silent|unsynchroni[sz]ed)"),
    # It hangs: SIGSTOP, then SIGCONT.
    "stall": Kind(STREAMS, "inputs", r"{topic}: (stale|silent|unsynchroni[sz]ed)"),
    # The same picture with the same stamp again and again.
    "freeze": Kind(CAMERAS, "inputs", r"{topic}: (stale|unsynchroni[sz]ed)"),
    # The clock of the machine the driver runs on is set wrong.
    "clock_ahead": Kind(STREAMS, "inputs", r"{topic}: future"),
    "clock_behind": Kind(STREAMS, "inputs", r"{topic}: (stale|unsynchroni[sz]ed|silent)"),
    "zero_stamp": Kind(STREAMS, "inputs", r"{topic}: unstamped"),
    "encoding": Kind(CAMERAS, "inputs", r"{topic}.*encoding"),
    "size": Kind(CAMERAS, "inputs", r"{topic}.*(bytes|rejected)"),
    "nan": Kind(("joint_states",), "inputs", r"{topic}: rejected.*joint3.*nan"),
    "failed_read": Kind(("joint_states",), "inputs", r"{topic}: rejected.*joint3.*outside its range"),
    "lengths": Kind(("joint_states",), "inputs", r"{topic}: rejected.*7 names but 3 positions"),
    "missing_name": Kind(("joint_states",), "inputs", r"{topic}.*joint3"),
    # More questions at once than any model answers.
    "questions": Kind(("question",), "text", r"questions not asked|\d+ rejected"),
    # Incompatible QoS; everything else goes on.
    "mismatch": Kind(("instruction",), "inputs", r"incompatible QoS"),
    "mismatch_chunk": Kind(("action_chunk",), "control", r"incompatible QoS"),
    "wrong_type": Kind(CAMERAS, "inputs", r"{topic}.*CompressedImage"),
    # Simulated time goes back, and later forward again. Only where there is simulated time.
    "clock_jump": Kind(("clock",), "inputs", r"restarts: \d+", counted=True),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault of a sequence. seconds: how long it lasts; pause: calm before the next one [s]."""

    kind: str
    target: str
    seconds: float
    pause: float

    @property
    def part(self) -> str:
        return KINDS[self.kind].part

    @property
    def is_counted(self) -> bool:
        return KINDS[self.kind].counted

    def is_reported_by(self, words: str, before: str = "") -> bool:
        """Whether what a part of /diagnostics says is about this fault.

        before: what it said before the fault; counts in it (texts rejected so far) report nothing new
        Words are the part's message, of a counted kind its values.
        """
        topic = re.escape(TOPICS.get(self.target, self.target))
        found = re.search(KINDS[self.kind].words.replace("{topic}", topic), words)
        return found is not None and found.group(0) not in before

    def __str__(self) -> str:
        return f"{self.kind} of {self.target}"


def draw_faults(seed: int, kinds: Sequence[str], pause: tuple[float, float] = (1.0, 3.0)) -> Iterator[Fault]:
    """An endless sequence of faults. Every round holds each of the kinds once, in an order of its own.

    pause:  shortest and longest calm after a fault [s]
    """
    chance = random.Random(seed)
    deck = list(kinds)
    while True:
        chance.shuffle(deck)
        for name in deck:
            kind = KINDS[name]
            yield Fault(
                name, chance.choice(kind.targets), chance.uniform(*kind.seconds), chance.uniform(*pause)
            )
