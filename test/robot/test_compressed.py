# SPDX-License-Identifier: Apache-2.0
"""Compressed images: what compressed_image_transport and others write, and what is no picture."""

import array
import contextlib
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from oxygen_ros.robot.images import ImageError, decode_compressed


def encode(pixels: np.ndarray, kind: str, **options: object) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind, **options)
    return stream.getvalue()


PIXELS = np.random.default_rng(1).integers(0, 256, (24, 32, 3), np.uint8)


@pytest.mark.parametrize("name", ["png", "rgb8; png compressed bgr8", "bgr8; png compressed bgr8", "PNG", ""])
@pytest.mark.parametrize("buffer", [bytes, lambda data: array.array("B", data), memoryview])
def test_png_is_exact(name: str, buffer: type) -> None:
    decoded = decode_compressed(name, buffer(encode(PIXELS, "PNG")), "/cam/compressed")
    np.testing.assert_array_equal(decoded, PIXELS)
    assert decoded.dtype == np.uint8
    assert decoded.flags.c_contiguous


@pytest.mark.parametrize("name", ["jpeg", "jpg", "rgb8; jpeg compressed bgr8", "bgr8; jpeg compressed bgr8"])
def test_jpeg_has_the_right_colors(name: str) -> None:
    red = np.full((16, 16, 3), (220, 40, 10), np.uint8)
    decoded = decode_compressed(name, encode(red, "JPEG", quality=95), "/cam").astype(int)
    assert np.abs(decoded - red).max() <= 3


def test_a_publisher_that_stored_rgb_as_bgr_is_read_as_its_transport_reads_it() -> None:
    decoded = decode_compressed("rgb8; png compressed rgb8", encode(PIXELS, "PNG"), "/cam")
    np.testing.assert_array_equal(decoded, PIXELS[..., ::-1])


def test_gray_alpha_palette_and_16_bits() -> None:
    gray = PIXELS[..., 0]
    np.testing.assert_array_equal(
        decode_compressed("mono8; png compressed ", encode(gray, "PNG"), "/cam"), np.stack([gray] * 3, 2)
    )
    deep = gray.astype(np.uint16) * 256 + 255
    np.testing.assert_array_equal(
        decode_compressed("mono16; png compressed ", encode(deep, "PNG"), "/cam"), np.stack([gray] * 3, 2)
    )
    alpha = np.dstack([PIXELS, np.full(PIXELS.shape[:2], 7, np.uint8)])
    np.testing.assert_array_equal(decode_compressed("png", encode(alpha, "PNG"), "/cam"), PIXELS)
    stream = io.BytesIO()
    Image.fromarray(np.full((4, 4, 3), 9, np.uint8)).convert("P").save(stream, "PNG")
    assert decode_compressed("png", stream.getvalue(), "/cam").shape == (4, 4, 3)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("16UC1; compressedDepth png", b"", r"/cam: format '16UC1; compressedDepth png' is a depth image"),
        ("h264", b"\x00", r"/cam: format 'h264' is not supported; publish jpeg or png"),
        ("jpeg", b"", r"/cam: 0 bytes of format 'jpeg' do not decode"),
        ("jpeg", b"not an image at all", r"/cam: 19 bytes of format 'jpeg' do not decode"),
        ("png", [1, 2], r"/cam: image data of type list"),
    ],
)
def test_what_is_no_picture_is_named(name: str, data: object, words: str) -> None:
    with pytest.raises(ImageError, match=words):
        decode_compressed(name, data, "/cam")


@given(kind=st.sampled_from(["JPEG", "PNG"]), share=st.floats(0.0, 0.9), seed=st.integers(0, 2**32 - 1))
@settings(max_examples=60, deadline=None)
def test_truncated_or_damaged_files_are_errors_or_pictures_and_never_anything_else(
    kind: str, share: float, seed: int
) -> None:
    whole = encode(PIXELS, kind)
    with pytest.raises(ImageError, match="/cam"):
        decode_compressed(kind.lower(), whole[: int(share * len(whole))], "/cam")
    rng = np.random.default_rng(seed)
    damaged = bytearray(whole)
    for at in rng.integers(0, len(whole), 8):
        damaged[at] = rng.integers(256)
    with contextlib.suppress(ImageError):
        assert decode_compressed(kind.lower(), damaged, "/cam").ndim == 3


def test_a_file_that_claims_an_absurd_size_is_an_error() -> None:
    whole = bytearray(encode(PIXELS, "JPEG"))
    at = whole.index(b"\xff\xc0") + 5  # height and width in the frame header
    whole[at : at + 4] = b"\x23\x28\x23\x28"
    with pytest.raises(ImageError, match="9000x9000 pixels"):
        decode_compressed("jpeg", whole, "/cam")
