# SPDX-License-Identifier: Apache-2.0
"""Runs a command as the terminal's foreground job, so that Ctrl-C reaches it and not the `make` around it.

`make` ends with an error when it gets Ctrl-C itself; this way the command ends with its own status, and so
does `make`. Signals sent to this process are handed on. Exit status: the command's.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from types import FrameType


def take_terminal(group: int) -> None:
    """Make `group` the foreground job of the terminal on stdin."""
    # A background job may not change this without being stopped by SIGTTOU.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    try:
        os.tcsetpgrp(sys.stdin.fileno(), group)
    finally:
        signal.signal(signal.SIGTTOU, before)


def main() -> int:
    if len(sys.argv) < 2:
        print("usage: run_foreground.py COMMAND [ARGUMENT ...]", file=sys.stderr)
        return 2
    try:
        ours = os.isatty(sys.stdin.fileno()) and os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (OSError, ValueError):  # no stdin, or no controlling terminal
        ours = False
    if shutil.which(sys.argv[1]) is None:
        print(f"{sys.argv[1]} is not on PATH: make build, then source scripts/env.sh", file=sys.stderr)
        return 127
    # A group of its own only with a terminal: without one, signals to our group must reach the command.
    child = subprocess.Popen(sys.argv[1:], process_group=0 if ours else None)

    def hand_on(number: int, frame: FrameType | None) -> None:
        if child.poll() is None:
            child.send_signal(number)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    if ours:
        take_terminal(child.pid)
    try:
        status = child.wait()
    finally:
        if ours:
            take_terminal(os.getpgrp())
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main())
