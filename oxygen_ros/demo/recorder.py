# SPDX-License-Identifier: Apache-2.0
"""Records every topic into a bag and passes some messages to the view.

Everything runs in the demo's main thread, inside `spin_once`.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, HistoryPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message

from oxygen_ros.replay.bags import BagError, BagWriter, make_qos

# Topics the view shows; all others are only recorded.
SHOWN = ("/tick", "/text", "/action_chunk", "/sim/state", "/instruction", "/diagnostics")


class Recorder(Node):
    """Records all topics and calls `hear(topic, message)` for the shown ones."""

    DEPTH = 100

    def __init__(self, bag: BagWriter, hear: Callable[[str, Any], None]) -> None:
        super().__init__("oxygen_demo")
        self._bag = bag
        self._hear = hear
        self._known: set[str] = set()
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self)
        # A timer, not the caller's loop: topics of a late node must not be missed.
        self.create_timer(0.5, self.discover)
        self.recording = True
        # Why the recording ended early, else "".
        self.trouble = ""

    def discover(self) -> None:
        """Subscribe to topics that appeared since the last call."""
        for topic, types in self.get_topic_names_and_types():
            if topic not in self._known and self.get_publishers_info_by_topic(topic):
                self._known.add(topic)
                self._listen(topic, types[0])

    def _listen(self, topic: str, message_type: str) -> None:
        offers = [info.qos_profile for info in self.get_publishers_info_by_topic(topic)]
        reliable = all(qos.reliability == ReliabilityPolicy.RELIABLE for qos in offers)
        latched = all(qos.durability == DurabilityPolicy.TRANSIENT_LOCAL for qos in offers)
        try:
            self._bag.add(
                topic, message_type, make_qos(reliable=reliable, transient_local=latched, depth=self.DEPTH)
            )
        except BagError as error:
            self.get_logger().warning(f"not recorded: {error}")
            return
        package, _, name = message_type.split("/")
        kind = getattr(import_module(f"{package}.msg"), name)
        shown = topic.endswith(SHOWN)

        def take(serialized: bytes) -> None:
            if self.recording:
                try:
                    self._bag.write(topic, self.get_clock().now().nanoseconds, serialized)
                except OSError as error:
                    self.recording = False
                    self.trouble = str(error)
            if shown:
                self._hear(topic, deserialize_message(serialized, kind))

        self.create_subscription(
            kind,
            topic,
            take,
            QoSProfile(
                history=HistoryPolicy.KEEP_LAST,
                depth=self.DEPTH,
                reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
                durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
            ),
            raw=True,
        )

    def spin(self, seconds: float) -> None:
        """Handle what comes within `seconds`."""
        self._executor.spin_once(timeout_sec=seconds)

    def close(self) -> None:
        self._executor.shutdown()
        self.destroy_node()
