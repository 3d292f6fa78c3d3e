# SPDX-License-Identifier: Apache-2.0
"""A small bag player: `oxygen_play BAG`, for machines without `ros2 bag play`.

Messages go out as the bytes they were recorded as, each topic with the QoS it was recorded with. `rosbags`
reads the bags (mcap and sqlite3).
"""

from __future__ import annotations

import argparse
import importlib
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oxygen_ros.processes import Shutdown

CLOCK_HZ = 100.0
SHORTEST_ROUND = 0.02  # s between the end of a round and the next


@dataclass(frozen=True, slots=True)
class Play:
    """What is played and how.

    topics:  recorded names to play; () for all
    remap:   recorded name -> name to publish on
    clock:   /clock messages a second, 0 for none; its time is that of the recording
    rate:    speed; 2.0 is twice as fast
    delay:   seconds between advertising the topics and the first message, for discovery
    """

    bag: Path
    topics: tuple[str, ...] = ()
    remap: tuple[tuple[str, str], ...] = ()
    clock: float = 0.0
    rate: float = 1.0
    loop: bool = False
    delay: float = 1.0


class PlayError(RuntimeError):
    """The bag cannot be played as asked; the message has the problem and the cure."""


def parse_arguments(words: Sequence[str]) -> Play:
    parser = argparse.ArgumentParser(prog="oxygen_play", description="Play a ROS 2 bag (mcap or sqlite3).")
    parser.add_argument("bag", type=Path, help="folder of the bag, or a bare .mcap or .db3 file")
    parser.add_argument(
        "--topics", nargs="+", default=[], metavar="TOPIC", help="play these only (as recorded)"
    )
    parser.add_argument(
        "--remap", nargs="+", default=[], metavar="FROM:=TO", help="publish under other names"
    )
    parser.add_argument(
        "--clock", nargs="?", type=float, const=CLOCK_HZ, default=0.0, metavar="HZ",
        help=f"publish /clock in the recording's time (default {CLOCK_HZ:g} Hz); listeners need use_sim_time",
    )  # fmt: skip
    parser.add_argument("--rate", type=float, default=1.0, help="speed, 1.0 as recorded")
    parser.add_argument("--loop", action="store_true", help="start again at the end")
    parser.add_argument("--delay", type=float, default=1.0, help="seconds before the first message")
    given = parser.parse_args(words)
    remap = tuple((*word.partition(":=")[::2],) for word in given.remap)
    if any(not old or not new for old, new in remap):
        parser.error(f"--remap takes FROM:=TO, got {' '.join(given.remap)}")
    if given.rate <= 0 or given.clock < 0 or given.delay < 0:
        parser.error("--rate must be above 0, --clock and --delay not below")
    return Play(given.bag, tuple(given.topics), remap, given.clock, given.rate, given.loop, given.delay)


class Player:
    """Publishes a bag's messages at their times, on the steady clock."""

    def __init__(self, node: Any, play: Play) -> None:
        """node: an rclpy node. Raises PlayError for a bag or topics that cannot be read."""
        # Only this program needs rosbags; the node runs without it.
        from rosbags.rosbag2 import Reader
        from rosbags.rosbag2.errors import ReaderError

        self._node = node
        self._play = play
        try:
            self._reader = Reader(play.bag)
            self._reader.open()
        except (ReaderError, OSError) as error:
            raise PlayError(f"bag {play.bag}: {error}") from error
        recorded = {connection.topic for connection in self._reader.connections}
        missing = [topic for topic in play.topics if topic not in recorded]
        if missing:
            raise PlayError(
                f"bag {play.bag} has no {', '.join(missing)}; it has {', '.join(sorted(recorded))}"
            )
        self._publishers = self._advertise()
        self._clock = self._advertise_clock() if play.clock else None

    @property
    def topics(self) -> list[str]:
        """The names published on."""
        return sorted({publisher.topic_name for publisher in self._publishers.values()})

    def run(self, stop: threading.Event) -> int:
        """Play to the end, or until `stop`; returns the number of messages."""
        count = 0
        stop.wait(self._play.delay)
        while not stop.is_set():
            for publisher, data in self._pace(stop):
                publisher.publish(data)
                count += 1
            if not self._play.loop:
                break
            stop.wait(SHORTEST_ROUND)  # a bag of one message must not flood the network
        return count

    def close(self) -> None:
        self._reader.close()

    def _pace(self, stop: threading.Event) -> Iterator[tuple[Any, bytes]]:
        """(publisher, bytes) of each message when its time has come; the clock is published in between."""
        connections = [c for c in self._reader.connections if c.id in self._publishers]
        started = time.monotonic()
        first_ns: int | None = None
        clock_ns = 0
        for connection, stamp_ns, data in self._reader.messages(connections=connections):
            if first_ns is None:
                first_ns = clock_ns = stamp_ns
            while not stop.is_set():
                step_ns = stamp_ns if self._clock is None else min(stamp_ns, clock_ns)
                wait = started + (step_ns - first_ns) / 1e9 / self._play.rate - time.monotonic()
                if wait > 0:
                    stop.wait(wait)
                    continue
                if self._clock is not None and clock_ns <= stamp_ns:
                    self._tell_time(clock_ns)
                    clock_ns += int(1e9 / self._play.clock)
                    continue
                break
            if stop.is_set():
                return
            yield self._publishers[connection.id], bytes(data)

    def _tell_time(self, now_ns: int) -> None:
        from rosgraph_msgs.msg import Clock

        message = Clock()
        message.clock.sec, message.clock.nanosec = divmod(now_ns, 1_000_000_000)
        assert self._clock is not None
        self._clock.publish(message)

    def _advertise_clock(self) -> Any:
        from rclpy.qos import QoSProfile
        from rosgraph_msgs.msg import Clock

        return self._node.create_publisher(Clock, "/clock", QoSProfile(depth=10))

    def _advertise(self) -> dict[int, Any]:
        """connection id -> publisher. A type that is not installed is left out and logged."""
        renamed = dict(self._play.remap)
        publishers: dict[int, Any] = {}
        by_topic: dict[str, Any] = {}
        for connection in self._reader.connections:
            if self._play.topics and connection.topic not in self._play.topics:
                continue
            if connection.topic == "/clock" and self._play.clock:
                continue
            topic = renamed.get(connection.topic, connection.topic)
            if topic not in by_topic:
                try:
                    kind = find_message(connection.msgtype)
                except PlayError as error:
                    self._node.get_logger().error(f"{connection.topic} is not played: {error}")
                    continue
                by_topic[topic] = self._node.create_publisher(kind, topic, make_profile(connection))
            publishers[connection.id] = by_topic[topic]
        if not publishers:
            raise PlayError(f"bag {self._play.bag} holds nothing that can be played")
        return publishers


def find_message(name: str) -> Any:
    """The class of "package/msg/Name". Raises PlayError when it is not installed."""
    package, _, kind = name.split("/")
    try:
        return getattr(importlib.import_module(f"{package}.msg"), kind)
    except (ImportError, AttributeError) as error:
        raise PlayError(f"message type {name} is not installed") from error


def make_profile(connection: Any) -> Any:
    """The QoS a topic was recorded with; reliable with depth 10 where the bag has none."""
    from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

    offered = list(getattr(connection.ext, "offered_qos_profiles", ()) or ())
    if not offered:
        return QoSProfile(depth=10)
    # With several publishers recorded, the strongest offer satisfies all their subscribers.
    is_reliable = any(profile.reliability.name == "RELIABLE" for profile in offered)
    is_latched = all(profile.durability.name == "TRANSIENT_LOCAL" for profile in offered)
    return QoSProfile(
        depth=max([profile.depth for profile in offered] + [10]),
        reliability=ReliabilityPolicy.RELIABLE if is_reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if is_latched else DurabilityPolicy.VOLATILE,
    )


def main(words: Sequence[str] | None = None) -> int:
    """Play until the end or a signal. Returns the exit code: 0, or 1 when the bag cannot be played."""
    shutdown = Shutdown()
    shutdown.watch_signals()
    import rclpy
    from rclpy.signals import SignalHandlerOptions

    words = list(sys.argv[1:] if words is None else words)
    at = words.index("--ros-args") if "--ros-args" in words else len(words)
    play = parse_arguments(words[:at])
    # Not our own arguments: rcl would take FROM:=TO for a remapping.
    rclpy.init(args=words[at:], signal_handler_options=SignalHandlerOptions.NO)
    node = rclpy.create_node("oxygen_play")
    shutdown.call_when_asked()
    try:
        player = Player(node, play)
        node.get_logger().info(f"playing {play.bag}: {', '.join(player.topics)}")
        count = player.run(shutdown.is_asked)
        player.close()
        node.get_logger().info(f"{count} messages played")
        return 0
    except PlayError as error:
        node.get_logger().error(str(error))
        return 1
    finally:
        node.destroy_node()
        rclpy.shutdown()
