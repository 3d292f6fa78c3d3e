# SPDX-License-Identifier: Apache-2.0
"""A child process of the demo: started with a log, watched, stopped as a person would.

Here lives one process; which ones there are is `demo`.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


class ChildDied(RuntimeError):
    """A process ended by itself, or never began to work; the text says what its log said last."""


class Child:
    """A running executable of the package."""

    GRACE = 15.0  # s from SIGINT to SIGKILL

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        """Start `command`, its output into `log`. Raises ChildDied if it is not on the PATH."""
        self.name = name
        self.log = log
        if shutil.which(command[0]) is None:
            raise ChildDied(f"{command[0]} is not on the PATH: source scripts/env.sh first")
        # The kernel ends it when the demo is killed and can stop nobody any more.
        leash = ["setpriv", "--pdeathsig", "INT"] if shutil.which("setpriv") else []
        # Held back until the program has its handlers: else a signal during the interpreter's own start,
        # as when the demo is ended at once, would end it with a traceback.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with log.open("wb") as output:
                # A session of its own: Ctrl-C reaches the demo alone, which then stops both in order.
                self._process = subprocess.Popen(
                    [*leash, *command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def check(self) -> None:
        """Raise ChildDied when the process has ended."""
        status = self._process.poll()
        if status is not None:
            raise ChildDied(f"the {self.name} ended with status {status}:\n{self._last_lines()}")

    def stop(self, meanwhile: Callable[[], None]) -> str:
        """End the process by SIGINT; returns "" or what went wrong. `meanwhile` is called while waiting."""
        if self._process.poll() is not None:
            return ""
        self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + self.GRACE
        while self._process.poll() is None and time.monotonic() < deadline:
            meanwhile()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
            return f"the {self.name} did not end within {self.GRACE:.0f} s of SIGINT and was killed"
        status = self._process.returncode
        return f"the {self.name} ended with status {status}:\n{self._last_lines()}" if status else ""

    def _last_lines(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-12:])
