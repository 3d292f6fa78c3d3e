# SPDX-License-Identifier: Apache-2.0
"""A model folder is read and nothing else: nothing is written, run, or fetched when it is loaded."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from oxygen_ros.models import ModelError, load_model

# Every file opened to be written, everything made, renamed or removed, every program and every connection.
# Hooks see Python's side; the folder's fingerprint shows what the weights' library does.
WATCHED = """
import os, sys
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.link", "os.symlink",
           "os.truncate", "shutil.", "subprocess.Popen", "os.system", "os.exec", "os.posix_spawn",
           "pickle.find_class", "socket.connect", "socket.getaddrinfo")
from oxygen_ros.models import load_model
def watch(event, arguments):
    if not armed:
        return
    if event == "open" and isinstance(arguments[2], int) and arguments[2] & WRITES:
        seen.append(f"{event} {arguments[0]!r} {arguments[1]!r}")
    if event.startswith(CHANGES):
        seen.append(f"{event} {arguments!r}")
seen, armed = [], False
sys.addaudithook(watch)
load_model(sys.argv[1])  # libraries settle in: caches of their own are made at the first call
armed = True
load_model(sys.argv[1])
armed = False
print("\\n".join(seen))
"""


def fingerprint(folder: Path) -> dict[str, tuple[str, int, int]]:
    """Name -> content, time of change, mode of everything in a folder."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
            path.stat().st_mtime_ns,
            path.stat().st_mode,
        )
        for path in sorted([folder, *folder.rglob("*")])
    }


def test_loading_changes_nothing_runs_nothing_and_asks_nobody(checkpoint: Path) -> None:
    before = fingerprint(checkpoint)
    done = subprocess.run(
        [sys.executable, "-B", "-c", WATCHED, str(checkpoint)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == ""
    assert fingerprint(checkpoint) == before


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path(self.file),)  # type: ignore[return-value]


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "model.pt"])
def test_a_pickle_is_never_opened_whatever_its_name(checkpoint: Path, tmp_path: Path, name: str) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / name).write_bytes(pickle.dumps(Bomb(tmp_path / "exploded")))
    with pytest.raises(ModelError, match="safetensors"):
        load_model(checkpoint)
    assert not (tmp_path / "exploded").exists()


def test_code_beside_the_weights_is_never_imported(checkpoint: Path, tmp_path: Path) -> None:
    for name in ("modeling.py", "processing.py", "__init__.py", "conftest.py", "sitecustomize.py"):
        (checkpoint / name).write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    load_model(checkpoint)
    assert not (tmp_path / "ran").exists()
