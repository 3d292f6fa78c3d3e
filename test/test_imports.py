# SPDX-License-Identifier: Apache-2.0
"""The architecture, read off the sources: imports point one way, ROS stays at the edge, names are unique."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "oxygen_ros"
SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if "__pycache__" not in path.parts)
TOOLS = sorted(path for path in (ROOT / "tools").rglob("*.py") if "__pycache__" not in path.parts)

# part -> parts of oxygen_ros it may import; itself is always allowed. The product imports neither bench nor
# demo nor tools.
VALUES = {"actions", "observation"}
PRODUCT = {"engine", "models", "robot", "node", "replay"}
MAY_IMPORT = {
    "actions": set[str](),
    "observation": set[str](),
    "processes": set[str](),
    "models": VALUES,
    "engine": {*VALUES, "models"},
    "robot": VALUES,
    "node": {*VALUES, "engine", "models", "robot", "processes", "msg"},
    "replay": {*VALUES, "engine", "models", "robot", "processes", "msg"},
    "bench": {*VALUES, "engine", "models", "robot", "replay", "processes", "msg"},
    "demo": {*VALUES, "engine", "models", "robot", "replay", "processes", "msg"},
}
# The soak test must not share the node's code.
TOOLS_MAY_IMPORT = {"robot", "replay", "demo", "processes", "msg"}
# Modules of the node that replay uses: a file is allowed where they are.
NODE_WITHOUT_ROS = (
    "control", "device", "housekeeping", "layout", "parameters", "preparation", "record", "settings",
    "trigger",
)  # fmt: skip
MAY_IMPORT_MODULES = {"replay": tuple(f"oxygen_ros.node.{name}" for name in NODE_WITHOUT_ROS)}
ROS = {"rclpy", "ament_index_python", "launch", "launch_ros", "cv_bridge", "builtin_interfaces"}
# Programs of a ROS graph.
ROS_FILES = (
    "bench/latency.py",
    "demo/main.py",
    "demo/recorder.py",
    "demo/sim/bridge.py",
    "demo/sim/parameters.py",
    "node/",
    "replay/player.py",
)
FORBIDDEN = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal"}


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
        assert words[0] not in ("soak", "tools"), f"{path}:{line}: tools/ is not installed"
        if words[0] != "oxygen_ros" or len(words) < 2 or words[1] == part:
            continue
        is_allowed = words[1] in MAY_IMPORT[part] or module.startswith(MAY_IMPORT_MODULES.get(part, ()))
        assert is_allowed, f"{path}:{line}: {part} must not import {module}"
        if part == "engine" and words[1] == "models":
            assert words[2:3] == ["interface"], (
                f"{path}:{line}: the engine knows models only through models.interface"
            )


def test_the_product_needs_neither_bench_nor_demo() -> None:
    """Every new package has its place in the table."""
    assert not set().union(*(MAY_IMPORT[part] for part in PRODUCT)) & {"bench", "demo"}
    assert PRODUCT | {"bench", "demo", "processes"} | VALUES == set(MAY_IMPORT)


@pytest.mark.parametrize("path", TOOLS, ids=lambda path: str(path.relative_to(ROOT)))
def test_tools_import_nothing_of_the_node(path: Path) -> None:
    for line, module in imported(path):
        words = module.split(".")
        if words[0] == "oxygen_ros":
            assert words[1] in TOOLS_MAY_IMPORT, f"{path}:{line}: tools must not import {module}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_ros_stays_at_the_edge(path: Path) -> None:
    if name_of(path).startswith(ROS_FILES):
        return
    for line, module in imported(path):
        if name_of(path).startswith("robot/") and module.split(".")[0] == "cv_bridge":
            continue  # image encodings that are not worth decoding ourselves
        assert not is_ros(module), f"{path}:{line}: {module} belongs to node/ or the simulator's bridge"


@pytest.mark.parametrize("name", NODE_WITHOUT_ROS)
def test_the_part_of_the_node_that_replay_uses_has_no_ros(name: str) -> None:
    """Neither itself nor by another module of the node."""
    waiting, seen = [name], set[str]()
    while waiting:
        path = PACKAGE / "node" / f"{waiting.pop()}.py"
        for line, module in imported(path) if path.is_file() else ():
            if (path.name, module.split(".")[0]) == ("preparation.py", "ament_index_python"):
                continue  # inside a function: for "package://" folders alone, which only ROS can find
            assert not is_ros(module), f"{path}:{line}: {module} in what {name} imports"
            words = module.split(".")
            if words[:2] == ["oxygen_ros", "node"] and len(words) > 2 and words[2] not in seen:
                seen.add(words[2])
                waiting.append(words[2])


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


@pytest.mark.parametrize("path", [*SOURCES, *TOOLS], ids=lambda path: str(path.relative_to(ROOT)))
def test_file_says_its_licence_and_what_it_is(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n"), f"{path}: the license line is missing"
    assert ast.get_docstring(ast.parse(text)), f"{path}: no docstring"


def test_class_names_are_unique() -> None:
    """A name means one class in the whole package."""
    places = defaultdict(list)
    for path in [*SOURCES, *TOOLS]:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert not twice


def test_the_rules_see_what_they_forbid() -> None:
    """A relative import, one inside a function and a package imported from its parent are all seen."""
    text = "def f():\n    from ..models import pi05\n    import rclpy.node\nfrom oxygen_ros import node\n"
    modules = {module for _, module in imported_by(text, ("oxygen_ros", "engine"))}
    assert modules == {"oxygen_ros.models.pi05", "rclpy.node", "oxygen_ros.node"}
    assert is_ros("rclpy.node")
    assert is_ros("sensor_msgs.msg.Image")
    assert is_ros("oxygen_ros.msg.ActionChunk")
    assert not is_ros("oxygen_ros.engine.engine")
