# SPDX-License-Identifier: Apache-2.0
"""launch/rviz.launch.py: what it starts where RViz is installed, and its error where it is not.

RViz is no registry package, and where it is installed it needs a display. So programs that only record how
they were started replace it; RViz's picture is not tested here.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("launch_ros") is None:
    pytest.skip(
        "LAUNCH FILES NOT TESTED: launch_ros does not import here (registry wheels of ROS 2 have none); "
        "run the suite on a sourced ROS 2 distribution",
        allow_module_level=True,
    )

from ament_index_python.packages import get_package_share_directory

SHARE = Path(get_package_share_directory("oxygen_ros"))
PROGRAMS = {
    "rviz2": "rviz2",
    "robot_state_publisher": "robot_state_publisher",
    "tf2_ros": "static_transform_publisher",
}
STAND_IN = """#!{python}
import json, sys, time
from pathlib import Path
files = [Path(word).read_text() for word in sys.argv if word.startswith("/tmp/launch_params")]
told = Path({out!r}) / f"{{Path(sys.argv[0]).name}}_{{time.monotonic_ns()}}.json"
told.with_suffix(".part").write_text(json.dumps([sys.argv[1:], files]))
told.with_suffix(".part").rename(told)
"""


@pytest.fixture
def stand_ins(tmp_path: Path) -> Path:
    """A prefix with packages whose programs write down how they were started, and end."""
    prefix = tmp_path / "prefix"
    (tmp_path / "told").mkdir()
    for package, program in PROGRAMS.items():
        for folder in (f"lib/{package}", f"share/{package}", "share/ament_index/resource_index/packages"):
            (prefix / folder).mkdir(parents=True, exist_ok=True)
        (prefix / "share/ament_index/resource_index/packages" / package).touch()
        file = prefix / "lib" / package / program
        file.write_text(STAND_IN.format(python=sys.executable, out=str(tmp_path / "told")))
        file.chmod(0o755)
    return prefix


def wait_for_told(folder: Path, count: int) -> list[tuple[str, list[str], str]]:
    """(program, arguments, parameter files' text) of each stand-in that was started."""
    deadline = time.monotonic() + 40.0
    while len(files := sorted(folder.glob("*.json"))) < count:
        assert time.monotonic() < deadline, f"started: {[file.name for file in files]}"
        time.sleep(0.05)
    told = [(file.name.rsplit("_", 1)[0], *json.loads(file.read_text())) for file in files]
    return [(program, words, "\n".join(texts)) for program, words, texts in told]


def test_shows_robot_and_ghost(launch: Callable[..., Any], stand_ins: Path, tmp_path: Path) -> None:
    process = launch(
        "rviz.launch.py",
        stand_ins,
        urdf=str(SHARE / "resource" / "demo_robot.urdf"),
        robot_state_publisher="true",
        namespace="left",
    )
    told = wait_for_told(tmp_path / "told", 4)
    assert process.wait(timeout=40) == 0, process.output
    assert sorted(program for program, _, _ in told) == [
        "robot_state_publisher",
        "robot_state_publisher",
        "rviz2",
        "static_transform_publisher",
    ]
    by_name = {program: words for program, words, _ in told}
    assert str(SHARE / "config" / "oxygen.rviz") in by_name["rviz2"]
    tie = by_name["static_transform_publisher"]
    assert tie[:4] == ["--frame-id", "world", "--child-frame-id", "ghost/world"]
    publishers = [(words, text) for program, words, text in told if program == "robot_state_publisher"]
    ((ghost, text),) = [pair for pair in publishers if "frame_prefix" in pair[1]]
    assert "ghost/" in text
    assert "__ns:=/ghost" in ghost
    assert "joint_states:=/left/oxygen/preview/joint_states" in ghost
    assert all("oxygen_demo" in text for _, text in publishers), "the URDF is the parameter"


def test_without_a_urdf_there_is_rviz_and_a_word(
    launch: Callable[..., Any], stand_ins: Path, tmp_path: Path
) -> None:
    process = launch("rviz.launch.py", stand_ins)
    assert [program for program, _, _ in wait_for_told(tmp_path / "told", 1)] == ["rviz2"]
    assert process.wait(timeout=40) == 0
    assert "no ghost of the chunk: give urdf:=" in process.output


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "No such file"), ("<robot", "cannot be read"), ("<robot name='r'/>", "no URDF of one robot")],
)
def test_a_urdf_that_is_none_is_named(
    launch: Callable[..., Any], stand_ins: Path, tmp_path: Path, content: str | None, reason: str
) -> None:
    urdf = tmp_path / "robot.urdf"
    if content is not None:
        urdf.write_text(content)
    process = launch("rviz.launch.py", stand_ins, urdf=str(urdf))
    assert process.wait(timeout=40) != 0
    assert f"urdf:={urdf}" in process.output
    assert reason in process.output


def test_demo_starts_each_view_once(launch: Callable[..., Any], stand_ins: Path, tmp_path: Path) -> None:
    process = launch("demo.launch.py", stand_ins, rviz="true")
    wait_for_told(tmp_path / "told", 4)
    process.wait_for_line(r"oxygen_sim-\d+\]: process started")
    process.stop(signal.SIGINT, timeout=40, group=True)
    programs = [program for program, _, _ in wait_for_told(tmp_path / "told", 4)]
    assert sorted(programs) == sorted([*PROGRAMS.values(), "robot_state_publisher"])


@pytest.mark.skipif(
    importlib.util.find_spec("tf2_ros") is not None, reason="RViz's packages are installed here"
)
def test_packages_that_are_missing_are_named(launch: Callable[..., Any]) -> None:
    """Before anything is started: a demo without the view that was asked for is not what was asked for."""
    process = launch("demo.launch.py", rviz="true")
    assert process.wait(timeout=40) != 0
    assert (
        "RViz needs rviz2, robot_state_publisher, tf2_ros, not installed here: apt install" in process.output
    )
    assert "process started" not in process.output
