# SPDX-License-Identifier: Apache-2.0
"""The recorded demo, played into a live node under /clock: chunks and texts come, loop after loop."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from node_lab import LATCHED, ROOT, Robot, nanoseconds
from rosbags.rosbag2 import Reader
from std_msgs.msg import String

from oxygen_ros.replay.player import Play, parse_arguments

BAG = ROOT / "resource" / "demo_bag"


@pytest.fixture(scope="module")
def node(start_node: Callable[..., Any], robot: Robot) -> Iterator[Any]:
    """A node on sim time that watches the bag's topics under names of their own; the robot is silent."""
    robot.is_on = False
    process = start_node(
        {
            "use_sim_time": True,
            "cameras.top.topic": "/bag/top",
            "cameras.wrist.topic": "/bag/wrist",
            "cameras.wrist.transport": "compressed",
        }
    )
    robot.wait_for_state("active")
    yield process
    robot.is_on = True


@pytest.fixture
def play(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    root = request.config.pluginmanager.getplugin(str(ROOT / "test" / "conftest.py"))
    assert root is not None
    started: list[Any] = []

    def start(*words: str) -> Any:
        program = shutil.which("oxygen_play")
        assert program is not None, "oxygen_play is not on PATH: source scripts/env.sh (after make build)"
        started.append(root.Process([program, *words], os.environ, tmp_path))
        return started[-1]

    yield start
    for process in started:
        if process.running():
            process.stop()


def test_the_bag_gives_chunks_and_texts_and_loops(robot: Robot, node: Any, play: Callable[..., Any]) -> None:
    robot.wait_for_status("inputs", "/clock: silent", level="error", timeout=40)
    process = play(
        str(BAG), "--clock", "--loop", "--rate", "1.5",
        "--remap", "/camera/top/image_raw:=/bag/top", "/camera/wrist/image_raw/compressed:=/bag/wrist",
    )  # fmt: skip
    with Reader(BAG) as bag:
        start_ns, end_ns = bag.start_time, bag.end_time
    chunk = robot.wait_for("/oxygen/action_chunk", timeout=30)
    assert start_ns <= nanoseconds(chunk.header.stamp) <= end_ns
    robot.wait_for("/oxygen/text", lambda m: m.finish_reason in ("eos", "length"), timeout=40)
    # The second round: stamps went back, and the node goes on with them.
    robot.wait_for_status("inputs", "restarts: 2", timeout=40)
    last = max(robot.heard["/oxygen/action_chunk"], key=lambda m: nanoseconds(m.header.stamp))
    robot.wait_for(
        "/oxygen/action_chunk",
        lambda m: m.tick > last.tick and nanoseconds(m.header.stamp) < nanoseconds(last.header.stamp),
    )
    process.stop(signal.SIGINT)
    assert "messages played" in process.output
    # A clock that stops is seen on the steady clock.
    robot.wait_for_status("inputs", "sim time has not moved", level="error")


def test_the_stamps_of_one_round_are_the_bags(robot: Robot, node: Any, play: Callable[..., Any]) -> None:
    """Every chunk is about an image of the bag: its stamp is one of theirs."""
    with Reader(BAG) as bag:
        from rosbags.typesys import Stores, get_typestore

        store = get_typestore(Stores.ROS2_JAZZY)
        connections = [c for c in bag.connections if "camera" in c.topic]
        stamps = set()
        for connection, _, data in bag.messages(connections=connections):
            stamp = store.deserialize_cdr(data, connection.msgtype).header.stamp
            stamps.add(stamp.sec * 10**9 + stamp.nanosec)
    for chunk in robot.heard["/oxygen/action_chunk"]:
        assert nanoseconds(chunk.header.stamp) in stamps


def test_a_sqlite_bag_keeps_its_qos(robot: Robot, play: Callable[..., Any], tmp_path: Path) -> None:
    """A latched message reaches a latched subscriber; under another name, and only that topic."""
    from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
    from rosbags.rosbag2 import StoragePlugin, Writer
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    string = store.types["std_msgs/msg/String"]
    latched = Qos(
        QosHistory.KEEP_LAST, 1, QosReliability.RELIABLE, QosDurability.TRANSIENT_LOCAL, QosTime(0, 0),
        QosTime(0, 0), QosLiveliness.AUTOMATIC, QosTime(0, 0), False,
    )  # fmt: skip
    with Writer(tmp_path / "words", version=9, storage_plugin=StoragePlugin.SQLITE3) as bag:
        for topic, words in (("/words", "first"), ("/noise", "never")):
            connection = bag.add_connection(
                topic, string.__msgtype__, typestore=store, offered_qos_profiles=[latched]
            )
            bag.write(connection, 10**18, store.serialize_cdr(string(words), string.__msgtype__))
    for topic in ("/said", "/noise"):
        robot.listen(topic, String, LATCHED)
    process = play(str(tmp_path / "words"), "--topics", "/words", "--remap", "/words:=/said", "--loop")
    assert robot.wait_for("/said").data == "first"
    process.stop(signal.SIGTERM)
    assert robot.now("/noise") == 0


def test_what_cannot_be_played_is_said(play: Callable[..., Any], tmp_path: Path) -> None:
    process = play(str(tmp_path / "nothing"))
    assert process.wait() == 1
    assert "nothing" in process.output
    assert "Traceback" not in process.output
    process = play(str(BAG), "--topics", "/lidar")
    assert process.wait() == 1
    assert "has no /lidar; it has /camera/top/image_raw" in process.output


def test_arguments() -> None:
    assert parse_arguments(["b", "--clock"]) == Play(Path("b"), clock=100.0)
    assert parse_arguments(["b", "--clock", "20", "--loop", "--remap", "/a:=/b"]) == Play(
        Path("b"), remap=(("/a", "/b"),), clock=20.0, loop=True
    )
    for wrong in (["b", "--rate", "0"], ["b", "--remap", "/a=/b"], []):
        with pytest.raises(SystemExit):
            parse_arguments(wrong)
