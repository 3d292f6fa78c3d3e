# SPDX-License-Identifier: Apache-2.0
"""How much simulated time inference takes: none, as measured here, or by a device's profile.

`rollout` moves the arm meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

import yaml

from oxygen_ros.engine import TickReport

Timing = Callable[[str, TickReport], tuple[float, float]]
"""(mode, tick's report) -> seconds until the chunk is there, and of text after it"""


def no_time(mode: str, report: TickReport) -> tuple[float, float]:
    """Inference takes no time: all modes then do the same."""
    return 0.0, 0.0


def measured_time(mode: str, report: TickReport) -> tuple[float, float]:
    """The times of this machine."""
    phases = report.phases
    return phases.process + phases.prefill + phases.denoise, phases.text


@dataclass(frozen=True, slots=True)
class Profile:
    """Figures of a device, all in seconds; see config/thor.yaml."""

    name: str
    act: float
    isolated_text: float
    isolated_tokens: int
    step: float

    @classmethod
    def read(cls, file: Path) -> Profile:
        """Raises ValueError naming the entry that is missing, unknown or not positive."""
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
        known = {field.name for field in fields(cls)}
        if not isinstance(raw, dict) or set(raw) != known:
            raise ValueError(f"profile {file} must have exactly the entries {', '.join(sorted(known))}")
        for entry in known - {"name"}:
            if not isinstance(raw[entry], int | float) or raw[entry] <= 0:
                raise ValueError(f"profile {file}: {entry} must be a number above 0, got {raw[entry]!r}")
        return cls(**raw)

    def __call__(self, mode: str, report: TickReport) -> tuple[float, float]:
        """Isolated texts cost in proportion to their tokens; ours by decode steps.

        The two ablations have no published figures: ValueError.
        """
        if mode == "oxygen":
            return self.act, self.step * report.phases.used_steps
        if mode == "isolated":
            tokens = sum(len(text.tokens) + 1 for text in report.finished)
            return self.act, self.isolated_text * tokens / self.isolated_tokens
        raise ValueError(f'profile "{self.name}" has figures for isolated and oxygen, not for "{mode}"')


def timing_named(name: str, folder: Path) -> Timing:
    """`zero`, `measured`, or the profile `folder`/NAME.yaml."""
    if name == "zero":
        return no_time
    if name == "measured":
        return measured_time
    file = folder / f"{name}.yaml"
    if not file.is_file():
        raise ValueError(
            f'inference time "{name}" is not zero, measured, or a profile: {file} does not exist'
        )
    return Profile.read(file)
