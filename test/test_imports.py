# SPDX-License-Identifier: Apache-2.0
"""The architecture, read off the sources: imports point one way, ROS stays at the edge, files stay small."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "oxygen_ros"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)

# part -> parts of oxygen_ros it may import (itself is always allowed; "observation" is the shared value)
MAY_IMPORT = {
    "observation": set(),
    "models": {"observation"},
    "engine": {"observation", "models"},
    "robot": {"observation"},
    "sim": {"observation", "robot", "engine", "models", "msg"},
    # Not of the node: what judges it must not share its code. Drivers play the demo robot's recording.
    "soak": {"robot", "sim", "msg"},
    "node": {"observation", "robot", "engine", "models", "msg"},
    "replay": {"observation", "robot", "engine", "models", "msg"},
    "bench": {"observation", "robot", "engine", "models"},
    "train": {"observation", "robot", "engine", "models", "sim"},
}
# ROS itself: node/, and the files of sim/ and soak/ that are processes of a ROS graph.
ROS = {"rclpy", "ament_index_python", "launch", "launch_ros", "cv_bridge", "builtin_interfaces"}
SOAK_FILES = ("soak/driver", "soak/observer", "soak/injector", "soak/soak", "soak/storm")
ROS_FILES = ("node/", "sim/bridge", "sim/demo", *SOAK_FILES)
FORBIDDEN = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}
MOST_LINES = 400


def part_of(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imported(path: Path) -> list[tuple[int, str]]:
    """(line, dotted module) of every import in a file."""
    return imported_by(path.read_text(), path.relative_to(ROOT).parts[:-1])


def imported_by(text: str, package: tuple[str, ...]) -> list[tuple[int, str]]:
    """Imports of a module of `package`, also those inside functions; relative ones made absolute."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                kept = package[: len(package) - node.level + 1]
                base = ".".join([*kept, *([node.module] if node.module else [])])
            # `from oxygen_ros import engine` imports oxygen_ros.engine
            found += [(node.lineno, f"{base}.{alias.name}") for alias in node.names]
    return found


def is_ros(module: str) -> bool:
    top = module.split(".")[0]
    return (
        top in ROS or top.endswith(("_msgs", "_srvs", "_interfaces")) or module.startswith("oxygen_ros.msg")
    )


def name_of(path: Path) -> str:
    return str(path.relative_to(PACKAGE))


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_imports_point_one_way(path: Path) -> None:
    part = part_of(path)
    if part == "__init__":
        assert not [module for _, module in imported(path) if module.startswith("oxygen_ros")]
        return
    assert part in MAY_IMPORT, f"oxygen_ros/{part} has no place in MAY_IMPORT: which way may it import?"
    for line, module in imported(path):
        words = module.split(".")
        if words[0] != "oxygen_ros" or len(words) < 2:
            continue
        assert words[1] == part or words[1] in MAY_IMPORT[part], (
            f"{path}:{line}: {part} must not import {module}"
        )
        if part == "engine" and words[1] == "models":
            assert words[2:3] == ["interface"], (
                f"{path}:{line}: the engine knows models only through models.interface"
            )


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_ros_stays_at_the_edge(path: Path) -> None:
    if name_of(path).startswith(ROS_FILES):
        return
    for line, module in imported(path):
        if name_of(path).startswith("robot/") and module.split(".")[0] == "cv_bridge":
            continue  # image encodings that are not worth decoding ourselves
        assert not is_ros(module), f"{path}:{line}: {module} belongs to node/ or the simulator's bridge"


@pytest.mark.parametrize("path", [path for path in SOURCES if part_of(path) == "robot"], ids=name_of)
def test_robot_is_numpy_only(path: Path) -> None:
    for line, module in imported(path):
        assert module.split(".")[0] not in {"torch", "transformers", "safetensors"}, (
            f"{path}:{line}: {module}"
        )


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_no_pickle(path: Path) -> None:
    """Model files are safetensors: nothing that runs code when it reads data."""
    for line, module in imported(path):
        assert module.split(".")[0] not in FORBIDDEN, f"{path}:{line}: {module}"
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            call = f"{node.value.id}.{node.attr}"
            assert call not in {"torch.load", "torch.save"}, f"{path}:{node.lineno}: {call}"
        if isinstance(node, ast.keyword) and node.arg in {"allow_pickle", "trust_remote_code"}:
            fine = isinstance(node.value, ast.Constant) and node.value.value is False
            assert fine, f"{path}:{node.value.lineno}: {node.arg} must be False"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_file_can_be_read_in_one_sitting(path: Path) -> None:
    text = path.read_text()
    lines = text.count("\n")
    assert lines <= MOST_LINES, f"{path}: {lines} lines, at most {MOST_LINES}"
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n"), f"{path}: the licence line is missing"
    assert ast.get_docstring(ast.parse(text)), f"{path}: no docstring says what lives here and what does not"


def test_the_rules_see_what_they_forbid() -> None:
    """A relative import, one inside a function and a package imported from its parent are all seen."""
    text = "def f():\n    from ..models import pi05\n    import rclpy.node\nfrom oxygen_ros import node\n"
    modules = {module for _, module in imported_by(text, ("oxygen_ros", "engine"))}
    assert modules == {"oxygen_ros.models.pi05", "rclpy.node", "oxygen_ros.node"}
    assert is_ros("rclpy.node")
    assert is_ros("sensor_msgs.msg.Image")
    assert is_ros("oxygen_ros.msg.ActionChunk")
    assert not is_ros("oxygen_ros.engine.engine")
