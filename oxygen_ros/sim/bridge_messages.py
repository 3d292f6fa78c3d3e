# SPDX-License-Identifier: Apache-2.0
"""ROS messages from arrays and back, for the simulator's bridge.

Here lives only the filling of messages. Their data fields are `array.array`s made once: assigning
bytes to such a field is checked element by element and takes hundreds of times longer.
"""

from __future__ import annotations

import array
import io
from collections.abc import Sequence

import numpy as np
from builtin_interfaces.msg import Time
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image, JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.sim.trajectory import TrajectoryRefused

NANOSECONDS = 1_000_000_000


def to_time(stamp_ns: int) -> Time:
    """A ROS time from nanoseconds."""
    return Time(sec=stamp_ns // NANOSECONDS, nanosec=stamp_ns % NANOSECONDS)


def to_nanoseconds(time: Time) -> int:
    """Nanoseconds of a ROS time or duration."""
    return int(time.sec) * NANOSECONDS + int(time.nanosec)


class ImageMessage:
    """One sensor_msgs/Image (rgb8), refilled for every picture of one camera."""

    def __init__(self, height: int, width: int, frame_id: str) -> None:
        self._message = Image(height=height, width=width, encoding="rgb8", is_bigendian=0, step=3 * width)
        self._message.header.frame_id = frame_id
        self._message.data = array.array("B", bytes(3 * height * width))
        # The message may have copied the array it was given: its own is the one to write to.
        self._pixels: NDArray[np.uint8] = np.frombuffer(self._message.data, np.uint8).reshape(
            height, width, 3
        )

    def fill(self, picture: NDArray[np.uint8], stamp_ns: int) -> Image:
        """The message with `picture` uint8 [H, W, 3]; valid until the next call."""
        self._pixels[:] = picture
        self._message.header.stamp = to_time(stamp_ns)
        return self._message


def compress(picture: NDArray[np.uint8], stamp_ns: int, frame_id: str, quality: int) -> CompressedImage:
    """A sensor_msgs/CompressedImage (JPEG) of `picture` uint8 [H, W, 3], labelled as image_transport does.

    Raises RuntimeError that names the package when Pillow is not installed.
    """
    try:
        from PIL import Image as Pillow
    except ImportError as error:
        raise RuntimeError(
            f"compressed pictures need Pillow (pip install pillow, or python3-pil): {error}"
        ) from error
    stream = io.BytesIO()
    Pillow.fromarray(picture).save(stream, "JPEG", quality=quality)
    message = CompressedImage(format="rgb8; jpeg compressed bgr8")
    message.header.frame_id = frame_id
    message.header.stamp = to_time(stamp_ns)
    message.data = array.array("B", stream.getvalue())
    return message


def joint_state(
    names: Sequence[str],
    positions: NDArray[np.float64],
    velocities: NDArray[np.float64],
    efforts: NDArray[np.float64],
    stamp_ns: int,
) -> JointState:
    """A sensor_msgs/JointState; all arrays [J] in the order of `names`."""
    message = JointState(name=list(names))
    message.header.stamp = to_time(stamp_ns)
    message.position = array.array("d", positions)
    message.velocity = array.array("d", velocities)
    message.effort = array.array("d", efforts)
    return message


def trajectory_arrays(message: JointTrajectory) -> tuple[int, NDArray[np.int64], NDArray[np.float64]]:
    """Stamp [ns], times [N] (ns since it) and positions [N, J] of a message.

    Raises TrajectoryRefused when a point does not have one position for each name.
    """
    joints = len(message.joint_names)
    for number, point in enumerate(message.points):
        if len(point.positions) != joints:
            raise TrajectoryRefused(
                f"point {number} has {len(point.positions)} positions for {joints} joint names"
            )
    times = np.array([to_nanoseconds(point.time_from_start) for point in message.points], np.int64)
    positions = np.array([point.positions for point in message.points], np.float64).reshape(
        len(times), joints
    )
    return to_nanoseconds(message.header.stamp), times, positions
