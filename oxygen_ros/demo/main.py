# SPDX-License-Identifier: Apache-2.0
"""`oxygen_demo`: the simulated robot and the node as real processes, shown and recorded.

A run: start both, watch until Ctrl-C or --duration, stop both, plot the page. The executables and parameter
files are those of launch/demo.launch.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import Any

# Before rclpy: messages of a demo stay on this machine.
os.environ.setdefault("ROS_AUTOMATIC_DISCOVERY_RANGE", "LOCALHOST")

import rclpy
import yaml
from ament_index_python.packages import get_package_share_directory
from rclpy.signals import SignalHandlerOptions
from rich.console import Console
from rosbags.typesys.store import Typestore

from oxygen_ros.demo.page import draw_page
from oxygen_ros.demo.recorder import Recorder
from oxygen_ros.demo.screen import News, View
from oxygen_ros.processes import ChildError, ChildProcess, Shutdown
from oxygen_ros.replay.bags import BagError, BagWriter, bag_types

START_TIMEOUT = 90.0  # s; loading and warm-up take about 5 on a laptop


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="oxygen_demo", description="A simulated robot moves and says what it does; recorded and drawn."
    )
    parser.add_argument("--duration", type=float, default=None, metavar="SECONDS", help="end by itself")
    parser.add_argument(
        "--out", type=Path, default=Path("demo_runs"), help="folder for bags, logs and pictures"
    )
    parser.add_argument("--model", type=Path, default=None, help="model folder; default the demo model")
    parsed = parser.parse_args(arguments)
    if parsed.duration is not None and parsed.duration <= 0:
        parser.error(f"--duration must be more than 0 seconds, got {parsed.duration:g}")
    if parsed.model is not None and not (parsed.model / "config.json").is_file():
        parser.error(f"--model {parsed.model}: not a model folder (it has no config.json)")
    return parsed


def start_simulator(share: Path, folder: Path) -> ChildProcess:
    """The simulator, with its parameter file and a log of its own."""
    command = ["oxygen_sim", "--ros-args", "--params-file", str(share / "config" / "sim.yaml")]
    remaps = ["-r", "__node:=oxygen_sim", "-r", "joint_trajectory:=oxygen/joint_trajectory"]
    return ChildProcess([*command, *remaps], folder / "sim.log", name="simulator")


def start_node(share: Path, folder: Path, model: Path | None) -> ChildProcess:
    """The node, with its parameter file and a log of its own. model: None for the file's."""
    command = ["oxygen_node", "--ros-args", "--params-file", str(share / "config" / "demo.yaml")]
    overrides = ["-p", f"model:={model.resolve()}"] if model else []
    return ChildProcess([*command, "-r", "__node:=oxygen", *overrides], folder / "node.log", name="node")


def watch(
    children: list[ChildProcess],
    recorder: Recorder,
    view: View,
    news: News,
    duration: float | None,
    shutdown: Shutdown,
) -> None:
    """Until `duration` seconds after the first tick, or until the demo is asked to end.

    Raises ChildError when a process ends by itself, OSError when the bag can be written no more.
    """
    started = time.monotonic()
    first_tick: float | None = None
    next_view = 0.0
    while not shutdown.is_asked.is_set():
        recorder.spin(0.05)
        if recorder.trouble:
            raise OSError(recorder.trouble)
        now = time.monotonic()
        for child in children:
            child.check()
        if first_tick is None:
            if news.ticks:
                first_tick = now
            elif why := news.configure_failed:
                raise ChildError(f"the node has no way to start: {why}")
            elif now - started > START_TIMEOUT:
                reasons = news.summary() or "no diagnostics either"
                raise ChildError(f"no tick within {START_TIMEOUT:.0f} s: {reasons}")
        elif duration is not None and now - first_tick >= duration:
            return
        if now >= next_view:
            next_view = now + 0.25
            view.update(news, "running" if first_tick else "starting (loading, warming up)")


def read_parameters(file: Path) -> dict[str, Any]:
    """The parameters of a file for one node."""
    content: dict[str, dict[str, dict[str, Any]]] = yaml.safe_load(file.read_text())
    return next(iter(content.values()))["ros__parameters"]


def describe(share: Path, model: Path | None) -> str:
    """A sentence about the run, from the model's folder and the simulator's parameters."""
    folder = model or share / "resource" / "demo_model"
    try:
        about = str(json.loads((folder / "config.json").read_text()).get("description", ""))
    except (OSError, json.JSONDecodeError):
        about = ""  # the node reports what is wrong with the folder
    if read_parameters(share / "config" / "sim.yaml")["driver"] == "expert":
        about += " The scripted expert moves the arm; the model's chunks are shown beside, not executed."
    else:
        about += " The model moves the arm."
    return about.strip()


def make_folder(out: Path) -> Path:
    """A new folder in `out`, named by the time; a demo started in the same second gets another."""
    started = datetime.now().strftime("%Y%m%d-%H%M%S")
    out = out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    for name in (started, *(f"{started}-{number}" for number in range(2, 100))):
        try:
            (out / name).mkdir()
        except FileExistsError:
            continue
        return out / name
    raise FileExistsError(f"{out / started} and 98 more exist")


def main(shutdown: Shutdown, arguments: list[str] | None = None) -> int:
    """Run the demo until it is asked to end; the exit status. shutdown: is watching signals already."""
    options = parse(sys.argv[1:] if arguments is None else arguments)
    shutdown.call_when_asked()
    console = Console()
    try:
        folder = make_folder(options.out)
        return run(options, folder, console, shutdown)
    except OSError as error:
        console.print(
            f"[red]oxygen_demo: cannot write into {options.out}: {error}; choose another with --out[/red]",
            highlight=False,
            soft_wrap=True,
        )
        return 1


def run(options: argparse.Namespace, folder: Path, console: Console, shutdown: Shutdown) -> int:
    """The demo, recorded into `folder`; the exit status. Raises OSError when that cannot be written."""
    share = Path(get_package_share_directory("oxygen_ros"))
    types = bag_types(share / "msg")
    note = describe(share, options.model)
    period = float(read_parameters(share / "config" / "demo.yaml")["period"])
    news = News()
    failure = ""
    rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
    children: list[ChildProcess] = []
    with BagWriter(folder / "bag", types) as writer:
        recorder = Recorder(writer, news.hear)
        try:
            children.append(start_simulator(share, folder))
            children.append(start_node(share, folder, options.model))
            with View(console, period, note) as view:
                watch(children, recorder, view, news, options.duration, shutdown)
        except ChildError as error:
            failure = str(error)
        finally:
            for child in reversed(children):  # the node first: it still publishes the ends of its texts
                # Each is ended, also after another one failed.
                trouble = child.stop(lambda: recorder.spin(0.05))
                failure = failure or trouble
            recorder.close()
            rclpy.shutdown()
    return report(console, folder, types, news, failure, note=note, period=period)


def report(
    console: Console, folder: Path, types: Typestore, news: News, failure: str, *, note: str, period: float
) -> int:
    """Print the result and its folder; plot the page. Exit status 0 unless something failed."""
    if failure:
        console.print(f"[red]oxygen_demo: {failure}[/red]", highlight=False, soft_wrap=True)
        console.print(f"logs: {folder}", highlight=False, soft_wrap=True)
        return 1
    if news.tick is not None:
        console.print(
            f"{news.ticks} ticks, {news.tick.prefills / news.tick.tick:.2f} prefills a tick, "
            f"{news.chunks} chunks, {news.finished} texts; "
            f"chunk published {1e3 * news.latency(0.5):.0f} ms after its tick began (median; "
            f"p99 {1e3 * news.latency(0.99):.0f} ms)",
            highlight=False,
            soft_wrap=True,
        )
    console.print(f"bag:     {folder / 'bag'}", highlight=False, soft_wrap=True)
    try:
        draw_page(folder / "bag", folder / "demo.png", types, note=note, period=period)
        console.print(f"picture: {folder / 'demo.png'}", highlight=False, soft_wrap=True)
    except BagError as error:
        console.print(f"no picture: {error}", highlight=False, soft_wrap=True)
    return 0
