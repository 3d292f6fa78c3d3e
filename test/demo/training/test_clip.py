# SPDX-License-Identifier: Apache-2.0
"""The film: pictures of an episode with what the model said, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from PIL import Image

from oxygen_ros.demo.training.clip import main


def test_a_film_is_written(small: Any, tmp_path: Path) -> None:
    file = tmp_path / "clip.webp"
    words = f"{file} --model {small.model} --driver expert --seconds 0.6"
    assert main([*words.split(), "--task", "put one blue block in the box"]) == 0
    with Image.open(file) as film:
        assert film.n_frames > 3
        assert film.size == (480, 426)
