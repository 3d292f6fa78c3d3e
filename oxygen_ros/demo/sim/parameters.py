# SPDX-License-Identifier: Apache-2.0
"""The parameters of `oxygen_sim`: declared with description and range, checked, as one plain value.

`ros2 param describe oxygen_sim <name>` is their manual. All are read-only: they are read once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from rcl_interfaces.msg import ParameterDescriptor
from rclpy.node import Node

from oxygen_ros.demo.sim.geometry import CONTROL_PERIOD
from oxygen_ros.demo.sim.scene import CAMERAS
from oxygen_ros.demo.sim.task import Task

DRIVERS: Final = ("expert", "commands")
_NOT_OURS: Final = ("use_sim_time", "start_type_description_service", "qos_overrides.")


class BadParameter(ValueError):
    """A parameter is unknown, of the wrong type or out of range; the message names it and the cure."""


@dataclass(frozen=True, slots=True)
class SimCameraSettings:
    """rate [Hz] (0: off); whether to publish raw pictures, JPEG ones."""

    rate: float
    raw: bool
    compressed: bool


@dataclass(frozen=True, slots=True)
class SimSettings:
    """Every parameter of the node, checked. Units as in the descriptions below."""

    seed: int
    task: Task
    task_topic: str
    driver: str
    real_time_factor: float
    publish_clock: bool
    joint_state_rate: float
    episodes: bool
    episode_pause: float
    episode_timeout: float
    image_height: int
    image_width: int
    jpeg_quality: int
    cameras: Mapping[str, SimCameraSettings]


def declare(node: Node) -> SimSettings:
    """Declare and read the parameters. Raises BadParameter.

    The node must have been made with `automatically_declare_parameters_from_overrides`, so that an
    unknown name can be distinguished from one that is not set.
    """
    return _Reader(node).read()


class _Reader:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: list[str] = []

    def read(self) -> SimSettings:
        whole = self._whole
        settings = SimSettings(
            seed=whole("seed", 0, 0, 2**31 - 1, "seed of the first layout of the blocks"),
            task=self._task(),
            task_topic=self._text("task_topic", "sim/task", "topic of the task, told at each episode"),
            driver=self._driver(),
            real_time_factor=self._real(
                "real_time_factor", 1.0, 0.05, 20.0, "simulated seconds in a wall second"
            ),
            publish_clock=self._flag(
                "publish_clock",
                False,
                "publish /clock and stamp with simulated time instead of the ROS clock",
            ),
            joint_state_rate=self._real(
                "joint_state_rate",
                100.0,
                1.0,
                1.0 / CONTROL_PERIOD,
                "joint states in a simulated second [Hz]",
            ),
            episodes=self._flag("episodes", True, "lay out the blocks anew (seed + 1) when the task is done"),
            episode_pause=self._real(
                "episode_pause", 4.0, 0.0, 3600.0, "how long a task stays done before that [s]"
            ),
            episode_timeout=self._real(
                "episode_timeout", 0.0, 0.0, 86400.0, "lay out anew after this long in any case [s]; 0: never"
            ),
            image_height=whole("image_height", 224, 16, 960, "of every picture [px]"),
            image_width=whole("image_width", 224, 16, 1280, "of every picture [px]"),
            jpeg_quality=whole("jpeg_quality", 90, 1, 100, "of the compressed pictures"),
            cameras={name: self._camera(name) for name in CAMERAS},
        )
        self._refuse_unknown()
        return settings

    def _camera(self, name: str) -> SimCameraSettings:
        rate = 5.0 if name == "side" else 15.0
        topic = f"camera/{name}/image_raw"
        return SimCameraSettings(
            self._real(
                f"cameras.{name}.rate",
                rate,
                0.0,
                100.0,
                f"pictures of '{name}' a simulated second [Hz]; 0: off",
            ),
            self._flag(f"cameras.{name}.raw", True, f"publish {topic}"),
            self._flag(f"cameras.{name}.compressed", False, f"publish {topic}/compressed (JPEG)"),
        )

    def _task(self) -> Task:
        text = self._text("task", Task().instruction, "the instruction, e.g. 'put two red blocks in the box'")
        try:
            return Task.parse(text)
        except ValueError as error:
            raise BadParameter(f"parameter task: {error}") from error

    def _driver(self) -> str:
        driver = self._text(
            "driver",
            "expert",
            "who moves the arm: 'expert' (scripted) or 'commands' (topic joint_trajectory)",
        )
        if driver not in DRIVERS:
            raise BadParameter(f"parameter driver: {driver!r} is unknown; use {' or '.join(DRIVERS)}")
        return driver

    def _real(self, name: str, default: float, low: float, high: float, description: str) -> float:
        value = self._value(
            name, default, ParameterDescriptor(description=f"{description} ({low:g} to {high:g})")
        )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise BadParameter(f"parameter {name}: {value!r} is not a number")
        if not low <= value <= high:
            raise BadParameter(f"parameter {name}: {value} is out of range; it must be {low:g} to {high:g}")
        return float(value)

    def _whole(self, name: str, default: int, low: int, high: int, description: str) -> int:
        value = self._value(
            name, default, ParameterDescriptor(description=f"{description} ({low} to {high})")
        )
        if isinstance(value, bool) or not isinstance(value, int):
            raise BadParameter(f"parameter {name}: {value!r} is not a whole number")
        if not low <= value <= high:
            raise BadParameter(f"parameter {name}: {value} is out of range; it must be {low} to {high}")
        return value

    def _flag(self, name: str, default: bool, description: str) -> bool:
        value = self._value(name, default, ParameterDescriptor(description=description))
        if not isinstance(value, bool):
            raise BadParameter(f"parameter {name}: {value!r} is not true or false")
        return value

    def _text(self, name: str, default: str, description: str) -> str:
        value = self._value(name, default, ParameterDescriptor(description=description))
        if not isinstance(value, str):
            raise BadParameter(f"parameter {name}: {value!r} is not a text")
        return value

    def _value(self, name: str, default: object, descriptor: ParameterDescriptor) -> object:
        # Dynamically typed, so that a whole number in YAML is accepted for a real one.
        descriptor.dynamic_typing = True
        descriptor.read_only = True
        self._known.append(name)
        if self._node.has_parameter(name):
            self._node.undeclare_parameter(name)
        return self._node.declare_parameter(name, default, descriptor).value

    def _refuse_unknown(self) -> None:
        given = self._node.get_parameters_by_prefix("")
        unknown = sorted(n for n in given if n not in self._known and not n.startswith(_NOT_OURS))
        if unknown:
            raise BadParameter(
                f"unknown parameter {', '.join(unknown)}; known are {', '.join(sorted(self._known))}"
            )
