# SPDX-License-Identifier: Apache-2.0
"""The installed tree is complete and current, and all versions agree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import xml.etree.ElementTree
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ament_packages = pytest.importorskip("ament_index_python.packages", reason="no ROS 2: source scripts/env.sh")


def files_below(folder: Path) -> set[str]:
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file()
        and path.suffix != ".pyc"
        # Caches, also those of a tool that was run in a folder of the package.
        and not any(part == "__pycache__" or part.startswith(".") for part in path.relative_to(folder).parts)
    }


@pytest.fixture(scope="module")
def prefix() -> Path:
    """Where the package is installed."""
    return Path(ament_packages.get_package_prefix("oxygen_ros"))


@pytest.mark.parametrize("folder", ["launch", "config", "resource"])
def test_shared_folder_is_installed_and_current(prefix: Path, folder: str) -> None:
    wanted = files_below(ROOT / folder) if (ROOT / folder).is_dir() else set()
    installed = prefix / "share" / "oxygen_ros" / folder
    assert files_below(installed) == wanted
    for name in wanted:
        assert (installed / name).read_bytes() == (ROOT / folder / name).read_bytes(), (
            f"{name} is stale: make build"
        )


def test_every_program_is_installed_and_executable(prefix: Path) -> None:
    programs = sorted(path for path in (ROOT / "bin").iterdir() if path.is_file())
    assert programs, "bin/ holds no programs"
    for program in programs:
        installed = prefix / "lib" / "oxygen_ros" / program.name
        assert os.access(installed, os.X_OK), f"{installed} is missing or not executable"
        # `ros2 run` starts the interpreter the shebang names: it must be the one of the active environment.
        assert installed.read_text().splitlines()[0] == "#!/usr/bin/env python3"


def test_modules_and_their_data_are_installed(prefix: Path) -> None:
    import oxygen_ros

    package = Path(os.path.abspath(oxygen_ros.__path__[0]))
    assert prefix in package.parents, f"oxygen_ros comes from {package}, not from the installed tree {prefix}"
    missing = files_below(ROOT / "oxygen_ros") - files_below(package)
    assert not missing, "not installed (make build): " + ", ".join(sorted(missing))
    generated = re.compile(r"msg/|oxygen_ros_s__|_oxygen_ros_s\.|lib")
    gone = {
        name for name in files_below(package) - files_below(ROOT / "oxygen_ros") if not generated.match(name)
    }
    assert not gone, "installed but no longer in the sources (make build): " + ", ".join(sorted(gone))


def test_messages_have_the_fields_of_their_files() -> None:
    from oxygen_ros import msg

    for path in sorted((ROOT / "msg").glob("*.msg")):
        fields = []
        for line in path.read_text().splitlines():
            code = line.partition("#")[0].split()
            if len(code) == 2 and "=" not in code[1]:
                assert "#" in line, f"{path.name}: field {code[1]} has no comment"
                fields.append(code[1])
        assert list(getattr(msg, path.stem).get_fields_and_field_types()) == fields, (
            f"{path.name} is newer: make build"
        )


def test_messages_are_found_where_the_source_tree_comes_first() -> None:
    """Python started in the repository: our modules are the tree's, the messages the installed package's."""
    program = "import oxygen_ros.msg as m, oxygen_ros.observation as o; m.TextOutput(); print(o.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == ROOT / "oxygen_ros" / "observation.py"


def manifest_version() -> str:
    version = xml.etree.ElementTree.parse(ROOT / "package.xml").getroot().findtext("version")
    assert version is not None
    return version


def test_version_is_the_same_everywhere(prefix: Path) -> None:
    version = manifest_version()
    heads = re.findall(r"^(\d+\.\d+\.\d+) \(", (ROOT / "CHANGELOG.rst").read_text(), flags=re.MULTILINE)
    assert heads[0] == version, "the newest entry of CHANGELOG.rst is not package.xml's version"
    stated = subprocess.run(
        [sys.executable, "setup.py", "--version"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()[-1]
    assert stated == version
    installed = xml.etree.ElementTree.parse(prefix / "share" / "oxygen_ros" / "package.xml").getroot()
    assert installed.findtext("version") == version, "the installed package is stale: make build"


def test_wheel_holds_the_modules_and_their_data(tmp_path: Path) -> None:
    """`pip install .` brings all of oxygen_ros/ and the shared folders a ROS-free use needs."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for name in ("package.xml", "setup.py", "pyproject.toml", "LICENSE", "oxygen_ros", "config", "resource"):
        if (ROOT / name).exists():
            (tree / name).symlink_to(ROOT / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        ".",
        "--no-deps",
        "--no-build-isolation",
        "-q",
        "-w",
        str(tmp_path),
    ]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,) = tmp_path.glob("oxygen_ros-*.whl")
    assert wheel.name.split("-")[1] == manifest_version()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (entry_points,) = (name for name in names if name.endswith("/entry_points.txt"))
        commands = re.findall(r"^(\w+) ?= ?([\w.]+):main$", archive.read(entry_points).decode(), re.MULTILINE)
    assert {name for name, _ in commands} == {"oxygen_bench", "oxygen_eval", "oxygen_train"}
    for name, module in commands:
        assert f"{module.replace('.', '/')}.py" in names, f"{name} starts {module}, which is not in the wheel"
    assert not [name for name in names if name.startswith(("tools/", "soak/", "test/"))]
    missing = {f"oxygen_ros/{name}" for name in files_below(ROOT / "oxygen_ros")} - names
    assert not missing, "not in the wheel: " + ", ".join(sorted(missing))
    for folder in ("config", "resource"):
        for name in files_below(ROOT / folder) if (ROOT / folder).is_dir() else ():
            assert any(entry.endswith(f"share/oxygen_ros/{folder}/{name}") for entry in names), (
                f"{folder}/{name}"
            )
