# SPDX-License-Identifier: Apache-2.0
"""Records the demo robot into a small bag, without ROS: python -m oxygen_ros.demo.sample_bag FOLDER

`top` raw, `wrist` as JPEG, joint states; the scripted expert moves the arm. Time is the simulation's own, so
the same seed gives the same messages on every machine that renders alike.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image as Pillow
from rosbags.typesys.store import Typestore

from oxygen_ros.demo.sim import geometry
from oxygen_ros.demo.sim.expert import act
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.replay.bags import BagWriter, bag_types, make_qos

START = 1_700_000_000_000_000_000  # ns; any time that is not zero
TOP, WRIST, JOINTS = "/camera/top/image_raw", "/camera/wrist/image_raw/compressed", "/joint_states"


class Messages:
    """The messages of a recording, from arrays."""

    def __init__(self, types: Typestore) -> None:
        self._types = types.types

    def _header(self, stamp: int, frame: str) -> object:
        time = self._types["builtin_interfaces/msg/Time"](sec=stamp // 10**9, nanosec=stamp % 10**9)
        return self._types["std_msgs/msg/Header"](stamp=time, frame_id=frame)

    def image(self, stamp: int, picture: NDArray[np.uint8]) -> object:
        height, width, _ = picture.shape
        return self._types["sensor_msgs/msg/Image"](
            header=self._header(stamp, "top"),
            height=height,
            width=width,
            encoding="rgb8",
            is_bigendian=0,
            step=3 * width,
            data=picture.reshape(-1),
        )

    def jpeg(self, stamp: int, picture: NDArray[np.uint8]) -> object:
        buffer = io.BytesIO()
        Pillow.fromarray(picture).save(buffer, format="jpeg", quality=90)
        return self._types["sensor_msgs/msg/CompressedImage"](
            header=self._header(stamp, "wrist"),
            format="rgb8; jpeg compressed bgr8",
            data=np.frombuffer(buffer.getvalue(), dtype=np.uint8),
        )

    def joints(self, stamp: int, positions: NDArray[np.float64], velocities: NDArray[np.float64]) -> object:
        return self._types["sensor_msgs/msg/JointState"](
            header=self._header(stamp, ""),
            name=list(geometry.JOINTS),
            position=positions,
            velocity=velocities,
            effort=np.zeros(0),
        )


def record(folder: Path, types: Typestore, seconds: float, image_rate: float, seed: int) -> int:
    """Write the bag; returns the number of messages.

    image_rate: of both cameras [Hz]; joint states come at every control period.
    """
    task = Task("red", 2)
    world = World(seed, task)
    messages = Messages(types)
    period = geometry.CONTROL_PERIOD
    every = max(round(1 / (image_rate * period)), 1)
    with BagWriter(folder, types) as bag:
        sensor = make_qos(reliable=False, transient_local=False, depth=5)
        bag.add(TOP, "sensor_msgs/msg/Image", sensor)
        bag.add(WRIST, "sensor_msgs/msg/CompressedImage", sensor)
        bag.add(JOINTS, "sensor_msgs/msg/JointState", sensor)
        for i in range(round(seconds / period)):
            stamp = START + round(i * period * 1e9)
            bag.write_message(
                JOINTS, stamp, messages.joints(stamp, world.joint_positions(), world.joint_velocities())
            )
            if i % every == 0:
                bag.write_message(TOP, stamp, messages.image(stamp, world.render("top")))
                bag.write_message(WRIST, stamp, messages.jpeg(stamp, world.render("wrist")))
            world.step(act(world.state(), task))
        return bag.messages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="bag folder to write; replaced if it is a bag")
    parser.add_argument("--messages", type=Path, default=Path("msg"), help="folder of our .msg files")
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--image-rate", type=float, default=10.0, help="[Hz]")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    if (arguments.folder / "metadata.yaml").is_file():
        shutil.rmtree(arguments.folder)
    count = record(
        arguments.folder,
        bag_types(arguments.messages),
        arguments.seconds,
        arguments.image_rate,
        arguments.seed,
    )
    size = sum(file.stat().st_size for file in arguments.folder.iterdir())
    print(f"wrote {count} messages to {arguments.folder} ({size / 1e6:.1f} MB)")


if __name__ == "__main__":
    main()
