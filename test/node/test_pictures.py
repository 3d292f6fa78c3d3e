# SPDX-License-Identifier: Apache-2.0
"""What drivers send, and what the model then sees: every encoding, any order of joints, any size, a clock
that is set. The model here returns its inputs: the chunk's first action is pixels, the others are the joints.
"""

from __future__ import annotations

import array
import io
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builtin_interfaces.msg import Time
from node_lab import JOINTS, SENSOR, Robot, nanoseconds
from numpy.typing import NDArray
from PIL import Image as Picture
from sensor_msgs.msg import CompressedImage, Image, JointState

LEFT, RIGHT = (200, 100, 50), (10, 20, 30)
WRIST_RED = 140
HEIGHT, WIDTH = 24, 32
STEP_S = 30  # by which the clock is set


def _paint(height: int = HEIGHT, width: int = WIDTH) -> NDArray[np.uint8]:
    pixels = np.empty((height, width, 3), np.uint8)
    pixels[:, : width // 2], pixels[:, width // 2 :] = LEFT, RIGHT
    return pixels


class Eyes:
    """What the cameras send. `top` makes the payload of an image; the wrist's is a PNG."""

    def __init__(self, robot: Robot) -> None:
        self.robot = robot
        self.top: Callable[[Image], None] = _rgb8
        self.ahead_s = 0
        self._wrist = robot.node.create_publisher(CompressedImage, "/camera/wrist/compressed", SENSOR)
        file = io.BytesIO()
        Picture.fromarray(np.full((8, 8, 3), (WRIST_RED, 1, 2), np.uint8)).save(file, "PNG")
        self._png = array.array("B", file.getvalue())

    def send(self, camera: str, image: Image) -> Image | None:
        image.header.stamp = self._set(image.header.stamp)
        if camera == "wrist":
            message = CompressedImage(header=image.header, format="rgb8; png compressed bgr8")
            message.data = self._png
            self._wrist.publish(message)
            return None
        self.top(image)
        return image

    def joints(self, joints: JointState) -> JointState:
        joints.header.stamp = self._set(joints.header.stamp)
        return joints

    def _set(self, stamp: Time) -> Time:
        """As the clock that was set gives it. A new one: the robot's messages share theirs."""
        return Time(sec=stamp.sec + self.ahead_s, nanosec=stamp.nanosec)

    def chunk_of(self, top: Callable[[Image], None]) -> NDArray[np.float64]:
        """The chunk [H, D] about the first image of this kind."""
        before = self.robot.node.get_clock().now().nanoseconds
        self.top = top
        chunk = self.robot.wait_for(
            "/oxygen/action_chunk",
            # One image may have been under way when the kind changed.
            lambda m: nanoseconds(m.header.stamp) > before + 60_000_000,
            after=self.robot.now("/oxygen/action_chunk"),
        )
        return np.array(chunk.values, np.float64).reshape(chunk.horizon, len(JOINTS))


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("clock") / "ahead"
    file.write_text("0")
    return file


@pytest.fixture(scope="module")
def node(start_node: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory, clock: Path) -> Any:
    """On a machine whose OpenCV does not fit its numpy, with a library that takes over logging."""
    broken = tmp_path_factory.mktemp("broken")
    (broken / "cv_bridge.py").write_text('raise ImportError("numpy.core.multiarray failed to import")\n')
    return start_node(
        {
            "cameras.wrist.topic": "/camera/wrist/compressed",
            "cameras.wrist.transport": "compressed",
            "max_skew": 0.01,
            "text.memory.enabled": False,
        },
        toy={"look": True, "meddle": True, "first_seconds": 1.5, "clock_file": str(clock)},
        env={"PYTHONPATH": f"{broken}:{os.environ.get('PYTHONPATH', '')}", "HF_HUB_OFFLINE": None},
    )


@pytest.fixture(scope="module", autouse=True)
def eyes(robot: Robot, node: Any) -> Iterator[Eyes]:
    one = Eyes(robot)
    with robot.spoiled(image=one.send, joints=one.joints):
        yield one


def _fill(image: Image, encoding: str, rows: NDArray[np.uint8], padding: int = 0) -> None:
    """rows: bytes [rows, bytes of a row]; padding: bytes after each that are no picture"""
    padded = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    image.height, image.width, image.encoding, image.step = HEIGHT, WIDTH, encoding, padded.shape[1]
    image.data = array.array("B", padded.tobytes())


def _rgb8(image: Image) -> None:
    _fill(image, "rgb8", _paint().reshape(HEIGHT, -1))


def _padded(image: Image) -> None:
    _fill(image, "rgb8", _paint().reshape(HEIGHT, -1), padding=32)


def _bgr8(image: Image) -> None:
    _fill(image, "bgr8", _paint()[..., ::-1].reshape(HEIGHT, -1), padding=3)


def _bgra8(image: Image) -> None:
    alpha = np.full((HEIGHT, WIDTH, 1), 7, np.uint8)
    _fill(image, "bgra8", np.concatenate([_paint()[..., ::-1], alpha], 2).reshape(HEIGHT, -1))


def _rgb16(image: Image) -> None:
    low = np.full((HEIGHT, WIDTH, 3), 99, np.uint8)
    _fill(image, "rgb16", np.stack([_paint(), low], 3).reshape(HEIGHT, -1))
    image.is_bigendian = 1


def _mono8(image: Image) -> None:
    _fill(image, "mono8", _paint()[..., 1])


def _yuv() -> tuple[NDArray[np.uint8], ...]:
    """Luma [H, W] and chroma [H, W] of the picture, as ITU-R BT.601 defines them for a studio range."""
    r, g, b = np.moveaxis(_paint() / 255, 2, 0)
    y = 16 + 65.481 * r + 128.553 * g + 24.966 * b
    u = 128 - 37.797 * r - 74.203 * g + 112.0 * b
    v = 128 + 112.0 * r - 93.786 * g - 18.214 * b
    return tuple(np.round(plane).astype(np.uint8) for plane in (y, u, v))


def _yuyv(image: Image) -> None:
    y, u, v = _yuv()
    cells = np.stack([y[:, ::2], u[:, ::2], y[:, 1::2], v[:, ::2]], 2)
    _fill(image, "yuv422_yuy2", cells.reshape(HEIGHT, -1), padding=8)


def _nv12(image: Image) -> None:
    y, u, v = _yuv()
    chroma = np.stack([u[::2, ::2], v[::2, ::2]], 2).reshape(HEIGHT // 2, WIDTH)
    _fill(image, "nv12", np.concatenate([y, chroma]))


def test_a_slow_first_run_costs_no_chunk(robot: Robot) -> None:
    """lerobot#4223, #4454: the warm-up's 1.5 s would be more than the whole chunk of 1 s."""
    chunk = robot.wait_for("/oxygen/action_chunk", timeout=60)
    assert chunk.tick == 1
    assert robot.wait_for("/oxygen/tick", lambda m: m.tick == 1).prefills == 1


@pytest.mark.parametrize(
    ("encode", "gray", "within"),
    [(_padded, False, 0), (_bgr8, False, 0), (_bgra8, False, 0), (_rgb16, False, 0), (_mono8, True, 0),
     (_yuyv, False, 3), (_nv12, False, 3)],
)  # fmt: skip
def test_pixels_are_what_the_driver_meant(
    eyes: Eyes, encode: Callable[[Image], None], gray: bool, within: int
) -> None:
    """vision_opencv PR#394, #27, PR#544: padding, byte order, channel order, rows and a half of chroma."""
    seen = eyes.chunk_of(encode)[0] * 255
    expected = [LEFT[1]] * 3 + [RIGHT[1]] * 3 if gray else [*LEFT, *RIGHT]
    assert seen == pytest.approx([*expected, WRIST_RED], abs=within + 1e-3)


def test_a_broken_opencv_is_an_error_of_those_who_need_it(robot: Robot, eyes: Eyes) -> None:
    """vision_opencv#535, isaac_ros_common#138: the other encodings never notice."""
    eyes.top = lambda image: _fill(image, "bayer_rggb8", _paint()[..., 0])
    status = robot.wait_for_status("inputs", "bayer_rggb8 needs cv_bridge", level="error")
    assert "/camera/top/image_raw" in status.message
    assert "numpy.core.multiarray failed to import" in status.message
    assert "or set the driver to rgb8" in status.message
    seen = eyes.chunk_of(_rgb8)[0] * 255
    assert seen == pytest.approx([*LEFT, *RIGHT, WRIST_RED], abs=1e-3)


def test_a_large_raw_image_takes_no_time(robot: Robot, eyes: Eyes) -> None:
    """rclpy#763, rosidl_python#156: element by element, 6 MB take seconds."""
    pixels = array.array("B", _paint(1080, 1920).tobytes())

    def full_hd(image: Image) -> None:
        image.height, image.width, image.encoding, image.step = 1080, 1920, "rgb8", 1920 * 3
        image.data = pixels

    seen = eyes.chunk_of(full_hd)[0] * 255
    assert seen == pytest.approx([*LEFT, *RIGHT, WRIST_RED], abs=1e-3)
    before = robot.now("/oxygen/tick")
    robot.wait_for("/oxygen/tick", after=before + 5)
    # The best of some: a busy machine makes any of them late.
    ticks = robot.heard["/oxygen/tick"][before:]
    assert min(tick.process for tick in ticks) < 0.25
    assert min(tick.publish for tick in ticks) < 0.1
    eyes.chunk_of(_rgb8)


def test_the_same_picture_again_is_acted_on(robot: Robot, eyes: Eyes) -> None:
    """lerobot#1557, #1500, #2356: a robot at rest sees the same for long. openpi#393: and no arm waits for a
    chunk: each comes long before the one before has run out."""
    eyes.chunk_of(_rgb8)
    before = robot.now("/oxygen/action_chunk")
    robot.wait_for("/oxygen/action_chunk", after=before + 5)
    chunks = robot.heard["/oxygen/action_chunk"][before : before + 6]
    assert [b.tick - a.tick for a, b in itertools.pairwise(chunks)] == [1] * 5
    assert all(b.values == a.values for a, b in itertools.pairwise(chunks))
    stamps = [nanoseconds(chunk.header.stamp) for chunk in chunks]
    assert all(a < b for a, b in itertools.pairwise(stamps))
    for old, new in itertools.pairwise(chunks):
        ready = nanoseconds(new.header.stamp) + new.first_valid * 50_000_000
        assert ready < nanoseconds(old.valid_until)


def test_joints_go_by_name_in_every_message(robot: Robot, eyes: Eyes) -> None:
    """ros2_controllers#159: any order, other joints between ours, another order in the next message."""
    turns = itertools.count()

    def shuffle(joints: JointState) -> JointState:
        names = [*joints.name, "wheel"]
        positions = [*joints.position, 99.0]
        at = next(turns) % len(names)
        joints.name = names[at:] + names[:at]
        joints.position = array.array("d", positions[at:] + positions[:at])
        return eyes.joints(joints)

    with robot.spoiled(joints=shuffle):
        for _ in range(4):
            seen = eyes.chunk_of(_rgb8)[1]
            assert seen == pytest.approx([0.1 * i for i in range(7)], abs=1e-6)


def test_joints_may_arrive_in_pieces(robot: Robot, eyes: Eyes) -> None:
    """Arm and gripper from two drivers in turn: never a zero for what is not in a message."""
    turns = itertools.count()

    def split(joints: JointState) -> JointState:
        part = slice(0, 4) if next(turns) % 2 else slice(4, 7)
        joints.name, joints.position = joints.name[part], joints.position[part]
        return eyes.joints(joints)

    with robot.spoiled(joints=split):
        for _ in range(3):
            seen = eyes.chunk_of(_rgb8)[1]
            assert seen == pytest.approx([0.1 * i for i in range(7)], abs=1e-6)
        robot.wait_for_status("inputs", level="ok")


def test_fast_joints_are_all_taken_and_read_at_the_image(robot: Robot, eyes: Eyes) -> None:
    """500 Hz, a joint that turns at 1 rad/s: the chunk begins where it was when the image was taken."""
    began, is_over = robot.node.get_clock().now().nanoseconds, threading.Event()
    sent: list[int] = []

    def turn() -> None:
        message = JointState(name=list(JOINTS), position=array.array("d", [0.0] * len(JOINTS)))
        while not is_over.wait(0.002):
            now = robot.node.get_clock().now()
            message.header.stamp = now.to_msg()
            message.position[0] = (now.nanoseconds - began) / 1e9 - 1.0
            robot._joints.publish(message)
            sent.append(now.nanoseconds)

    driver = threading.Thread(target=turn)
    with robot.spoiled(joints=lambda joints: None):
        driver.start()
        try:
            robot.wait_for_tick(8)
            before = robot.now("/oxygen/action_chunk")
            chunk = robot.wait_for("/oxygen/action_chunk", after=before + 2)
            status = robot.wait_for_status("inputs", level="ok")
        finally:
            is_over.set()
            driver.join()
    expected = (nanoseconds(chunk.header.stamp) - began) / 1e9 - 1.0
    assert chunk.values[len(JOINTS)] == pytest.approx(expected, abs=0.03)
    rate = next(pair.value for pair in status.values if pair.key == "/joint_states")
    # Taken one at a time they would come at 50 Hz at most; a busy machine sends fewer than 500.
    assert float(rate.split()[0]) > 0.5 * len(sent) / ((sent[-1] - sent[0]) / 1e9)


def test_a_library_that_takes_over_logging_is_not_heard(robot: Robot, node: Any) -> None:
    """axol PR#191; and lerobot#2566: it must not ask a hub, or configure would have failed."""
    robot.wait_for_tick()
    assert "configured: toy on cpu" in node.output
    assert "a line a tick" not in node.output


def test_waiting_costs_no_core(robot: Robot, node: Any) -> None:
    """rclpy#1452, #1223. Active, without inputs; two diagnostics are a second apart."""

    def busy() -> float:
        fields = Path(f"/proc/{node.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    robot.is_on = False
    try:
        robot.wait_for_status("inputs", "stale", level="error")
        used, began = busy(), time.monotonic()
        for _ in range(2):
            robot.wait_for_status("inputs", "stale", level="error")
        assert busy() - used < 0.3 * (time.monotonic() - began)
    finally:
        robot.is_on = True
    robot.wait_for_status("inputs", level="ok")


@pytest.mark.parametrize("ahead", [-STEP_S, 0])
def test_setting_the_clock_costs_no_period(robot: Robot, eyes: Eyes, clock: Path, ahead: int) -> None:
    """ros2/ros2#1081: back by 30 s, then forward again, on the whole machine. Periods are steady."""
    skipped = robot.wait_for_tick().ticks_skipped
    before = robot.now("/oxygen/action_chunk")
    clock.write_text(str(ahead))
    eyes.ahead_s = ahead
    wanted = robot.node.get_clock().now().nanoseconds + ahead * 10**9
    fits = lambda m: abs(nanoseconds(m.header.stamp) - wanted) < 10 * 10**9  # noqa: E731
    # Sooner than the clock is back where it was, and none of the 300 that it left out was missed.
    robot.wait_for("/oxygen/action_chunk", fits, after=before, timeout=STEP_S / 2)
    tick = robot.wait_for("/oxygen/tick", after=robot.now("/oxygen/tick") + 9, timeout=STEP_S / 2)
    assert tick.ticks_skipped - skipped < 100
