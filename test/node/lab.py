# SPDX-License-Identifier: Apache-2.0
"""A robot made of two cameras and seven joints, which publishes over real DDS and keeps what it receives.

No test. The robot's own thread publishes; tests change what it publishes (`robot.spoiled`) and wait for what
comes back. To prove that nothing came, they wait for a message that must come instead, and never sleep.
"""

from __future__ import annotations

import array
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import ActionChunk, TextOutput, TickStats

ROOT = Path(__file__).resolve().parents[2]
JOINTS = ("joint1", "joint2", "joint3", "joint4", "joint5", "joint6", "gripper")
CAMERAS = ("top", "wrist")
PARAMETERS = {
    "model": str(ROOT / "resource" / "demo_model"),
    "cameras.top.topic": "/camera/top/image_raw",
    "cameras.wrist.topic": "/camera/wrist/image_raw",
    "period": 0.1,
    "instruction": "put two red blocks in the box",
    "text.memory.every_n_ticks": 5,
    "text.narration.every_n_ticks": 3,
    "text.memory.max_tokens": 8,
    "text.narration.max_tokens": 8,
    "text.answer.max_tokens": 8,
    **{
        f"limits.{joint}.{bound}": value
        for joint in JOINTS
        for bound, value in (("lower", -3.2), ("upper", 3.2))
    },
}
RELIABLE = QoSProfile(depth=50, reliability=ReliabilityPolicy.RELIABLE)
LATCHED = QoSProfile(
    depth=10, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL
)
SENSOR = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
LEVELS = {DiagnosticStatus.OK: "ok", DiagnosticStatus.WARN: "warn", DiagnosticStatus.ERROR: "error"}


class Robot:
    """Publishes at 20 Hz while `is_on`; keeps messages by topic, newest last."""

    def __init__(self) -> None:
        rclpy.init()
        self.node = rclpy.create_node("robot")
        self.heard: dict[str, list[Any]] = defaultdict(list)
        self._sent_at: dict[str, list[float]] = defaultdict(list)
        self.spoil_image: Callable[[str, Image], Image | None] = lambda camera, image: image
        self.spoil_joints: Callable[[JointState], JointState | None] = lambda joints: joints
        self.is_on = True
        self._sent = 0
        self._grown = threading.Condition()
        self._cameras = {
            name: self.node.create_publisher(Image, f"/camera/{name}/image_raw", SENSOR) for name in CAMERAS
        }
        self._joints = self.node.create_publisher(JointState, "/joint_states", RELIABLE)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)
        self.listen("/diagnostics", DiagnosticArray, RELIABLE)
        self.listen("/oxygen/action_chunk", ActionChunk, RELIABLE)
        self.listen("/oxygen/joint_trajectory", JointTrajectory, RELIABLE)
        self.listen("/oxygen/text", TextOutput, LATCHED)
        self.listen("/oxygen/tick", TickStats, SENSOR)
        for kind in ("memory", "narration", "subtask", "answer"):
            self.listen(f"/oxygen/{kind}", String, LATCHED)
        self.instruction = self.node.create_publisher(String, "/oxygen/instruction", LATCHED)
        self.question = self.node.create_publisher(String, "/oxygen/question", RELIABLE)
        self.node.create_timer(0.05, self._publish)
        self._thread = threading.Thread(target=self._spin, daemon=True)
        self._is_closing = False
        self._thread.start()

    # -- what tests ask ------------------------------------------------------------------------

    def listen(self, topic: str, kind: Any, profile: QoSProfile) -> None:
        """Keep what comes on a topic."""

        def keep(message: Any, info: Any) -> None:
            with self._grown:
                self.heard[topic].append(message)
                self._sent_at[topic].append(info["source_timestamp"] / 1e9)
                self._grown.notify_all()

        self.node.create_subscription(kind, topic, keep, profile)

    def wait_for(
        self,
        topic: str,
        fits: Callable[[Any], bool] = lambda message: True,
        timeout: float = 40.0,
        after: int = 0,
    ) -> Any:
        """The first message of a topic, from the `after`-th heard on, that fits."""
        deadline = time.monotonic() + timeout
        at = after
        with self._grown:
            while True:
                heard = self.heard[topic]
                while at < len(heard):
                    if fits(heard[at]):
                        return heard[at]
                    at += 1
                left = deadline - time.monotonic()
                if left <= 0:
                    newest = heard[-1] if heard else None
                    raise AssertionError(
                        f"{topic}: nothing fits among {len(heard)} messages; newest: {newest}"
                    )
                self._grown.wait(min(left, 0.2))

    def forget(self) -> None:
        """Drop all messages: a new node counts its ticks from 1 again."""
        with self._grown:
            self.heard.clear()
            self._sent_at.clear()

    def now(self, topic: str) -> int:
        """How many messages of a topic were heard: the `after` of what is to come."""
        with self._grown:
            return len(self.heard[topic])

    def sent_at(self, topic: str, fits: Callable[[Any], bool]) -> float:
        """When the last fitting message of a topic was published [s, the publisher's system clock]."""
        with self._grown:
            pairs = zip(self.heard[topic], self._sent_at[topic], strict=True)
            return [at for message, at in pairs if fits(message)][-1]

    def wait_for_status(
        self, part: str, words: str = "", level: str | None = None, timeout: float = 40.0
    ) -> Any:
        """A diagnostic from now on, of `oxygen: <part>`, whose message or values hold the words."""

        def pick(message: DiagnosticArray) -> DiagnosticStatus | None:
            for status in message.status:
                text = status.message + " ".join(f"{pair.key}: {pair.value}" for pair in status.values)
                fits_level = level is None or LEVELS.get(status.level) == level
                if status.name == f"oxygen: {part}" and words in text and fits_level:
                    return status
            return None

        found = self.wait_for(
            "/diagnostics", lambda m: pick(m) is not None, timeout, after=self.now("/diagnostics")
        )
        return pick(found)

    def wait_for_tick(self, more: int = 1) -> TickStats:
        """The `more`-th tick from now on."""
        before = self.now("/oxygen/tick")
        return self.wait_for("/oxygen/tick", after=before + more - 1)

    @contextmanager
    def spoiled(
        self,
        image: Callable[[str, Image], Image | None] | None = None,
        joints: Callable[[JointState], JointState | None] | None = None,
    ) -> Iterator[None]:
        """Publish changed messages (None: none) meanwhile."""
        kept = self.spoil_image, self.spoil_joints
        self.spoil_image, self.spoil_joints = image or kept[0], joints or kept[1]
        try:
            yield
        finally:
            self.spoil_image, self.spoil_joints = kept

    def call(self, kind: Any, name: str, request: Any, timeout: float = 30.0) -> Any:
        """Call a service and wait for its answer."""
        client = self.node.create_client(kind, name)
        try:
            assert client.wait_for_service(timeout), f"no service {name}"
            future = client.call_async(request)
            deadline = time.monotonic() + timeout
            while not future.done():
                assert time.monotonic() < deadline, f"{name} gave no answer in {timeout} s"
                time.sleep(0.01)
            return future.result()
        finally:
            self.node.destroy_client(client)

    def change_state(self, label: str, node: str = "oxygen", timeout: float = 60.0) -> bool:
        request = ChangeState.Request()
        request.transition.label = label
        return bool(self.call(ChangeState, f"/{node}/change_state", request, timeout).success)

    def state(self, node: str = "oxygen") -> str:
        return str(self.call(GetState, f"/{node}/get_state", GetState.Request()).current_state.label)

    def wait_for_state(self, label: str, node: str = "oxygen", timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while (found := self.state(node)) != label:
            assert time.monotonic() < deadline, f"{node} is {found}, not {label}"
            time.sleep(0.05)

    def set_parameter(self, name: str, value: Any, node: str = "oxygen") -> str:
        """Set a parameter; "" or the reason why not."""
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        result = self.call(SetParameters, f"/{node}/set_parameters", request).results[0]
        return "" if result.successful else str(result.reason)

    def hold(self, is_held: bool) -> str:
        return str(self.call(SetBool, "/oxygen/hold", SetBool.Request(data=is_held)).message)

    def close(self) -> None:
        self._is_closing = True
        self._thread.join()
        self._executor.shutdown()
        self.node.destroy_node()
        rclpy.shutdown()

    # -- inside --------------------------------------------------------------------------------

    def _spin(self) -> None:
        while not self._is_closing:
            self._executor.spin_once(timeout_sec=0.1)

    def _publish(self) -> None:
        if not self.is_on:
            return
        self._sent += 1
        stamp = self.node.get_clock().now().to_msg()
        joints = JointState(name=list(JOINTS))
        joints.header.stamp = stamp
        joints.position = array.array("d", [0.1 * index for index in range(len(JOINTS))])
        spoiled = self.spoil_joints(joints)
        if spoiled is not None:
            self._joints.publish(spoiled)
        for index, (camera, publisher) in enumerate(self._cameras.items()):
            message = make_image(stamp, 10 * index + self._sent % 200)
            changed = self.spoil_image(camera, message)
            if changed is not None:
                publisher.publish(changed)


def make_image(stamp: Any, shade: int) -> Image:
    """A picture of 32 x 24 pixels."""
    pixels = np.full((24, 32, 3), shade, np.uint8)
    pixels[:, :16, 0] = 255 - shade
    image = Image(height=24, width=32, encoding="rgb8", step=96)
    image.header.stamp = stamp
    image.data = array.array("B", pixels.tobytes())
    return image


def joints_of(chunk: ActionChunk) -> list[str]:
    """Names of a chunk's components."""
    return [component.name for component in chunk.components]


def feedback_of(text: TextOutput) -> dict[str, str]:
    """Text kind -> the text of it that stood in the prompt."""
    return dict(zip(text.feedback_kinds, text.feedback_texts, strict=True))


def nanoseconds(stamp: Any) -> int:
    return int(stamp.sec) * 1_000_000_000 + int(stamp.nanosec)
