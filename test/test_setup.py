# SPDX-License-Identifier: Apache-2.0
"""The set-up scripts: finished steps are not repeated, failures name step and cause, env.sh works twice."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"
SHELLS = [shell for shell in ("bash", "zsh") if shutil.which(shell)]


@pytest.fixture(scope="module")
def progress() -> ModuleType:
    spec = importlib.util.spec_from_file_location("progress", SCRIPTS / "progress.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_finished_step_runs_again_only_when_its_inputs_change(progress: ModuleType, tmp_path: Path) -> None:
    runs: list[str] = []
    for key in ("a", "a", "b", "b", "a"):
        progress.Steps(tmp_path, total=1).do("step", "a step", key, lambda key=key: runs.append(key))
    assert runs == ["a", "b", "a"]


def test_failed_step_names_itself_the_cause_and_the_cure(progress: ModuleType, tmp_path: Path) -> None:
    steps = progress.Steps(tmp_path / "setup", total=3)
    script = "import sys; print('fatal error: Python.h: No such file or directory'); sys.exit(4)"

    def fail() -> None:
        steps.call("build", [sys.executable, "-c", script], dict(os.environ), tmp_path)

    with pytest.raises(progress.SetupError) as caught:
        steps.do("build", "colcon build", "key", fail)
    words = str(caught.value)
    assert "[1/3] colcon build: failed" in words
    assert "ended with 4" in words
    assert "Python.h: No such file" in words
    assert "apt install python3-dev" in words
    assert str(tmp_path / "logs" / "build.log") in words

    runs: list[int] = []
    progress.Steps(tmp_path / "setup", total=3).do("build", "colcon build", "key", lambda: runs.append(1))
    assert runs == [1], "a failed step must not be remembered as done"


def test_digest_keeps_parts_apart(progress: ModuleType) -> None:
    assert progress.digest(["ab", "c"]) != progress.digest(["a", "bc"])
    assert progress.digest(["ab"]) == progress.digest([b"ab"])


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder that looks like a built checkout, with a space in its name."""
    root = tmp_path / "my robot"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(SCRIPTS / "env.sh", root / "scripts")
    (root / "install/oxygen_ros/share/oxygen_ros").mkdir(parents=True)
    (root / ".venv/bin").mkdir(parents=True)
    (root / ".venv/bin/activate").write_text(f'export VIRTUAL_ENV="{root}/.venv"\n')
    (root / ".venv/setup").mkdir()
    (root / ".venv/setup/source.json").write_text('{"distro": ""}')
    (root / ".venv/setup/paths").write_text(
        f"AMENT_PREFIX_PATH={root}/.venv\nAMENT_PREFIX_PATH={root}/install\n"
    )
    return root


def source(shell: str, tree: Path, script: str, **more: str) -> subprocess.CompletedProcess[str]:
    env = {"PATH": os.environ["PATH"], "ENV_SH": str(tree / "scripts/env.sh"), **more}
    return subprocess.run([shell, "-c", script], env=env, cwd="/", capture_output=True, text=True)


@pytest.mark.parametrize("shell", SHELLS)
def test_env_can_be_sourced_twice_from_anywhere(shell: str, tree: Path) -> None:
    script = (
        'set -u; source "$ENV_SH" && source "$ENV_SH" && echo "$AMENT_PREFIX_PATH|$HF_HUB_OFFLINE|$MUJOCO_GL"'
    )
    done = source(shell, tree, script, MUJOCO_GL="osmesa")
    assert done.stdout == f"{tree}/install:{tree}/.venv|1|osmesa\n", done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_env_says_when_nothing_is_built(shell: str, tree: Path) -> None:
    (tree / ".venv/setup/paths").unlink()
    done = source(shell, tree, 'source "$ENV_SH"; echo "status $?"')
    assert done.stdout == "status 1\n"
    assert "run make build" in done.stderr


@pytest.mark.parametrize("shell", SHELLS)
def test_env_refuses_another_ros_than_it_was_built_with(shell: str, tree: Path) -> None:
    (tree / ".venv/setup/source.json").write_text('{"distro": "jazzy"}')
    done = source(shell, tree, 'source "$ENV_SH"; echo "status $?"')
    assert done.stdout == "status 1\n"
    assert "source /opt/ros/jazzy/setup.bash first" in done.stderr
