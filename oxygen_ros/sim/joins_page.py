# SPDX-License-Identifier: Apache-2.0
"""The picture of `joins`: jumps and what they are bought with, over the delay, one line a mode.

Here lives matplotlib and nothing that measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import matplotlib as mpl

mpl.use("Agg")

from matplotlib.axes import Axes
from matplotlib.figure import Figure

if TYPE_CHECKING:
    from oxygen_ros.sim.joins import Figures, Plan

_COLOURS: Final = {"replace": "#b3492f", "blend": "#c79a1e", "rtc": "#22658f"}
_LABELS: Final = {"replace": "replace", "blend": "blend", "rtc": "rtc (guided)"}


def draw(path: Path, found: Sequence[Figures], plan: Plan) -> None:
    """Write the picture as PNG. plan: any of those measured, for what they have in common."""
    figure = Figure(figsize=(10.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    _panel(axes[0], found, "speed jump at a join [rad/s]", lambda f: f.speed_jump)
    _panel(axes[1], found, "acceleration jump of the arm [rad/s²]", lambda f: f.acceleration_jump)
    _panel(axes[2], found, "distance from the newest plan [rad]", lambda f: (f.behind,))
    for axis in axes:
        _shade(axis, plan)
    axes[0].legend(frameon=False, loc="upper left", fontsize=9)
    overlap = "all that is left" if plan.rule.overlap is None else f"{plan.rule.overlap * plan.step:g} s"
    figure.suptitle(
        f"Chunks of {plan.horizon} actions, {plan.step:g} s apart; a tick every {plan.period:g} s or as soon "
        f"as inference is done; overlap: {overlap}, {plan.rule.schedule}. Dotted: 95th percentile.",
        fontsize=9,
    )
    figure.savefig(path, dpi=120)


def _panel(
    axis: Axes, found: Sequence[Figures], title: str, pick: Callable[[Figures], tuple[float, ...]]
) -> None:
    for mode, colour in _COLOURS.items():
        chosen = [figures for figures in found if figures.mode == mode]
        delays = [100 * figures.delay for figures in chosen]
        for index, style in enumerate(("-", ":")):
            values = [pick(figures) for figures in chosen]
            if values and index < len(values[0]):
                label = _LABELS[mode] if index == 0 else None
                heights = [value[index] for value in values]
                axis.plot(delays, heights, style, color=colour, label=label, marker="o", markersize=3.5)
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("inference delay [% of the chunk]")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _shade(axis: Axes, plan: Plan) -> None:
    """Where a chunk runs out before the next is there: one thread cannot observe again any sooner."""
    axis.axvspan(50, 82, color="#888888", alpha=0.14, linewidth=0)
    axis.set_xlim(-2, 82)
    axis.text(
        66, 0.03, "the arm waits", ha="center", va="bottom", fontsize=8, transform=axis.get_xaxis_transform()
    )
