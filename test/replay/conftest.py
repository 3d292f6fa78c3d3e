# SPDX-License-Identifier: Apache-2.0
"""A bag is played to a real node: robot and processes are those of test/node."""

from __future__ import annotations

import importlib.util
from pathlib import Path

_spec = importlib.util.spec_from_file_location(
    "node_fixtures", Path(__file__).resolve().parents[1] / "node" / "conftest.py"
)
assert _spec is not None
assert _spec.loader is not None
_fixtures = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)
robot = _fixtures.robot
start_node = _fixtures.start_node
