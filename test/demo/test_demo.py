# SPDX-License-Identifier: Apache-2.0
"""`oxygen_demo` as a person runs it: real processes, real DDS, a bag and a picture at the end."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

pytest.importorskip("rclpy")
pytest.importorskip("mujoco")

from ament_index_python.packages import get_package_share_directory

from oxygen_ros.demo.page import draw_page
from oxygen_ros.replay.bags import BagError, bag_types, read_messages

START = 90.0  # s; two processes load and warm up on a busy machine


def read_run(out: Path) -> tuple[Path, Counter[str], dict[str, list[Any]]]:
    """The one run's folder, messages per topic, and the messages of the node's own topics."""
    (folder,) = out.iterdir()
    counts: Counter[str] = Counter()
    kept: dict[str, list[Any]] = {}

    def visit(topic: str, received: int, message: Any) -> None:
        counts[topic] += 1
        if topic.startswith("/oxygen/"):
            kept.setdefault(topic, []).append((received, message))

    read_messages(folder / "bag", bag_types(Path(get_package_share_directory("oxygen_ros")) / "msg"), visit)
    return folder, counts, kept


def test_a_run_of_some_seconds(run_process: Callable[..., Any], tmp_path: Path) -> None:
    """One prefill a tick, chunks, both kinds of text some ticks later; bag and picture are real."""
    out = tmp_path / "runs"
    demo = run_process(["oxygen_demo", "--duration", "4", "--out", out])
    demo.wait(START)
    output = demo.stop()
    assert "1.00 prefills a tick" in output
    assert "picture:" in output
    folder, counts, kept = read_run(out)
    for topic in ("/camera/top/image_raw", "/camera/wrist/image_raw", "/joint_states", "/diagnostics"):
        assert counts[topic] > 0, f"{topic} was not recorded: {counts}"
    ticks = [message for _, message in kept["/oxygen/tick"]]
    assert ticks[-1].prefills == ticks[-1].tick, "one prefill a tick"
    chunks = [message for _, message in kept["/oxygen/action_chunk"]]
    assert {chunk.tick for chunk in chunks} >= {tick.tick for tick in ticks[1:-1]}, "a chunk every tick"
    texts = [message for _, message in kept["/oxygen/text"]]
    assert {text.kind for text in texts} >= {"memory", "narration"}
    done = [text for text in texts if text.finish_reason in ("eos", "stop", "length")]
    assert done, "texts came to an end of their own"
    assert all(text.tick_finished >= text.tick_asked for text in texts)
    with Image.open(folder / "demo.png") as picture:
        picture.load()
        assert picture.width > 1000
        assert len(picture.getcolors(1 << 24) or ()) > 1000, "camera pictures are in it"


def test_ctrl_c_while_running_and_while_starting(run_process: Callable[..., Any], tmp_path: Path) -> None:
    """SIGINT at any time: status 0, no traceback, a bag that opens, no process left behind."""
    early = run_process(["oxygen_demo", "--out", tmp_path / "early"])
    early.wait_until_signals_are_held()
    early.stop(signal.SIGINT)
    out = tmp_path / "late"
    late = run_process(["oxygen_demo", "--out", out])
    late.wait_for_line(r"tick +\d+", START)
    output = late.stop(signal.SIGTERM)
    assert "bag:" in output
    _, counts, _ = read_run(out)
    assert counts["/oxygen/tick"] > 0


def test_a_missing_model_is_named(run_process: Callable[..., Any], tmp_path: Path) -> None:
    demo = run_process(["oxygen_demo", "--model", "/nowhere/model", "--out", tmp_path / "runs"])
    assert demo.wait(START) == 2
    assert "/nowhere/model" in demo.output
    assert "Traceback" not in demo.output


def test_a_bag_without_ticks_is_named(tmp_path: Path) -> None:
    share = Path(get_package_share_directory("oxygen_ros"))
    with pytest.raises(BagError, match="holds no tick"):
        draw_page(share / "resource" / "demo_bag", tmp_path / "page.png", bag_types(share / "msg"))
