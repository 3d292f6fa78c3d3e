# SPDX-License-Identifier: Apache-2.0
"""Makes the toy model importable as `engine_toy`, and keeps torch to one thread.

Test folders are no packages (`--import-mode=importlib`), so a helper beside
the tests has no import path of its own: it is loaded by file, once, under a name of its own.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import torch

torch.set_num_threads(1)


if "engine_toy" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("engine_toy", Path(__file__).with_name("toy.py"))
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    sys.modules["engine_toy"] = _module
    _spec.loader.exec_module(_module)
