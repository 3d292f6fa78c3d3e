# SPDX-License-Identifier: Apache-2.0
"""One picture of a demo run from its bag: images, motion, plans, texts and times.

`oxygen_demo` makes it at its end; by hand: python -m oxygen_ros.demo.page BAG PICTURE
"""

from __future__ import annotations

import argparse
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rosbags.typesys.store import Typestore

from oxygen_ros.demo.screen import PHASES
from oxygen_ros.replay.bags import BagError, bag_types, read_messages
from oxygen_ros.robot.images import decode_image

CAMERAS = ("side", "top", "wrist")
PICTURES = 9
CHARACTERS = 370  # of the smallest font over the page's width
KIND_COLORS = {"memory": "#7a5195", "narration": "#2f9e6e", "subtask": "#bc5090", "answer": "#ef8733"}
PHASE_COLORS = ("#56b4e9", "#0072b2", "#cc79a7", "#999999", "#2f9e6e")


@dataclass(slots=True)
class RunExcerpt:
    """The part of a run that the page shows; times in seconds since its first tick."""

    window: float
    start: int | None = None
    pictures: dict[str, list[tuple[float, Any]]] = field(default_factory=dict)
    joints: list[tuple[float, NDArray[np.float64]]] = field(default_factory=list)
    joint_names: tuple[str, ...] = ()
    chunks: list[tuple[float, float, dict[str, NDArray[np.float32]]]] = field(default_factory=list)
    texts: list[tuple[float, float, str, str]] = field(default_factory=list)  # asked, ended, kind, text
    ticks: list[tuple[float, Any]] = field(default_factory=list)
    instruction: str = ""

    def take(self, topic: str, received: int, message: Any) -> None:
        """Keep what the page shows of one message; called in the order of the bag."""
        if self.start is None:
            if not topic.endswith("/tick"):
                if topic.endswith("/instruction"):
                    self.instruction = message.data
                return
            self.start = received
        now = (received - self.start) / 1e9
        if now > self.window:
            return
        match topic.split("/")[1:]:
            case ["camera", camera, "image_raw"]:
                self.pictures.setdefault(camera, []).append((now, message))
            case [*_, "joint_states"] if not topic.endswith("preview/joint_states"):
                self.joint_names = tuple(message.name)
                self.joints.append((now, message.position))
            case [*_, "action_chunk"]:
                self.chunks.append((self._since(message.header.stamp), message.step, positions_of(message)))
            case [*_, "text"] if message.finish_reason in ("eos", "stop", "length"):
                asked = max(self._since(message.header.stamp), 0.0)
                self.texts.append((asked, now, message.kind, message.text))
            case [*_, "tick"]:
                self.ticks.append((now, message))
            case [*_, "instruction"]:
                self.instruction = message.data

    def _since(self, stamp: Any) -> float:
        assert self.start is not None
        return (stamp.sec * 10**9 + stamp.nanosec - self.start) / 1e9


def positions_of(chunk: Any) -> dict[str, NDArray[np.float32]]:
    """Positions [H] of each joint that an oxygen_ros/msg/ActionChunk commands."""
    values = chunk.values.reshape(chunk.horizon, -1)
    found, first = {}, 0
    for component in chunk.components:
        if component.kind == component.JOINT_POSITION:
            found[component.name] = values[:, first]
        first += component.size
    return found


def draw_page(
    bag: Path,
    picture: Path,
    types: Typestore,
    *,
    note: str = "",
    period: float | None = None,
    window: float = 20.0,
) -> None:
    """Draw the first `window` seconds of a demo bag, counted from its first tick, into a PNG.

    period: of the control loop [s]; default the median time between ticks

    Raises BagError when the bag cannot be read or holds no tick.
    """
    run = RunExcerpt(window)
    read_messages(bag, types, run.take)
    if not run.ticks:
        raise BagError(f"bag {bag} holds no tick of the node: nothing to draw")
    end = max(run.ticks[-1][0], 1.0)
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(15, 13), dpi=110, layout="constrained")
        strip, rest = figure.subfigures(2, 1, height_ratios=(1.0, 1.75))
        _draw_strip(strip, run, end)
        arm, gripper, texts, ticks = rest.subplots(
            4, 1, sharex=True, gridspec_kw={"height_ratios": (3.0, 1.0, 3.2, 1.8)}
        )
        names = run.joint_names
        _draw_joints(arm, run, [i for i, n in enumerate(names) if n != "gripper"], "arm joints [rad]")
        _draw_joints(gripper, run, [i for i, n in enumerate(names) if n == "gripper"], "gripper [m]")
        arm.plot([], [], color="gray", lw=0.6, label="thin: planned chunks, one a second")
        arm.legend(loc="upper right", ncols=8, frameon=False)
        _draw_texts(texts, run, end)
        _draw_ticks(ticks, run, period)
        ticks.set_xlim(0, end)
        ticks.set_xlabel(f"seconds since the first tick (the first {end:.0f} s of the run)")
        title = [f'oxygen_ros: "{run.instruction}"', *textwrap.wrap(note, 150)]
        figure.suptitle("\n".join(title), fontsize=11)
        figure.savefig(picture)


def _draw_strip(strip: Any, run: RunExcerpt, end: float) -> None:
    cameras = [name for name in CAMERAS if run.pictures.get(name)]
    if not cameras:
        return
    axes = strip.subplots(len(cameras), PICTURES, squeeze=False, gridspec_kw={"wspace": 0.02, "hspace": 0.02})
    for row, camera in zip(axes, cameras, strict=True):
        shown = run.pictures[camera]
        for axis, moment in zip(row, np.linspace(0, end, PICTURES), strict=True):
            time, m = min(shown, key=lambda item: abs(item[0] - moment))
            axis.imshow(
                decode_image(
                    m.encoding, m.height, m.width, m.step, m.is_bigendian, m.data, f"/camera/{camera}"
                )
            )
            axis.set(xticks=[], yticks=[])
            if camera == cameras[0]:
                axis.set_title(f"{time:.1f} s", fontsize=8)
        row[0].set_ylabel(camera)


def _draw_joints(axis: Axes, run: RunExcerpt, columns: list[int], label: str) -> None:
    times = np.array([time for time, _ in run.joints])
    positions = np.array([position for _, position in run.joints])
    # About one chunk a second: more would hide the motion behind the plans.
    shown = run.chunks[:: max(round(len(run.chunks) / max(times[-1], 1)), 1)] if len(times) else []
    for place, column in enumerate(columns):
        color = f"C{place}"
        axis.plot(times, positions[:, column], color=color, lw=1.4, label=run.joint_names[column])
        for stamp, step, plans in shown:
            planned = plans.get(run.joint_names[column], np.zeros(0))
            times_of = stamp + step * np.arange(1, len(planned) + 1)
            axis.plot(times_of, planned, color=color, lw=0.6, alpha=0.45)
    axis.set_ylabel(label)


def _draw_texts(axis: Axes, run: RunExcerpt, end: float) -> None:
    """A bar from the observation to the end of each text; overlapping ones in separate rows."""
    lanes: dict[str, list[float]] = {kind: [] for kind in sorted({text[2] for text in run.texts})}
    placed = []
    for asked, ended, kind, text in sorted(run.texts):
        mine = lanes[kind]
        lane = next((i for i, until in enumerate(mine) if until <= asked), len(mine))
        mine[lane : lane + 1] = [ended]
        placed.append((asked, ended, kind, lane, text))
    base = dict(zip(lanes, np.cumsum([0, *(len(mine) for mine in lanes.values())]), strict=False))
    for number, (asked, ended, kind, lane, text) in enumerate(placed):
        row = base[kind] + lane
        axis.barh(
            row, ended - asked, left=asked, height=0.8, color=KIND_COLORS.get(kind, "#777777"), alpha=0.4
        )
        later = (start for start, _, k, at, _ in placed[number + 1 :] if (k, at) == (kind, lane))
        room = max(int((next(later, end) - asked) * CHARACTERS / end) - 1, 1)
        axis.text(asked, row, " ".join(text.split())[:room].replace("$", ""), va="center", fontsize=5.5)
    axis.set_yticks(
        [base[kind] + (len(mine) - 1) / 2 for kind, mine in lanes.items()],
        list(lanes),
        rotation=90,
        va="center",
    )
    axis.set_ylabel("finished texts,\nobservation to end")


def _draw_ticks(axis: Axes, run: RunExcerpt, period: float | None) -> None:
    times = np.array([time for time, _ in run.ticks])
    width = period or (float(np.median(np.diff(times))) if len(times) > 1 else 0.1)
    bottom = np.zeros(len(times))
    for (phase, _), color in zip(PHASES, PHASE_COLORS, strict=True):
        spent = np.array([1e3 * getattr(tick, phase) for _, tick in run.ticks])
        axis.bar(times, spent, width * 0.9, bottom=bottom, color=color, label=phase)
        bottom += spent
    axis.axhline(1e3 * width, color="k", lw=0.8, ls="--", label="period")
    axis.set_ylabel("one tick [ms]")
    axis.set_ylim(0, max(1.15e3 * width, float(np.quantile(bottom, 0.99))))
    axis.legend(loc="upper right", ncols=6, frameon=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("bag", type=Path)
    parser.add_argument("picture", type=Path, help="PNG to write")
    parser.add_argument("--messages", type=Path, default=Path("msg"), help="folder of our .msg files")
    arguments = parser.parse_args()
    draw_page(arguments.bag, arguments.picture, bag_types(arguments.messages))


if __name__ == "__main__":
    main()
