# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM end a measurement at once, never the writing of its results.

A measurement is one long computation in the main thread, so a signal raises there; programs that wait for
events end by `processes.Shutdown`.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from types import FrameType
from typing import Any, Self

from oxygen_ros.processes import SIGNALS


class Stopped(BaseException):
    """A signal asked the run to end; with the exit code of that signal."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class StopSignals:
    """Inside the `with`, the first SIGINT or SIGTERM raises Stopped wherever the main thread is; it may do so
    on entering. Later ones change nothing: the rest is short."""

    def __init__(self, others: Iterable[signal.Signals] = ()) -> None:
        """others: further signals that end the run, as that of a timer"""
        self._numbers = SIGNALS.union(others)
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._stop) for number in self._numbers}
        # The executables block them until now: one from during the imports raises here.
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, self._numbers)
        except Stopped:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """No signal raises in here: the results must be written whole."""
        for number in self._numbers:
            signal.signal(number, signal.SIG_IGN)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.ignore()
        raise Stopped(128 + number)
