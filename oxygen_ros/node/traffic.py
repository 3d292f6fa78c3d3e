# SPDX-License-Identifier: Apache-2.0
"""A robot that only sends and listens: python -m oxygen_ros.node.traffic --help

Cameras and joints at given rates, every message made before the first is sent; what the node's ticks say of
themselves, and when their chunks arrive here, is printed as one JSON object at the end. For measuring and
for trying a network; the figures are made of it by oxygen_ros.bench.latency. No file and no parameter.
"""

from __future__ import annotations

import argparse
import array
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from sensor_msgs.msg import Image, JointState

from oxygen_ros.msg import ActionChunk, TickStats
from oxygen_ros.node import qos
from oxygen_ros.node.commands import to_time

FIGURES = (
    "tick", "wait", "process", "prefill", "denoise", "publish", "text", "latency", "age", "skew",
    "ticks_skipped",
)  # fmt: skip
PICTURES = 8  # different ones of each camera
# DDS discovery and the node's first tick come before anything counts [s].
PATIENCE = 60.0


class Traffic:
    """Publishers of one robot, and what came back."""

    def __init__(self, node: Node, options: argparse.Namespace) -> None:
        self._options = options
        self._clock = node.get_clock()
        self._images = [_make_images(options.size, index) for index in range(len(options.cameras))]
        self._cameras = [
            node.create_publisher(Image, f"/camera/{name}/image_raw", qos.CAMERA) for name in options.cameras
        ]
        self._joints = node.create_publisher(JointState, "joint_states", 10)
        self._state = JointState(name=options.joints, position=array.array("d", [0.1] * len(options.joints)))
        # stamp [ns] -> steady time at which the last image of that set was handed to the middleware [s]
        self._sent: dict[int, float] = {}
        self.ticks: list[dict[str, float]] = []
        self.trips: list[float] = []
        node.create_subscription(ActionChunk, "/oxygen/action_chunk", self._hear_chunk, qos.NEWEST)
        node.create_subscription(TickStats, "/oxygen/tick", self._hear_tick, qos.TICK)

    def send_images(self, turn: int) -> None:
        """One set, all with one stamp."""
        stamp_ns = self._clock.now().nanoseconds
        for publisher, images in zip(self._cameras, self._images, strict=True):
            image = images[turn % len(images)]
            image.header.stamp = to_time(stamp_ns)
            publisher.publish(image)
        self._sent[stamp_ns] = time.monotonic()

    def send_joints(self, turn: int) -> None:
        self._state.header.stamp = self._clock.now().to_msg()
        self._joints.publish(self._state)

    def _hear_chunk(self, message: ActionChunk) -> None:
        now = time.monotonic()
        stamp_ns = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
        if stamp_ns in self._sent:
            self.trips.append(now - self._sent[stamp_ns])

    def _hear_tick(self, message: TickStats) -> None:
        self.ticks.append({name: getattr(message, name) for name in FIGURES})


def _make_images(size: int, seed: int) -> list[Image]:
    noise = np.random.default_rng(seed)
    images = []
    for _ in range(PICTURES):
        image = Image(height=size, width=size, encoding="rgb8", step=3 * size)
        image.data = array.array("B", noise.bytes(3 * size * size))
        images.append(image)
    return images


def _repeat(send: Callable[[int], None], rate: float, is_over: threading.Event) -> None:
    """Call `send` at a rate, on a grid: a late one does not shift those after it."""
    began, turn = time.monotonic(), 0
    while not is_over.wait(max(began + turn / rate - time.monotonic(), 0.0)):
        send(turn)
        turn += 1


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Send for `options.seconds` from the node's first tick on; what came back."""
    rclpy.init()
    node = rclpy.create_node("traffic")
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    traffic, is_over = Traffic(node, options), threading.Event()
    senders = [
        threading.Thread(target=_repeat, args=(send, rate, is_over), daemon=True)
        for send, rate in ((traffic.send_images, options.rate), (traffic.send_joints, options.joint_rate))
    ]
    for sender in senders:
        sender.start()
    until = time.monotonic() + PATIENCE
    while not traffic.ticks and time.monotonic() < until:
        executor.spin_once(timeout_sec=0.1)
    until = time.monotonic() + options.seconds if traffic.ticks else 0.0
    while time.monotonic() < until:
        executor.spin_once(timeout_sec=0.1)
    is_over.set()
    for sender in senders:
        sender.join()
    executor.shutdown()
    node.destroy_node()
    rclpy.shutdown()
    return {"ticks": traffic.ticks, "trips": traffic.trips}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cameras", nargs="+", required=True, help="topics are /camera/<name>/image_raw")
    parser.add_argument("--joints", nargs="+", required=True)
    parser.add_argument("--size", type=int, default=224, help="of square rgb8 images [px]")
    parser.add_argument("--rate", type=float, default=10.0, help="of the image sets [Hz]")
    parser.add_argument("--joint-rate", type=float, default=500.0, help="[Hz]")
    parser.add_argument("--seconds", type=float, default=20.0, help="from the node's first tick on")
    print(json.dumps(run(parser.parse_args())))


if __name__ == "__main__":
    main()
