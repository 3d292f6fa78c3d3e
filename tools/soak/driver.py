# SPDX-License-Identifier: Apache-2.0
"""A driver of the demo robot: publishes recorded pictures and joints, with or without faults.

One process, without an executor: it only publishes. stdin takes one line `STREAM FAULT` (`well`
ends a fault), or `offset NANOSECONDS`, by which simulated time is ahead of the wall clock. stdout has a line
for each message, before it is sent: `STREAM STAMP WALL LISTENERS CONTENT`: its stamp and the wall clock [ns],
the number of matched subscriptions, and its content: `good`, `bad`, or of joints their names, a `!` before
one with a bad value. Nothing of it depends on the node under test.
"""

from __future__ import annotations

import argparse
import array
import itertools
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import rclpy
from builtin_interfaces.msg import Time
from rclpy.node import Node
from rclpy.qos import QoSProfile, qos_profile_sensor_data
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState

from oxygen_ros.demo.sim.geometry import JOINTS
from soak.faults import CAMERAS, SPOILT_JOINT, STREAMS, TOPICS

CLOCK_ERROR = {"clock_ahead": 20_000_000_000, "clock_behind": -20_000_000_000}  # ns
FAILED_READ = -31.4  # rad; as a driver that has lost its encoder reports


def to_time(stamp_ns: int) -> Time:
    return Time(sec=stamp_ns // 1_000_000_000, nanosec=stamp_ns % 1_000_000_000)


class CameraDriver:
    """One camera. `make` gives the next message, its stamp and what is in it."""

    def __init__(self, name: str, pictures: np.ndarray) -> None:
        """pictures: uint8 [n, height, width, 3]"""
        self.publisher_type = Image
        self.profile: QoSProfile = qos_profile_sensor_data
        self.fault = "well"
        height, width = pictures.shape[1:3]
        self._message = Image(height=height, width=width, encoding="rgb8", step=3 * width)
        self._message.header.frame_id = f"camera_{name}_optical_frame"
        self._pictures = itertools.cycle([array.array("B", picture.tobytes()) for picture in pictures])
        self._message.data = next(self._pictures)
        self._stamp_ns = 0

    def make(self, now_ns: int) -> tuple[Image, int, str]:
        message, fault = self._message, self.fault
        if fault == "freeze" and self._stamp_ns:
            return message, self._stamp_ns, "good"
        self._stamp_ns = 0 if fault == "zero_stamp" else now_ns + CLOCK_ERROR.get(fault, 0)
        message.header.stamp = to_time(self._stamp_ns)
        message.encoding = "bayer_of_nowhere" if fault == "encoding" else "rgb8"
        message.data = next(self._pictures)
        if fault == "size":
            message.data = message.data[: len(message.data) // 3]
        return message, self._stamp_ns, "good" if fault == "well" else "bad"


class JointDriver:
    """The joints."""

    def __init__(self, positions: np.ndarray) -> None:
        """positions: float64 [n, 7]"""
        self.publisher_type = JointState
        self.profile = QoSProfile(depth=10)
        self.fault = "well"
        self._rows = itertools.cycle(positions.tolist())

    def make(self, now_ns: int) -> tuple[JointState, int, str]:
        fault, row = self.fault, next(self._rows)
        names = list(JOINTS)
        spoilt = names.index(SPOILT_JOINT)
        stamp_ns = 0 if fault == "zero_stamp" else now_ns + CLOCK_ERROR.get(fault, 0)
        if fault in ("nan", "failed_read"):
            row = [*row]
            row[spoilt] = math.nan if fault == "nan" else FAILED_READ
        elif fault == "missing_name":
            names, row = [n for n in names if n != SPOILT_JOINT], row[:spoilt] + row[spoilt + 1 :]
        elif fault == "lengths":
            row = row[:3]
        message = JointState(name=[*names], position=row)
        message.header.stamp = to_time(stamp_ns)
        if fault in ("nan", "failed_read"):
            names[spoilt] = f"!{SPOILT_JOINT}"
        is_readable = fault in ("well", "missing_name", "nan", "failed_read")
        return message, stamp_ns, ",".join(names) if is_readable else "bad"


class ClockDriver:
    """Simulated time."""

    def __init__(self) -> None:
        self.publisher_type = Clock
        self.profile = QoSProfile(depth=1)
        self.fault = "well"

    def make(self, now_ns: int) -> tuple[Clock, int, str]:
        return Clock(clock=to_time(now_ns)), now_ns, "good"


Driver = CameraDriver | JointDriver | ClockDriver


def make_driver(stream: str, recording: Path) -> Driver:
    if stream == "clock":
        return ClockDriver()
    with np.load(recording) as arrays:
        data = arrays[stream]
    return CameraDriver(stream, data) if stream in CAMERAS else JointDriver(data)


class Orders:
    """The lines of stdin, read by a thread until it is closed; then the driver ends."""

    def __init__(self, drivers: dict[str, Driver], offset_ns: int) -> None:
        self.offset_ns = offset_ns
        self._drivers = drivers
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        for line in sys.stdin:
            what, _, order = line.strip().partition(" ")
            if what == "offset":
                self.offset_ns = int(order)
            elif what in self._drivers:
                self._drivers[what].fault = order
        signal.raise_signal(signal.SIGTERM)


def take_turns(periods: dict[str, float]) -> Iterator[str]:
    """The stream that is due, for ever; sleeps until it is. Missed turns are dropped."""
    due = dict.fromkeys(periods, time.monotonic())
    while True:
        stream = min(due, key=due.__getitem__)
        pause = due[stream] - time.monotonic()
        if pause > 0:
            time.sleep(pause)
        due[stream] = max(due[stream], time.monotonic() - periods[stream]) + periods[stream]
        yield stream


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", nargs="+", choices=[*STREAMS, "clock"], default=list(STREAMS))
    parser.add_argument("--recording", type=Path, required=True, help=".npz with an array for each stream")
    parser.add_argument("--images", type=float, default=15.0, help="pictures a second of each camera [Hz]")
    parser.add_argument("--joints", type=float, default=100.0, help="joint states a second [Hz]")
    parser.add_argument("--offset", type=int, default=0, help="of simulated time to the wall clock [ns]")
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # nothing here needs an orderly end
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGTERM})
    drivers = {stream: make_driver(stream, options.recording) for stream in options.streams}
    orders = Orders(drivers, options.offset)
    rclpy.init(args=[])
    node = Node(f"driver_{'_'.join(options.streams)}", start_parameter_services=False, enable_rosout=False)
    publishers = {
        stream: node.create_publisher(driver.publisher_type, TOPICS.get(stream, f"/{stream}"), driver.profile)
        for stream, driver in drivers.items()
    }
    periods = {stream: 1 / (options.images if stream in CAMERAS else options.joints) for stream in drivers}
    for stream in take_turns(periods):
        message, stamp_ns, content = drivers[stream].make(time.time_ns() + orders.offset_ns)
        if stream != "clock":
            # The line first: it must be there even if this process is killed or stopped before it sends.
            listeners = publishers[stream].get_subscription_count()
            sys.stdout.write(f"{stream} {stamp_ns} {time.time_ns()} {listeners} {content}\n")
            sys.stdout.flush()
        publishers[stream].publish(message)
    return 0


if __name__ == "__main__":
    sys.exit(main())
