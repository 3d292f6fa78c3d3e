# SPDX-License-Identifier: Apache-2.0
"""Networks, checkpoint folders and observations for the tests of the models.

`reference`, `scene`, `lerobot_scene` and `families` are loaded by file under names of their own,
since test folders are no packages (`--import-mode=importlib`).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch

torch.set_num_threads(1)


for _name, _file in (
    ("models_reference", "reference.py"),
    ("models_scene", "scene.py"),
    ("models_lerobot", "lerobot_scene.py"),
    ("models_families", "families.py"),
):
    if _name not in sys.modules:
        _spec = importlib.util.spec_from_file_location(_name, Path(__file__).with_name(_file))
        assert _spec is not None
        assert _spec.loader is not None
        _module = importlib.util.module_from_spec(_spec)
        sys.modules[_name] = _module
        _spec.loader.exec_module(_module)


@pytest.fixture(scope="session")
def demo_network():
    """The demo preset with random weights; its end token is one that its texts do come to."""
    from models_scene import make_network

    return make_network()


@pytest.fixture(scope="session")
def recompute(demo_network):
    """Full recompute over the demo network."""
    from models_reference import Recompute

    return Recompute(demo_network)


@pytest.fixture
def checkpoint(demo_network, tmp_path: Path) -> Path:
    """A complete checkpoint folder of the demo network."""
    from models_scene import write_checkpoint

    return write_checkpoint(tmp_path / "checkpoint", demo_network)
