# SPDX-License-Identifier: Apache-2.0
"""Measuring times: clocks, timed model calls, works that run in turn, and their statistics."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from oxygen_ros.models.interface import Model

Clock = Callable[[], float]
# Called with the current work, for a progress bar.
Progress = Callable[[str], None]
# The model's calls; the rest of a tick is the engine's own time.
_CALLS = ("process", "encode", "denoise", "unprocess", "complete", "fork", "extend", "detokenize")


def make_wait(device: torch.device) -> Callable[[], None]:
    """A function that waits until the device is idle."""
    if device.type == "cuda":
        return lambda: torch.cuda.synchronize(device)
    return lambda: None


def median(seconds: Sequence[float]) -> float:
    """The middle one, of an even number the upper of the two."""
    return sorted(seconds)[len(seconds) // 2]


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    return {
        "p50": float(np.percentile(seconds, 50)) * 1e3,
        "p99": float(np.percentile(seconds, 99)) * 1e3,
        "max": float(np.max(seconds)) * 1e3,
    }


def time_repeats(
    work: Callable[[], object], wait: Callable[[], None], clock: Clock, count: int
) -> list[float]:
    """Seconds of `count` repeats, after one that is not counted."""
    seconds = []
    for _ in range(count + 1):
        wait()
        started = clock()
        work()
        wait()
        seconds.append(clock() - started)
    return seconds[1:]


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """No garbage collection inside ticks, for every mode alike: the caller collects between them."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()


class PausableClock:
    """Seconds for which it ran; it stops until it is resumed."""

    def __init__(self, clock: Clock) -> None:
        self.base = clock
        self._before = 0.0
        self._since: float | None = None

    def __call__(self) -> float:
        return self._before if self._since is None else self._before + self.base() - self._since

    @contextmanager
    def running(self) -> Iterator[None]:
        self._since = self.base()
        try:
            yield
        finally:
            self._before = self()
            self._since = None


class CallTimer:
    """Times every call into one model object: the object's methods are replaced by timed ones.

    On a GPU a call returns before its work is done; with `waits` every call waits for it, which the
    timeline of one tick needs and measured ticks must not have.
    """

    def __init__(self, model: Model, clock: Clock) -> None:
        self._clock = clock
        self.waits = False
        self.calls: list[tuple[str, float, float]] = []
        self._wait = make_wait(model.device)
        for name in _CALLS:
            setattr(model, name, self._timed(name, getattr(model, name)))

    @property
    def seconds(self) -> float:
        """Of all calls so far."""
        return sum(end - start for _, start, end in self.calls)

    def _timed(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any, **named: Any) -> Any:
            started = self._clock()
            result = call(*arguments, **named)
            if self.waits:
                self._wait()
            self.calls.append((name, started, self._clock()))
            return result

        return timed


class InterleavedTimer:
    """Named works that run in turn, so that other load on the machine slows them alike.

    On a CPU with one torch thread the seconds are CPU time of the thread, without other programs. Else they
    are wall time.
    """

    def __init__(self, device: torch.device) -> None:
        self._wait = make_wait(device)
        alone = device.type == "cpu" and torch.get_num_threads() == 1
        self._clock = time.thread_time if alone else time.perf_counter
        self.clock = "thread" if alone else "wall"
        self._works: dict[str, Callable[[], object]] = {}
        self._seconds: list[dict[str, float]] = []  # of each complete round

    def add(self, name: str, work: Callable[[], object]) -> None:
        self._works[name] = work

    @torch.inference_mode()
    def run(self, rounds: int, progress: Progress = lambda _: None) -> None:
        """One round that is not counted, then `rounds`, forwards and backwards in turn.

        Interrupted, it keeps the rounds that were complete.
        """
        for number in range(-1, rounds):
            progress(f"round {number + 1} of {rounds}")
            names = list(self._works)
            seconds: dict[str, float] = {}
            for name in names if number % 2 else reversed(names):
                self._wait()
                started = self._clock()
                self._works[name]()
                self._wait()
                seconds[name] = self._clock() - started
            if number >= 0:
                self._seconds.append(seconds)

    @property
    def rounds(self) -> int:
        """Complete ones."""
        return len(self._seconds)

    def ms(self, name: str) -> float:
        """The median [ms]."""
        return median([row[name] for row in self._seconds]) * 1e3

    def ratio(self, name: str, other: str) -> float:
        """The median over the rounds of one work's time over another's."""
        return median([row[name] / row[other] for row in self._seconds])

    def sum(self, name: str, *parts: str) -> None:
        """A work made of others: their seconds are added round by round."""
        for row in self._seconds:
            row[name] = sum(row[part] for part in parts)
