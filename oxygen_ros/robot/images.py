# SPDX-License-Identifier: Apache-2.0
"""Bytes of an image message to RGB pixels.

Callers pass the fields of `sensor_msgs/Image` or `sensor_msgs/CompressedImage`, no ROS types. The common
encodings need numpy only. cv_bridge is imported with the first Bayer image, so that a broken OpenCV affects
nothing else. Models resize and normalize the pixels (models/images.py).
"""

from __future__ import annotations

import functools
import importlib
import io
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image as PillowImage

# encoding -> (channels, bytes of one channel, where red, green and blue are)
_PACKED: dict[str, tuple[int, int, tuple[int, int, int]]] = {
    "rgb8": (3, 1, (0, 1, 2)),
    "bgr8": (3, 1, (2, 1, 0)),
    "rgba8": (4, 1, (0, 1, 2)),
    "bgra8": (4, 1, (2, 1, 0)),
    "mono8": (1, 1, (0, 0, 0)),
    "rgb16": (3, 2, (0, 1, 2)),
    "bgr16": (3, 2, (2, 1, 0)),
    "rgba16": (4, 2, (0, 1, 2)),
    "bgra16": (4, 2, (2, 1, 0)),
    "mono16": (1, 2, (0, 0, 0)),
}
# Two names each: the second is the one older drivers still send.
_YUV_422 = {"yuyv": True, "yuv422_yuy2": True, "uyvy": False, "yuv422": False}
_YUV_420 = {"nv12": True, "nv21": False}
_BAYER = {f"bayer_{order}{bits}": bits // 8 for order in ("rggb", "bggr", "gbrg", "grbg") for bits in (8, 16)}
# YUV is that of ITU-R BT.601, studio range (Y 16..235, chroma 16..240), as V4L2 defines these pixel formats
# and as OpenCV converts them, in 16-bit fixed point. Chroma of a 2x1 or 2x2 cell is repeated.
_BITS = 16
_BAND = 16  # rows
_LUMA, _RED_V, _GREEN_U, _GREEN_V, _BLUE_U = (
    round(value * (1 << _BITS)) for value in (255 / 219, 1.596027, -0.391762, -0.812968, 2.017232)
)
# A compressed file may declare any size; no camera is larger than this.
MAX_PIXELS = 64_000_000
# What Pillow raises for one that is truncated or foreign.
_BROKEN_FILE = (
    OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, PillowImage.DecompressionBombError
)  # fmt: skip
SUPPORTED = (*_PACKED, *_YUV_422, *_YUV_420, *_BAYER)


class ImageError(ValueError):
    """An image message which cannot become pixels; says which topic, what is wrong and what is right."""


def decode_image(
    encoding: str, height: int, width: int, step: int, is_bigendian: int, data: Any, topic: str
) -> NDArray[np.uint8]:
    """Decode the fields of a `sensor_msgs/Image`.

    encoding:       one of `SUPPORTED` (names of sensor_msgs/image_encodings.hpp)
    height, width:  size of the picture [px]; for nv12 and nv21 `height` may also count the chroma rows
    step:           bytes from one row to the next, padding included
    is_bigendian:   byte order of 16-bit channels
    data:           any C-contiguous buffer (array.array, bytes, memoryview, ndarray); only read
    topic:          where it came from; named in errors

    Returns uint8 [height, width, 3], RGB, contiguous, row 0 on top, owning its memory. Gray is repeated
    in all channels, alpha is dropped, 16-bit channels are divided by 256.
    Raises ImageError for an unknown encoding, for sizes which do not fit, and for a Bayer image
    where cv_bridge cannot be imported.
    """
    if height <= 0 or width <= 0:
        raise ImageError(f"{topic}: image of {width}x{height} pixels; both sizes must be positive")
    if encoding in _PACKED:
        channels, size, order = _PACKED[encoding]
        rows = _view_rows(data, height, step, width * channels * size, encoding, topic)
        return _pick_channels(_drop_low_bytes(rows, size, is_bigendian), channels, order)
    if encoding in _YUV_422:
        _require_even(width, "width", encoding, topic)
        rows = _view_rows(data, height, step, width * 2, encoding, topic)
        return _packed_422_to_rgb(rows, luma_first=_YUV_422[encoding])
    if encoding in _YUV_420:
        return _decode_420(encoding, height, width, step, data, topic)
    if encoding in _BAYER:
        size = _BAYER[encoding]
        rows = _view_rows(data, height, step, width * size, encoding, topic)
        return _demosaic(_drop_low_bytes(rows, size, is_bigendian), encoding, topic)
    raise ImageError(
        f"{topic}: encoding {encoding!r} is not a picture this node can read; "
        f"set the camera driver to one of {', '.join(SUPPORTED)}"
    )


def decode_compressed(format: str, data: Any, topic: str) -> NDArray[np.uint8]:
    """Decode the fields of a `sensor_msgs/CompressedImage` that holds a JPEG or a PNG.

    format:  "jpeg", "jpg", "png", or what compressed_image_transport writes, such as
             "bgr8; jpeg compressed bgr8". "... compressed rgb8" means that the publisher stored red
             and blue exchanged, as that transport's own subscriber reads it. "" lets the content decide.
    data:    any C-contiguous buffer with the whole file
    topic:   where it came from; named in errors

    Returns uint8 [height, width, 3], RGB, contiguous. 16-bit PNGs are divided by 256, alpha is dropped,
    an EXIF orientation is not applied (camera drivers write none).
    Raises ImageError for other formats (compressedDepth, video), and for truncated or foreign content.
    """
    words = format.lower()
    if "compresseddepth" in words:
        raise ImageError(
            f"{topic}: format {format!r} is a depth image (compressedDepth), not a picture; "
            "choose the camera's color topic"
        )
    if words.strip() and not any(name in words for name in ("jpeg", "jpg", "png")):
        raise ImageError(f"{topic}: format {format!r} is not supported; publish jpeg or png")
    payload = _as_bytes(data, topic)
    try:
        with PillowImage.open(io.BytesIO(payload), formats=("JPEG", "PNG")) as file:
            if file.width * file.height > MAX_PIXELS:
                raise ValueError(f"{file.width}x{file.height} pixels, more than {MAX_PIXELS}")
            file.load()
            pixels = _pillow_to_rgb(file)
    except _BROKEN_FILE as error:
        raise ImageError(
            f"{topic}: {len(payload)} bytes of format {format!r} do not decode as JPEG or PNG ({error}); "
            "is the message truncated, or the topic another type?"
        ) from error
    if "compressed rgb" in words:
        return np.ascontiguousarray(pixels[..., ::-1])
    return pixels


def _as_bytes(data: Any, topic: str) -> memoryview:
    """The buffer as flat bytes, not copied."""
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except TypeError as error:
        raise ImageError(
            f"{topic}: image data of type {type(data).__name__} is not a contiguous buffer ({error})"
        ) from error


def _view_rows(data: Any, height: int, step: int, used: int, encoding: str, topic: str) -> NDArray[np.uint8]:
    """The pixels' bytes [height, used] without the padding that makes a row `step` bytes, not copied."""
    if step < used:
        raise ImageError(
            f"{topic}: step is {step} bytes but a row of {encoding} needs {used}; "
            "the driver must fill step with the bytes from one row to the next"
        )
    payload = _as_bytes(data, topic)
    if len(payload) < step * height:
        raise ImageError(
            f"{topic}: {len(payload)} bytes of data but step x height of {encoding} is "
            f"{step} x {height} = {step * height}; the message is truncated or its size fields are wrong"
        )
    return np.frombuffer(payload, np.uint8, step * height).reshape(height, step)[:, :used]


def _drop_low_bytes(rows: NDArray[np.uint8], size: int, is_bigendian: int) -> NDArray[np.uint8]:
    """Channels [H, n] of rows [H, n * size]: 16-bit values lose their low byte, which divides by 256."""
    if size == 1:
        return rows
    return rows[:, (0 if is_bigendian else 1) :: 2]


def _pick_channels(rows: NDArray[np.uint8], channels: int, order: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Rows [H, W * channels] to contiguous RGB [H, W, 3]; the one copy on the raw path."""
    pixels = np.empty((rows.shape[0], rows.shape[1] // channels, 3), np.uint8)
    if channels == 3 and order == (0, 1, 2):
        pixels.reshape(rows.shape)[...] = rows
    else:
        for place, channel in enumerate(order):
            pixels[..., place] = rows[:, channel::channels]
    return pixels


def _decode_420(
    encoding: str, height: int, width: int, step: int, data: Any, topic: str
) -> NDArray[np.uint8]:
    """nv12 and nv21. In some drivers `height` counts the chroma rows: the data's size decides."""
    have = len(_as_bytes(data, topic))
    counts_chroma = height % 3 == 0 and step * height <= have < step * (height + height // 2)
    picture_height = height * 2 // 3 if counts_chroma else height
    _require_even(width, "width", encoding, topic)
    _require_even(picture_height, "height", encoding, topic)
    rows = _view_rows(data, picture_height * 3 // 2, step, width, encoding, topic)
    return _semi_planar_420_to_rgb(rows, u_first=_YUV_420[encoding])


def _require_even(size: int, name: str, encoding: str, topic: str) -> None:
    if size % 2:
        raise ImageError(f"{topic}: {name} is {size} but must be even: {encoding} shares colors in pairs")


def _demosaic(mosaic: NDArray[np.uint8], encoding: str, topic: str) -> NDArray[np.uint8]:
    """An 8-bit Bayer mosaic [H, W] to RGB [H, W, 3] by cv_bridge.

    It gets packed rows: the pure-Python port of cv_bridge takes no notice of `step`. That port also
    lacks GRBG, so GRBG goes mirrored, which makes it RGGB (where the width is even).
    """
    bridge = _load_cv_bridge(encoding, topic)
    height, width = mosaic.shape
    pattern = encoding.removeprefix("bayer_")[:4]
    mirror = pattern == "grbg" and width % 2 == 0
    packed = np.ascontiguousarray(mosaic[:, ::-1] if mirror else mosaic)
    message = SimpleNamespace(
        header=None,
        height=height,
        width=width,
        step=width,
        is_bigendian=0,
        encoding="bayer_rggb8" if mirror else f"bayer_{pattern}8",
        data=packed.reshape(-1),
    )
    try:
        pixels = bridge.CvBridge().imgmsg_to_cv2(message, desired_encoding="rgb8")
        pixels = np.ascontiguousarray(pixels[:, ::-1] if mirror else pixels)
    except Exception as error:  # cv2.error, CvBridgeError and RuntimeError share no narrower base
        raise ImageError(f"{topic}: cv_bridge cannot convert {encoding} {width}x{height}: {error}") from error
    if pixels.shape != (height, width, 3) or pixels.dtype != np.uint8:
        raise ImageError(f"{topic}: cv_bridge made {pixels.dtype} {pixels.shape} of {encoding}")
    return pixels


def _load_cv_bridge(encoding: str, topic: str) -> Any:
    """The cv_bridge module. AttributeError too: that is how one built for another numpy fails."""
    try:
        return _import_cv_bridge()
    except (ImportError, AttributeError) as error:
        raise ImageError(
            f"{topic}: encoding {encoding} needs cv_bridge, which cannot be imported ({error}); "
            "install ros-<distro>-cv-bridge (or cv-bridge and opencv-python-headless<5 from the registry), "
            "or set the driver to rgb8"
        ) from error


@functools.cache
def _import_cv_bridge() -> Any:
    """cv_bridge and the OpenCV it imports late; a failed import is not cached and is tried again."""
    importlib.import_module("cv2")
    return importlib.import_module("cv_bridge")


def _pillow_to_rgb(file: PillowImage.Image) -> NDArray[np.uint8]:
    """Pixels of a loaded file. Pillow would clip 16-bit gray instead of scaling it."""
    if file.mode.startswith("I"):
        gray = (np.asarray(file).astype(np.int64) >> 8).clip(0, 255).astype(np.uint8)
        return np.repeat(gray[..., None], 3, axis=2)
    return np.array(file.convert("RGB"))


def _packed_422_to_rgb(rows: NDArray[np.uint8], luma_first: bool) -> NDArray[np.uint8]:
    """Rows of two-pixel cells [H, 2W] to RGB [H, W, 3]; W is even.

    luma_first: True for Y U Y V (`yuyv`), False for U Y V Y (`uyvy`)
    """
    height, width = rows.shape[0], rows.shape[1] // 2
    cells = rows.reshape(height, width // 2, 4)
    luma_at = 0 if luma_first else 1
    luma = cells[..., luma_at::2].reshape(height, width)
    chroma = cells[..., 1 - luma_at :: 2]
    return _to_rgb(luma, chroma[..., 0].repeat(2, axis=1), chroma[..., 1].repeat(2, axis=1))


def _semi_planar_420_to_rgb(rows: NDArray[np.uint8], u_first: bool) -> NDArray[np.uint8]:
    """A luma plane over an interleaved chroma plane, [3H/2, W], to RGB [H, W, 3]; H and W are even.

    u_first: True for `nv12` (U V), False for `nv21` (V U)
    """
    width = rows.shape[1]
    height = rows.shape[0] * 2 // 3
    chroma = rows[height:].reshape(height // 2, width // 2, 2)
    full = chroma.repeat(2, axis=0).repeat(2, axis=1)
    u_at = 0 if u_first else 1
    return _to_rgb(rows[:height], full[..., u_at], full[..., 1 - u_at])


def _to_rgb(luma: NDArray[np.uint8], u: NDArray[np.uint8], v: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Planes [H, W] of Y, U and V to RGB [H, W, 3] in 16-bit fixed point.

    In bands of rows small enough for the intermediate values to stay in the processor's cache.
    """
    rgb = np.empty((*luma.shape, 3), np.uint8)
    for top in range(0, luma.shape[0], _BAND):
        band = slice(top, top + _BAND)
        y = (luma[band].astype(np.int32) - 16).clip(0) * _LUMA + (1 << (_BITS - 1))
        du = u[band].astype(np.int32) - 128
        dv = v[band].astype(np.int32) - 128
        rgb[band, :, 0] = ((y + _RED_V * dv) >> _BITS).clip(0, 255)
        rgb[band, :, 1] = ((y + _GREEN_U * du + _GREEN_V * dv) >> _BITS).clip(0, 255)
        rgb[band, :, 2] = ((y + _BLUE_U * du) >> _BITS).clip(0, 255)
    return rgb
