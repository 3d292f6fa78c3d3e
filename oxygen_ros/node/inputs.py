# SPDX-License-Identifier: Apache-2.0
"""Subscriptions: cameras, joints, instruction, question. They only store.

Callbacks run in the executor's thread. They put the message into a bounded deque and return; appending and
popping are atomic in CPython, so no lock is needed. The worker takes the messages with `drain` and does
everything else.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.exceptions import InvalidTopicNameException
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.subscription import Subscription
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import String

from oxygen_ros.node import qos
from oxygen_ros.node.batching import BatchedSubscription
from oxygen_ros.node.parameters import ParameterProblem
from oxygen_ros.node.settings import CameraSettings
from oxygen_ros.robot.streams import JOINTS

# Most messages kept of one stream until the worker drains it; images also no longer than `keep_s`.
IMAGES_KEPT = 128
JOINTS_KEPT = 512
# Questions kept until the next tick.
QUESTIONS_KEPT = 64
# Longest instruction; a model may take fewer and refuses longer ones.
INSTRUCTION_CHARS = 1000


def clean_words(text: str, most: int) -> str:
    """Text for a prompt: no control characters, single blanks, at most `most` characters."""
    printable = "".join(letter if letter.isprintable() else " " for letter in text)
    return " ".join(printable.split())[:most].rstrip()


class Inputs:
    """Messages received since the worker's last `drain`."""

    def __init__(
        self, node: Node, cameras: Mapping[str, CameraSettings], keep_s: float, wake: Callable[[], None]
    ) -> None:
        """keep_s: how long an image waits for the worker [s]; wake: called after each, must return at once"""
        self._node = node
        self._keep_ns = int(keep_s * 1e9)
        self._wake = wake
        # stream -> resolved topic
        self.topics: dict[str, str] = {}
        self._images: dict[str, deque[tuple[Any, int]]] = {}
        self._joints: deque[tuple[JointState, int]] = deque(maxlen=JOINTS_KEPT)
        # Read by the hold in the executor's thread, not by the worker.
        self._newest_joints: deque[tuple[JointState, int]] = deque(maxlen=JOINTS_KEPT)
        self._instruction: deque[str] = deque(maxlen=1)
        self._questions: deque[str] = deque()
        # Raised by the executor's thread, read by the worker's.
        self.questions_lost = 0
        # stream -> type and profile we subscribe with
        self._profiles: dict[str, tuple[str, QoSProfile]] = {}
        self._subscriptions: list[Subscription] = []
        self._joint_subscription: BatchedSubscription | None = None
        try:
            for name, camera in cameras.items():
                store = self._make_store(name)
                try:
                    self._subscribe(name, _TYPES[camera.transport], camera.topic, qos.CAMERA, store)
                except InvalidTopicNameException as error:
                    reason = str(error).splitlines()[0].removeprefix("Invalid topic name: ").rstrip(":")
                    raise ParameterProblem(
                        f"parameter 'cameras.{name}.topic' is {camera.topic!r}, no topic: {reason}"
                    ) from error
            self._joint_subscription = BatchedSubscription(
                node, JointState, "joint_states", qos.JOINTS, self._store_joints, _no_log()
            )
            self._note(JOINTS, JointState, qos.JOINTS, self._joint_subscription.subscription)
            # The wider profile last: publishers are compared with that one.
            for profile in (qos.INSTRUCTION_LATCHED, qos.INSTRUCTION):
                self._subscribe("instruction", String, "~/instruction", profile, self._store_instruction)
            self._subscribe("question", String, "~/question", qos.QUESTION, self._store_question)
        except Exception:
            # An invalid topic name: destroy what was made.
            self.destroy()
            raise

    def set_instruction(self, words: str) -> None:
        """The instruction parameter was set. Called by the executor."""
        self._instruction.append(words)

    def drain(self) -> Iterator[tuple[str, Any, int]]:
        """Take all images and joints: (stream, message, steady receipt [ns]). Called by the worker."""
        for name, kept in (*self._images.items(), (JOINTS, self._joints)):
            for _ in range(len(kept)):
                try:
                    message, received_ns = kept.popleft()
                except IndexError:
                    break  # the executor removed the last one as too old
                yield name, message, received_ns

    def take_instruction(self) -> str | None:
        """The instruction that came since the last call. Called by the worker."""
        return self._instruction.popleft() if self._instruction else None

    def take_questions(self) -> list[str]:
        """The questions that came since the last call. Called by the worker."""
        return [self._questions.popleft() for _ in range(len(self._questions))]

    def recent_joints(self) -> list[JointState]:
        """Joint states that are not too old to hold at, the newest last. Called by the executor."""
        oldest_ns = time.monotonic_ns() - self._keep_ns
        return [message for message, received_ns in self._newest_joints if received_ns >= oldest_ns]

    def clear(self, keep_questions: bool = False) -> None:
        """Forget images, joints and questions; the instruction stays until another comes."""
        for kept in self._images.values():
            kept.clear()
        self._joints.clear()
        if not keep_questions:
            self._questions.clear()

    def find_mismatches(self) -> Mapping[str, str]:
        """stream -> why nothing is received from a publisher on its topic. Called by the executor."""
        return qos.collect(
            (stream, qos.explain_publisher(publisher, type_name, profile))
            for stream, (type_name, profile) in self._profiles.items()
            for publisher in self._node.get_publishers_info_by_topic(self.topics[stream])
        )

    def destroy(self) -> None:
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        if self._joint_subscription is not None:
            self._joint_subscription.destroy()

    def _subscribe(
        self, stream: str, kind: Any, topic: str, profile: QoSProfile, store: Callable[[Any], None]
    ) -> None:
        subscription = self._node.create_subscription(kind, topic, store, profile, event_callbacks=_no_log())
        self._subscriptions.append(subscription)
        self._note(stream, kind, profile, subscription)

    def _note(self, stream: str, kind: Any, profile: QoSProfile, subscription: Subscription) -> None:
        self.topics[stream] = subscription.topic_name
        self._profiles[stream] = (f"{kind.__module__.split('.')[0]}/msg/{kind.__name__}", profile)

    def _make_store(self, camera: str) -> Callable[[Any], None]:
        kept = self._images[camera] = deque(maxlen=IMAGES_KEPT)

        def store(message: Any) -> None:
            received_ns = time.monotonic_ns()
            try:
                # Images are large, and a tick may take long.
                while kept[0][1] < received_ns - self._keep_ns:
                    kept.popleft()
            except IndexError:
                pass  # none is left, or the worker has just taken the last
            kept.append((message, received_ns))
            # Joints for the image's instant.
            if self._joint_subscription is not None:
                self._joint_subscription.drain()
            self._wake()

        return store

    def _store_joints(self, message: JointState) -> None:
        received = (message, time.monotonic_ns())
        self._joints.append(received)
        self._newest_joints.append(received)

    def _store_instruction(self, message: String) -> None:
        self._instruction.append(message.data)

    def _store_question(self, message: String) -> None:
        if len(self._questions) < QUESTIONS_KEPT:
            self._questions.append(message.data)
        else:
            self.questions_lost += 1


def _no_log() -> SubscriptionEventCallbacks:
    """rclpy's own callback logs without the profiles; `find_mismatches` reports both."""
    return SubscriptionEventCallbacks(incompatible_qos=lambda _: None)


_TYPES = {"raw": Image, "compressed": CompressedImage}
