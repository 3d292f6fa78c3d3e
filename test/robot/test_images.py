# SPDX-License-Identifier: Apache-2.0
"""Raw images: every encoding against a slow reference, and every way the fields can be wrong."""

import array
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.robot import images
from oxygen_ros.robot.images import ImageError, decode_image

# encoding -> (bytes of a pixel, pixel's bytes and byte order -> RGB)
SLOW = {
    "rgb8": (3, lambda p, big: (p[0], p[1], p[2])),
    "bgr8": (3, lambda p, big: (p[2], p[1], p[0])),
    "rgba8": (4, lambda p, big: (p[0], p[1], p[2])),
    "bgra8": (4, lambda p, big: (p[2], p[1], p[0])),
    "mono8": (1, lambda p, big: (p[0],) * 3),
    "mono16": (2, lambda p, big: (int.from_bytes(p, "big" if big else "little") // 256,) * 3),
    "rgb16": (
        6,
        lambda p, big: tuple(
            int.from_bytes(p[i : i + 2], "big" if big else "little") // 256 for i in (0, 2, 4)
        ),
    ),
    "bgra16": (
        8,
        lambda p, big: tuple(
            int.from_bytes(p[i : i + 2], "big" if big else "little") // 256 for i in (4, 2, 0)
        ),
    ),
}
BUFFERS = {
    "array": lambda data: array.array("B", data),
    "bytes": bytes,
    "bytearray": bytearray,
    "memoryview": memoryview,
    "ndarray": lambda data: np.frombuffer(data, np.uint8),
}


def yuv_to_rgb(y: int, u: int, v: int) -> tuple[float, ...]:
    """BT.601, studio range, in floats; from the standard's luma weights 0.299, 0.587, 0.114."""
    luma, blue, red = (max(y - 16, 0) / 219, (u - 128) / 224, (v - 128) / 224)
    r = luma + 2 * (1 - 0.299) * red
    b = luma + 2 * (1 - 0.114) * blue
    g = (luma - 0.299 * r - 0.114 * b) / 0.587
    return tuple(min(max(255 * c, 0.0), 255.0) for c in (r, g, b))


@given(data=st.data())
@settings(max_examples=120, deadline=None)
def test_packed_encodings_equal_the_slow_reference(data: st.DataObject) -> None:
    """vision_opencv PR#394, #27: rows are `step` bytes apart, whatever the padding; also trailing bytes."""
    encoding = data.draw(st.sampled_from(sorted(SLOW)))
    size, pixel = SLOW[encoding]
    height, width = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 5))
    step = width * size + data.draw(st.integers(0, 9))
    big = data.draw(st.booleans())
    seed = data.draw(st.integers(0, 2**32 - 1))
    raw = np.random.default_rng(seed).bytes(height * step + data.draw(st.integers(0, 3)))
    buffer = BUFFERS[data.draw(st.sampled_from(sorted(BUFFERS)))](raw)

    decoded = decode_image(encoding, height, width, step, int(big), buffer, "/cam")

    expected = [
        [pixel(raw[y * step + x * size : y * step + (x + 1) * size], big) for x in range(width)]
        for y in range(height)
    ]
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous
    assert decoded.flags.owndata or decoded.base.flags.owndata
    np.testing.assert_array_equal(decoded, np.array(expected, np.uint8))


@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_yuv_encodings_are_the_standard_colors_within_a_gray_level(data: st.DataObject) -> None:
    encoding = data.draw(st.sampled_from(["yuyv", "yuv422_yuy2", "uyvy", "yuv422", "nv12", "nv21"]))
    height, width = 2 * data.draw(st.integers(1, 3)), 2 * data.draw(st.integers(1, 3))
    planar = encoding.startswith("nv")
    step = (width if planar else 2 * width) + data.draw(st.integers(0, 5))
    rows = height * 3 // 2 if planar else height
    raw = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1))).bytes(rows * step)

    decoded = decode_image(encoding, height, width, step, 0, array.array("B", raw), "/cam")

    for y in range(height):
        for x in range(width):
            if planar:
                luma, cell = raw[y * step + x], (height + y // 2) * step + x // 2 * 2
                u, v = (raw[cell], raw[cell + 1]) if encoding == "nv12" else (raw[cell + 1], raw[cell])
            else:
                cell, odd = raw[y * step + x // 2 * 4 :][:4], x % 2
                first = encoding.startswith("yuyv") or encoding == "yuv422_yuy2"
                y0, u0 = (0, 1) if first else (1, 0)
                luma, u, v = cell[y0 + 2 * odd], cell[u0], cell[u0 + 2]
            assert np.abs(decoded[y, x] - np.array(yuv_to_rgb(luma, u, v))).max() <= 1.0


def test_nv12_is_read_whether_or_not_height_counts_the_chroma_rows() -> None:
    """vision_opencv PR#544: NV12 has one and a half times the rows; drivers disagree on `height`."""
    raw = np.random.default_rng(0).integers(0, 256, 12 * 8, np.uint8)
    picture = decode_image("nv12", 8, 8, 8, 0, raw, "/cam")
    assert picture.shape == (8, 8, 3)
    np.testing.assert_array_equal(decode_image("nv12", 12, 8, 8, 0, raw, "/cam"), picture)
    with pytest.raises(ImageError, match=r"/cam.*80 bytes.*8 x 12 = 96"):
        decode_image("nv12", 8, 8, 8, 0, raw[:80], "/cam")


def test_a_tall_yuv_picture_is_its_rows() -> None:
    """The conversion works in bands of rows; no band's edge shows."""
    raw = np.random.default_rng(2).integers(0, 256, (37, 12), np.uint8)
    rows = [decode_image("yuyv", 1, 6, 12, 0, raw[k].tobytes(), "/cam") for k in range(37)]
    np.testing.assert_array_equal(decode_image("yuyv", 37, 6, 12, 0, raw, "/cam"), np.concatenate(rows))


def test_decoded_pixels_do_not_follow_the_message() -> None:
    raw = bytearray(12)
    decoded = decode_image("rgb8", 2, 2, 6, 0, raw, "/cam")
    raw[0] = 255
    assert decoded[0, 0, 0] == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("rgb8", 2, 4, 11, bytes(22)), r"/cam: step is 11 bytes but a row of rgb8 needs 12"),
        (("rgb8", 2, 4, 0, bytes(24)), r"/cam: step is 0 bytes but a row of rgb8 needs 12"),
        (("mono16", 2, 4, 4, bytes(8)), r"/cam: step is 4 bytes but a row of mono16 needs 8"),
        (("rgb8", 2, 4, 16, bytes(31)), r"/cam: 31 bytes of data .* 16 x 2 = 32"),
        (("bgr8", 2, 4, 12, b""), r"/cam: 0 bytes of data .* 12 x 2 = 24"),
        (("rgb8", 0, 4, 12, b""), r"/cam: image of 4x0 pixels"),
        (("rgb8", 4, 0, 12, b""), r"/cam: image of 0x4 pixels"),
        (("yuyv", 2, 3, 6, bytes(12)), r"/cam: width is 3 but must be even: yuyv"),
        (("nv12", 3, 4, 4, bytes(16)), r"/cam: height is 3 but must be even: nv12"),
        (("32FC1", 2, 4, 16, bytes(32)), r"/cam: encoding '32FC1' is not a picture .* rgb8"),
        (("8UC3", 2, 4, 12, bytes(24)), r"/cam: encoding '8UC3'"),
        (("", 2, 4, 12, bytes(24)), r"/cam: encoding ''"),
        (("rgb8", 2, 4, 12, [0] * 24), r"/cam: image data of type list is not a contiguous buffer"),
        (("rgb8", 2, 4, 12, np.zeros((2, 24), np.uint8)[:, ::2]), r"/cam: image data of type ndarray"),
    ],
)
def test_wrong_fields_are_errors_that_name_topic_and_numbers(fields: tuple, words: str) -> None:
    encoding, height, width, step, data = fields
    with pytest.raises(ImageError, match=words):
        decode_image(encoding, height, width, step, 0, data, "/cam")


@pytest.mark.parametrize("bits", [8, 16])
@pytest.mark.parametrize(
    ("pattern", "cell"),
    [("rggb", "RGGB"), ("bggr", "BGGR"), ("gbrg", "GBRG"), ("grbg", "GRBG")],
)
def test_bayer_goes_through_cv_bridge(pattern: str, cell: str, bits: int) -> None:
    """A mosaic of one color is that color everywhere; rows are padded, 16-bit ones big-endian."""
    pytest.importorskip("cv_bridge", reason="cv_bridge is not installed: Bayer images were not tried")
    colors = {"R": 200, "G": 100, "B": 50}
    mosaic = np.tile(np.array([colors[c] for c in cell], np.uint8).reshape(2, 2), (4, 5))
    if bits == 16:
        mosaic = (mosaic.astype(">u2") << 8).astype(">u2")
    rows = np.pad(np.frombuffer(mosaic.tobytes(), np.uint8).reshape(8, -1), ((0, 0), (0, 7)))
    decoded = decode_image(
        f"bayer_{pattern}{bits}", 8, 10, rows.shape[1], 1, array.array("B", rows.tobytes()), "/cam"
    )
    np.testing.assert_array_equal(decoded, np.broadcast_to(np.array([200, 100, 50], np.uint8), (8, 10, 3)))


def test_broken_cv_bridge_is_an_error_for_bayer_and_for_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """vision_opencv#535: cv_bridge fails beside numpy 2; common encodings must not care.
    isaac_ros_common#138, jetson-containers#204: nor must they where OpenCV is broken."""
    images._import_cv_bridge.cache_clear()
    for name in ("cv_bridge", "cv2"):
        monkeypatch.setitem(sys.modules, name, None)
    for encoding in ("rgb8", "bgr8", "rgba8", "bgra8", "mono8", "mono16", "yuyv", "nv12"):
        assert decode_image(encoding, 4, 4, 16, 0, bytes(96), "/cam").shape == (4, 4, 3)
    with pytest.raises(ImageError, match=r"/cam: encoding bayer_rggb8 needs cv_bridge.*rgb8"):
        decode_image("bayer_rggb8", 4, 4, 4, 0, bytes(16), "/cam")
    images._import_cv_bridge.cache_clear()


def test_importing_the_decoder_does_not_import_opencv() -> None:
    code = (
        "import sys, oxygen_ros.robot.images, oxygen_ros.robot.synchronizer, oxygen_ros.robot.joining; "
        "print([m for m in ('cv2', 'cv_bridge', 'rclpy', 'torch') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert ran.stdout.strip() == "[]"
