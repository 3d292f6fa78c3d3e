# SPDX-License-Identifier: Apache-2.0
"""Signals and child processes of the package's programs. Standard library only.

`Shutdown` ends a program of ours: SIGINT and SIGTERM are blocked in all threads and waited for in a thread,
so that no signal interrupts a computation, a callback or an import. `ChildProcess` starts another program.

A program blocks the signals in its first line, before it imports anything of ours (see bin/); the interpreter
handles earlier ones.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue

SIGNALS = frozenset({signal.SIGINT, signal.SIGTERM})
# A process that ended cleanly has written none of these.
UNCLEAN = re.compile(r"Traceback \(most recent call last\)|Segmentation fault|Aborted|terminate called")


class Shutdown:
    """Whether, why and with which exit code this process is to end. Methods may be called by any thread."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.exit_code = 0
        self.reason = ""
        self._notify: Callable[[], None] | None = None

    def watch_signals(self) -> None:
        """Block SIGINT and SIGTERM and wait for them in a thread. Call it before other threads are started.

        Until `call_when_asked` is called a signal ends the process at once, with exit code 0. Later signals
        than the first have no effect.
        """
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=self._wait_for_signal, name="signals", daemon=True).start()

    def call_when_asked(self, notify: Callable[[], None] = lambda: None) -> None:
        """From now on a signal sets `is_asked` and calls `notify`, which wakes the process's main loop."""
        self._notify = notify
        if self.is_asked.is_set():
            notify()

    def end(self, exit_code: int, reason: str) -> None:
        """Ask the process to end."""
        self.exit_code = exit_code
        self.reason = reason
        self.is_asked.set()
        if self._notify is not None:
            self._notify()

    def _wait_for_signal(self) -> None:
        number = signal.sigwait(SIGNALS)
        if self._notify is None:
            # Still importing: nothing is open yet.
            os._exit(0)
        self.end(0, signal.Signals(number).name)


class ChildError(RuntimeError):
    """A child process could not be started, or ended by itself."""


class ChildProcess:
    """A program started by this one, in a session of its own. It ends with this process, even one killed.

    Ctrl-C in a terminal does not reach it: its starter stops it. All methods belong to one thread,
    which must outlive the child (the kernel ends the child with the thread that started it).
    """

    GRACE = 15.0  # s from a signal that asks it to end to SIGKILL

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        *,
        name: str = "",
        env: Mapping[str, str | None] | None = None,
        cwd: Path | None = None,
        has_pipes: bool = False,
        hold_signals: bool = True,
    ) -> None:
        """command:    program and arguments; the program is looked for on PATH
        log:           file for stdout and stderr, written anew
        name:          what messages call it; "" for the name of the program
        env:           changes to the environment; None as a value leaves a variable out
        has_pipes:     `tell` writes to stdin, `take_lines` reads stdout; stderr is appended to `log`
        hold_signals:  start it with SIGINT and SIGTERM blocked, so that a signal does not end the interpreter
                       with a traceback before the program handles signals itself

        Raises ChildError when the program is not on PATH.
        """
        if shutil.which(command[0]) is None:
            raise ChildError(f"{command[0]} is not on the PATH: source scripts/env.sh first")
        self.command = list(command)
        self.name = name or Path(command[0]).name
        self.log = log
        # Without util-linux the child may outlive a parent that was killed.
        leash = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        changed = {**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS if hold_signals else ())
        try:
            with log.open("ab" if has_pipes else "wb") as output:
                self._process = subprocess.Popen(
                    [*leash, *command],
                    stdin=subprocess.PIPE if has_pipes else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if has_pipes else output,
                    stderr=output if has_pipes else subprocess.STDOUT,
                    env={key: value for key, value in changed.items() if value is not None},
                    cwd=cwd,
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._lines: SimpleQueue[str] = SimpleQueue()
        if has_pipes:
            threading.Thread(target=self._read, name=f"output of {self.name}", daemon=True).start()

    # -- running -------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """The exit status; None while it runs."""
        return self._process.poll()

    def check(self) -> None:
        """Raise ChildError, with the end of its log, when it has ended."""
        if self.status is not None:
            raise ChildError(self._describe_end())

    def tell(self, line: str) -> None:
        """Write a line to its stdin."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def take_lines(self) -> Iterator[str]:
        """The lines it wrote to stdout since the last call."""
        while True:
            try:
                yield self._lines.get_nowait()
            except Empty:
                return

    def read_memory(self) -> dict[str, int]:
        """Resident bytes: RssAnon (its own), RssFile (of files) and RssShmem (shared, the middleware's)."""
        found = {}
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, rest = line.partition(":")
            if name in ("RssAnon", "RssFile", "RssShmem"):
                found[name] = 1024 * int(rest.split()[0])
        return found

    def read_waiting(self) -> float:
        """Seconds that its threads have been ready to run without a CPU."""
        waited_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            try:
                waited_ns += int((task / "schedstat").read_text().split()[1])
            except OSError:
                continue  # the thread has just ended, or this kernel has no such file
        return waited_ns / 1e9

    # -- ending --------------------------------------------------------------------------------

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self.status is None:
            self._process.send_signal(number)

    def wait(self, seconds: float) -> int | None:
        """The exit status, or None when it does not end in time."""
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def stop(self, meanwhile: Callable[[], None] = lambda: time.sleep(0.02)) -> str:
        """Ask it to end with SIGINT, kill it after GRACE; "" or what went wrong.

        meanwhile: called again and again while waiting. A process that has ended already is no failure.
        """
        if self._process.poll() is not None:
            return ""
        self._process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + self.GRACE
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                self.kill()
                return f"the {self.name} did not end within {self.GRACE:.0f} s of SIGINT and was killed"
            meanwhile()
        return self._describe_end() if self.status else ""

    def kill(self) -> None:
        """End it and all processes it started at once, also when it is stopped (SIGSTOP)."""
        if self.status is None:
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()

    # -- its log -------------------------------------------------------------------------------

    @property
    def output(self) -> str:
        """Its log so far."""
        return self.log.read_text(errors="replace")

    def last_lines(self, count: int = 12) -> str:
        """The end of its log."""
        return "\n".join(self.output.splitlines()[-count:])

    def find_unclean(self) -> str:
        """What its log holds that no process should write; "" when nothing."""
        found = UNCLEAN.search(self.output)
        return found.group(0) if found else ""

    def _describe_end(self) -> str:
        return f"the {self.name} ended with status {self.status}:\n{self.last_lines()}"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line.decode(errors="replace").strip())
