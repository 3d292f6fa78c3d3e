# SPDX-License-Identifier: Apache-2.0
"""Images fitted into the vision tower's square, against openpi-client's results (test/golden/preproc).

lerobot's rule is tested with its folders (pi05/test_lerobot.py).
"""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from oxygen_ros.models.images import resize_with_pad

GOLDEN = load_file(str(Path(__file__).parents[1] / "golden" / "preproc" / "cases.safetensors"))
CASES = sorted({name.rsplit(".", 1)[0] for name in GOLDEN if name.startswith("resize.")})


def test_there_are_cases() -> None:
    assert len(CASES) == 8


@pytest.mark.parametrize("case", CASES)
def test_resize_equals_openpi_client(case: str) -> None:
    expected = GOLDEN[f"{case}.expected"]
    resized = resize_with_pad(GOLDEN[f"{case}.input"], *expected.shape[:2])
    assert resized.dtype == np.uint8
    assert resized.shape == expected.shape
    assert np.abs(resized.astype(int) - expected.astype(int)).max() <= 1


def test_padding_is_black_and_centered() -> None:
    resized = resize_with_pad(np.full((10, 20, 3), 255, np.uint8), 20, 20)
    np.testing.assert_array_equal(resized[:5], 0)
    np.testing.assert_array_equal(resized[5:15], 255)
    np.testing.assert_array_equal(resized[15:], 0)


def test_extreme_shapes_keep_a_pixel_and_wrong_ones_are_errors() -> None:
    assert resize_with_pad(np.full((1, 500, 3), 255, np.uint8), 28, 28).max() == 255
    with pytest.raises(ValueError, match=r"float64 \[4, 4, 3\]"):
        resize_with_pad(np.zeros((4, 4, 3)), 28, 28)
    with pytest.raises(ValueError, match="must be positive"):
        resize_with_pad(np.zeros((4, 4, 3), np.uint8), 0, 28)
