# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM end a measurement, never the writing of its results.

Here lives the handling of signals only.
"""

from __future__ import annotations

import signal
from types import FrameType, TracebackType
from typing import Any, Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(BaseException):
    """A signal asked the run to end; carries the exit code that says which."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Signals:
    """Inside the `with`, the first SIGINT or SIGTERM raises Stopped wherever the main thread is; it may do so
    on entering. Later ones change nothing: what is left to do is short."""

    def __enter__(self) -> Self:
        self._before: dict[int, Any] = {number: signal.signal(number, self._stop) for number in _SIGNALS}
        # The executables hold them back until now: one that came during the imports raises here.
        try:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
        except Stopped:
            self._restore()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ignore(self) -> None:
        """What is left to do is short and must be whole: the results are written."""
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.ignore()
        raise Stopped(128 + number)
