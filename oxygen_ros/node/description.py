# SPDX-License-Identifier: Apache-2.0
"""Waiting for `robot_description` in configure.

Here lives one subscription. What the text says of limits is robot/description.py.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

from rclpy.node import Node
from std_msgs.msg import String

from oxygen_ros.models import LoadInterrupted
from oxygen_ros.node import qos
from oxygen_ros.node.parameters import ParameterProblem
from oxygen_ros.robot.description import Described, DescriptionError, read_description

# The relative name, as robot_state_publisher uses it; remap it like any other topic.
TOPIC = "robot_description"
LOOK_EVERY = 0.1  # s between looks whether the process is ending


class DescriptionListener:
    """Hears the robot's URDF once. Made and destroyed in the executor's thread; `wait` is another's."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._text = ""
        self._is_there = threading.Event()
        self._subscription = node.create_subscription(String, TOPIC, self._keep, qos.DESCRIPTION)
        self.topic = str(self._subscription.topic_name)

    def wait(self, seconds: float, should_stop: Callable[[], bool]) -> Mapping[str, Described]:
        """Joint name -> its limits, as soon as a description is there.

        Raises ParameterProblem when none comes in time or it is no URDF, LoadInterrupted when `should_stop`.
        """
        deadline = time.monotonic() + seconds
        while not self._is_there.wait(LOOK_EVERY):
            if should_stop():
                raise LoadInterrupted("stopped while waiting for the robot description")
            if time.monotonic() > deadline:
                raise ParameterProblem(
                    f"parameter 'limits.use_robot_description' is true, but no robot description came on "
                    f"{self.topic} (std_msgs/String, transient local) in {seconds:g} s: start robot_state_"
                    "publisher, remap robot_description, or set it false and give limits.<joint>.*"
                )
        try:
            return read_description(self._text)
        except DescriptionError as error:
            raise ParameterProblem(f"{self.topic}: {error}") from error

    def destroy(self) -> None:
        self._node.destroy_subscription(self._subscription)

    def _keep(self, message: String) -> None:
        self._text = message.data
        self._is_there.set()
