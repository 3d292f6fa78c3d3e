# SPDX-License-Identifier: Apache-2.0
"""What the drivers play: pictures and joints of the demo robot, taken from the bag that ships.

Drivers start fast because nothing is rendered or decoded in them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.demo.sim.geometry import JOINTS
from oxygen_ros.replay.bags import bag_types, read_messages
from oxygen_ros.robot.images import decode_compressed, decode_image

PICTURES = 8  # of each camera, in turn: a picture may repeat, a stamp may not


def write_recording(share: Path, file: Path) -> None:
    """Write an .npz with `top`, `wrist` (uint8 [n, H, W, 3]) and `joint_states` (float64 [n, 7]).

    share: the package's share folder. Raises BagError when its bag cannot be read.
    """
    pictures: dict[str, list[Any]] = {"top": [], "wrist": []}
    joints: list[list[float]] = []

    def visit(topic: str, received_ns: int, message: Any) -> None:
        if topic == "/joint_states":
            position = dict(zip(message.name, message.position, strict=True))
            joints.append([float(position[name]) for name in JOINTS])
            return
        camera = topic.split("/")[2]
        if len(pictures[camera]) == PICTURES:
            return
        if topic.endswith("/compressed"):
            picture = decode_compressed(message.format, message.data, topic)
        else:
            picture = decode_image(
                message.encoding, message.height, message.width, message.step, message.is_bigendian,
                message.data, topic,
            )  # fmt: skip
        pictures[camera].append(picture)

    topics = ["/camera/top/image_raw", "/camera/wrist/image_raw/compressed", "/joint_states"]
    read_messages(share / "resource" / "demo_bag", bag_types(share / "msg"), visit, topics)
    np.savez(file, joint_states=np.array(joints), **{name: np.stack(kept) for name, kept in pictures.items()})
