# SPDX-License-Identifier: Apache-2.0
"""The plots of a run: text against actions for every mode, one tick of each, ticks in real time.

What is drawn is in the JSON too, but for the lateness of every single tick.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from oxygen_ros.bench.real_time import LATE, RealTimeRun

_MODES = {"isolated": "#8c8c8c", "shared": "#d98e04", "batched": "#7a5195", "oxygen": "#0b84a5"}
_TEXT, _OTHER = "#2f9e6e", "#e3e3e3"
_CALLS = {
    "process": "#c9c9c9", "encode": "#0b84a5", "denoise": "#f6a04d",
    "complete": _TEXT, "fork": _TEXT, "extend": _TEXT,
}  # fmt: skip
_SHOWN = {"process": "images, words", "encode": "prefill", "denoise": "denoise", "extend": "decode step"}


def draw(document: dict[str, Any], file: Path) -> None:
    """Write the PNG."""
    timeline = document.get("timeline")
    modes = len(timeline["calls"]) if timeline else 0
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(9, 4.2 + 0.45 * modes), dpi=120, layout="constrained")
        if timeline:
            top, bottom = figure.subplots(2, 1, height_ratios=(4, 0.6 + 0.5 * modes))
            _draw_phases(bottom, timeline)
        else:
            top = figure.subplots()
        _draw_trade_off(top, document["runs"])
        figure.suptitle(f"{document['preset']}, {document['dtype']}, {document['device']}")
        figure.savefig(file, format="png")


def _draw_trade_off(axes: Axes, runs: list[dict[str, Any]]) -> None:
    """One line per mode, dtype and N, along k; up and to the right is better.

    Isolated and shared do not depend on k. Those that do lie on one ray for each N: the best mode's points
    are labeled with N and k, the other's with k only, on the other side.
    """
    lines: dict[tuple[str, str, int], list[dict[str, Any]]] = {}
    for run in runs:
        lines.setdefault((run["mode"], run["dtype"], run["n"]), []).append(run)
    best = next(mode for mode in reversed(_MODES) if any(run["mode"] == mode for run in runs))
    for (mode, dtype, _), members in lines.items():
        members = sorted(members, key=lambda run: run["k"])
        x = [run["tokens_per_s"] for run in members]
        y = [run["ticks_per_s"] for run in members]
        style = "--" if dtype == "bfloat16" else "-"
        axes.plot(x, y, style, marker="o", markersize=3, color=_MODES[mode], linewidth=1)
        for run, at_x, at_y in zip(members, x, y, strict=True):
            if mode != best and mode in ("isolated", "shared"):
                continue
            axes.annotate(
                f"N{run['n']} k{run['k']}" if mode == best else f"k{run['k']}",
                (at_x, at_y), xytext=(-4, 3) if mode == best else (4, -6),
                ha="right" if mode == best else "left", textcoords="offset points", fontsize=6,
            )  # fmt: skip
    axes.set(xlabel="text [tokens/s]", ylabel="actions [ticks/s]")
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    shown = [mode for mode in _MODES if any(run["mode"] == mode for run in runs)]
    handles = [Patch(color=_MODES[mode], label=mode) for mode in shown]
    axes.legend(handles=handles, frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1))
    dashed = "; dashed: bfloat16" if len({run["dtype"] for run in runs}) > 1 else ""
    axes.set_title(f"the trade-off, N tokens a text, k decode steps a tick{dashed}", loc="left")


def _draw_phases(axes: Axes, timeline: dict[str, Any]) -> None:
    for row, calls in enumerate(timeline["calls"].values()):
        for name, start, end in calls:
            color = _CALLS.get(name, _OTHER)
            axes.barh(row, end - start, left=start, height=0.6, color=color, edgecolor="white", linewidth=0.5)
        acted = next(end for name, _, end in calls if name == "unprocess")
        axes.plot([acted, acted], [row - 0.4, row + 0.4], color="black", linewidth=1.2)
    axes.set_yticks(range(len(timeline["calls"])), list(timeline["calls"]))
    axes.invert_yaxis()
    axes.set_xlabel("ms; the black bar: the chunk leaves")
    axes.legend(
        handles=[Patch(color=_CALLS[name], label=label) for name, label in _SHOWN.items()],
        frameon=False, ncols=4, loc="lower right", bbox_to_anchor=(1, 1),
    )  # fmt: skip
    asked = timeline["asked"]
    axes.set_title(
        f"one tick, N {timeline['n']}, k {timeline['k']}, {timeline['dtype']}; "
        f"{asked or 'no'} text{'s' * (asked != 1)} asked for",
        loc="left",
    )


def draw_real_time(runs: Sequence[RealTimeRun], file: Path, title: str) -> None:
    """For each run the lateness of its ticks in percent of the period, over the texts in flight."""
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False}):
        figure = Figure(figsize=(9, 0.8 + 1.7 * len(runs)), dpi=120, layout="constrained")
        rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
        for axes, run in zip(rows, runs, strict=True):
            percent = 100 * np.array(run.lateness) / run.period
            flying = axes.twinx()
            ticks = range(len(run.live))
            flying.fill_between(ticks, run.live, color="#0b84a5", alpha=0.2, linewidth=0, step="mid")
            flying.set_ylim(0, 1.05 * max(*run.live, 1))
            flying.yaxis.set_major_locator(MaxNLocator(integer=True))
            flying.set_ylabel("texts in flight", color="#0b84a5")
            axes.plot(percent, ".", markersize=2, color="#333333")
            axes.axhline(100 * LATE, color="#c0392b", linewidth=0.8)
            axes.set_ylim(0, max(30, float(percent.max()) * 1.05))
            axes.set_ylabel("late [% of period]")
            late = run.figures()["late_share"]
            who = f"budget {run.budget}" if run.budget else "acting only"
            axes.set_title(f"{run.arrivals}, {who}: {late:.2%} of ticks late", loc="left")
        axes.set_xlabel("tick")
        figure.suptitle(title)
        figure.savefig(file, format="png")
