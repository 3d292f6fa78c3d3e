# SPDX-License-Identifier: Apache-2.0
"""Finds where Python and ROS 2 come from on this machine, and reports what is missing.

It changes nothing. Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from progress import SetupError

OLDEST, NEWEST = (3, 11), (3, 13)  # what the pinned wheels exist for
OTHERS = ("/usr/bin/python3", "python3.12", "python3.11", "python3.13")  # tried when the first does not suit

# Without this variable the ROS wheels start every Python twice, to set a path that we set ourselves.
WHEELS_READY = "_ROS_WHEELS_BOOTSTRAP_COMPLETE"

PROBE = """
import json, sys, sysconfig
def has(name):
    try:
        __import__(name)
        return True
    except ImportError:
        return False
rclpy = has("rclpy")
print(json.dumps({
    "python": getattr(sys, "_base_executable", None) or sys.executable,
    "version": "%d.%d" % sys.version_info[:2],
    "include": sysconfig.get_paths()["include"],
    "venv": has("ensurepip") and has("venv"),
    "rclpy": rclpy,
    "numpy": __import__("numpy").__version__ if rclpy and has("numpy") else "",
}))
"""


@dataclass(frozen=True)
class Source:
    """Where Python and ROS 2 come from.

    python:  interpreter the environment is made from
    version: its version, "3.12"
    include: its folder of C headers
    venv:    whether it can make virtual environments
    distro:  name of the sourced ROS 2 distribution, "" when ROS 2 comes from wheels
    numpy:   version of numpy the sourced ROS 2 brings, "" with wheels
    """

    python: str
    version: str
    include: str
    venv: bool
    distro: str
    numpy: str

    def words(self) -> str:
        ros = f"the sourced ROS 2 {self.distro}" if self.distro else "ROS 2 Jazzy from wheels"
        return f"Python {self.version} ({self.python}), {ros}"

    def key(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def sourced_distro() -> str:
    """The ROS 2 distribution this shell has sourced, "" for none (our own wheels do not count)."""
    return os.environ.get("ROS_DISTRO", "") if os.environ.get("AMENT_PREFIX_PATH") else ""


def probe(python: str, env: dict[str, str]) -> dict[str, object] | None:
    """What an interpreter can do, or None when it does not run."""
    try:
        answer = subprocess.run([python, "-c", PROBE], env=env, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if answer.returncode != 0:
        return None
    facts: dict[str, object] = json.loads(answer.stdout.splitlines()[-1])
    return facts


def recall(saved: Path) -> Source | None:
    """The source an existing environment was made from, if it still stands and fits this shell."""
    if not saved.is_file():
        return None
    source = Source(**json.loads(saved.read_text()))
    if source.distro != sourced_distro() or not os.access(source.python, os.X_OK):
        return None
    return source


def find_source() -> Source:
    """The interpreter to use: the one this script runs under, or the first of `OTHERS` that suits."""
    distro = sourced_distro()
    env = dict(os.environ, **{WHEELS_READY: "1"})
    if not distro:  # what an active environment of ours put on the paths must not affect the answer
        for name in ("PYTHONPATH", "LD_LIBRARY_PATH"):
            env.pop(name, None)
    rejected: list[str] = []
    for python in (getattr(sys, "_base_executable", None) or sys.executable, *OTHERS):
        facts = probe(python, env)
        if facts is None:
            continue
        rclpy = facts.pop("rclpy")
        version = tuple(int(part) for part in str(facts["version"]).split("."))
        if not OLDEST <= version <= NEWEST:
            rejected.append(f"{python} is Python {facts['version']}")
        elif distro and not rclpy:
            rejected.append(
                f"{python} (Python {facts['version']}) cannot import rclpy of the sourced ROS 2 {distro}"
            )
        else:
            return Source(**{**facts, "distro": distro, "numpy": facts["numpy"] if distro else ""})  # type: ignore[arg-type]
    found = "; ".join(dict.fromkeys(rejected)) or "none runs"
    if distro:
        cure = (
            f"name the interpreter ROS 2 {distro} was built for (make PYTHON=/usr/bin/python3), "
            "or use a shell without it"
        )
    else:
        cure = (
            f"install Python {OLDEST[0]}.{OLDEST[1]} to {NEWEST[0]}.{NEWEST[1]} (Debian and Ubuntu: "
            "apt install python3 python3-venv python3-dev), or name one (make PYTHON=/path/to/python3)"
        )
    raise SetupError(f"no suitable Python: {found}.\nWhat to do: {cure}.")


def check_machine(source: Source) -> None:
    """What no pip can bring; raises SetupError that names all that is missing, at once."""
    faults = []
    if not source.venv:
        faults.append(f"{source.python} has no venv module: apt install python3-venv")
    if not Path(source.include, "Python.h").is_file():
        faults.append(f"Python's headers are missing ({source.include}/Python.h): apt install python3-dev")
    if not (shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")):
        faults.append("there is no C++ compiler: apt install g++")
    if not shutil.which("make"):
        faults.append("`make` is missing: apt install make")
    if not source.distro and (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        faults.append(
            f"ROS 2 wheels exist for Linux on x86_64 only, not for {platform.system()} {platform.machine()}: "
            "install ROS 2 Jazzy and source it (source /opt/ros/jazzy/setup.bash)"
        )
    if faults:
        raise SetupError("\n".join(f"- {fault}" for fault in faults))
