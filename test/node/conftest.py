# SPDX-License-Identifier: Apache-2.0
"""Fixtures of the node's tests: a made-up robot over real DDS, and real node processes.

Helpers beside the tests have no import path of their own (`--import-mode=importlib`), so this loads
`node_lab` (a robot and a listener) by file, once. toy.py (a model with faults) is a program.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def _load(name: str, file: str) -> Any:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]


lab = _load("node_lab", "lab.py")
_load("engine_toy", "../engine/toy.py")  # for the ROS-free half


@pytest.fixture(scope="module")
def robot() -> Iterator[Any]:
    """The made-up robot: publishes cameras and joints, listens to the node.

    It ends with the module: other tests of the run have robots of their own in the same domain.
    """
    one = lab.Robot()
    yield one
    one.close()


@pytest.fixture(scope="module")
def start_node(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, robot: Any
) -> Iterator[Callable[..., Any]]:
    """start_node(params=None, *, name="oxygen", toy=None) -> Process, of a real oxygen_node.

    params: changes to `lab.PARAMETERS`; None as a value leaves a parameter out.
    more:   further ROS arguments
    env:    changes to the environment; None as a value leaves a variable out
    toy:    orders for the toy model, which replaces the demo model (see toy.py)
    Those still running at the end of the module are asked to end, and must do so cleanly.
    """
    root = request.config.pluginmanager.getplugin(str(ROOT / "test" / "conftest.py"))
    assert root is not None
    started: list[Any] = []
    folder = tmp_path_factory.mktemp("node")
    robot.forget()

    def start(
        params: Mapping[str, Any] | None = None,
        *,
        name: str = "oxygen",
        toy: Mapping[str, Any] | None = None,
        more: Sequence[str] = (),
        env: Mapping[str, str | None] | None = None,
    ) -> Any:
        values = {**lab.PARAMETERS, **(params or {})}
        command = [shutil.which("oxygen_node")]
        assert command[0] is not None, "oxygen_node is not on PATH: source scripts/env.sh (after make build)"
        if toy is not None:
            model = folder / f"toy_{len(started)}"
            model.mkdir()
            (model / "toy.yaml").write_text(yaml.safe_dump(dict(toy)))
            values["model"] = str(model)
            command = [sys.executable, str(Path(__file__).with_name("toy.py"))]
        path = folder / f"params_{len(started)}.yaml"
        kept = {key: value for key, value in values.items() if value is not None}
        path.write_text(yaml.safe_dump({"/**": {"ros__parameters": kept}}, sort_keys=False))
        process = root.Process(
            [*command, "--ros-args", "--params-file", str(path), "-r", f"__node:={name}", *more],
            {
                key: value
                for key, value in {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}.items()
                if value is not None
            },
            folder,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.running():
            process.stop()
