# SPDX-License-Identifier: Apache-2.0
"""Synchronizes the input streams: the newest images that belong together, and the joints at that instant.

It decides what belongs together and what is too old, and explains what is missing otherwise. It decodes
nothing (payloads are opaque), uses no ROS and reads no clock.

Threads: every method of `Synchronizer` is called from ONE thread, the worker. Subscription callbacks only
queue messages, and the worker adds them before it takes a set. So there is no lock.

Two clocks are used and never compared. Stamps and `now_ns` are on the ROS clock; `received_ns` may be on a
steady clock and serves rates alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.robot.joints import JointBuffer
from oxygen_ros.robot.streams import JOINTS, Reason, Stream, StreamFigures, StreamProblem, StreamStatus

# Of one camera: bounds the memory whatever the rate; 0.3 s at 400 Hz.
MAX_IMAGES = 128


@dataclass(frozen=True, slots=True)
class InputSet:
    """Inputs coherent in time.

    stamp_ns:      the instant: the oldest stamp among the required cameras' images. Optional cameras do
                   not move it, so that a late optional image does not make a new instant.
    images:        camera -> payload as it was added; optional cameras may be absent
    joints:        float64 [J] at `stamp_ns`, in the buffer's order
    age_ns:        now - stamp_ns; below zero when the stamp is a little ahead
    skew_ns:       newest image stamp less the oldest, optional cameras included
    image_stamps:  camera -> stamp of its image
    received_ns:   when the last of these images was received [ns, the clock of `add_image`'s `received_ns`]
    is_new:        whether the instant differs from that of the set taken before
    """

    stamp_ns: int
    images: dict[str, object]
    joints: NDArray[np.float64]
    age_ns: int
    skew_ns: int
    image_stamps: dict[str, int]
    received_ns: int
    is_new: bool


@dataclass(frozen=True, slots=True)
class Missing:
    """No coherent inputs; `problems` has each stream at fault and is never empty."""

    problems: tuple[StreamProblem, ...]

    def __str__(self) -> str:
        return "; ".join(map(str, self.problems))


class Synchronizer:
    """Keeps a short history of each stream and takes the newest coherent set from it.

    cameras:           the cameras a set must have; those also named in `optional_cameras` need not be there
    joints:            the joints' history, which the synchronizer owns from now on
    max_skew_ns:       largest distance between the stamps of one set's images [ns]
    max_age_ns:        largest age of any stamp at the time of taking, largest distance of a joint
                       reading from the instant, and how far ahead of now a stamp may lie [ns]
    optional_cameras:  taken where they fit a set, else left out
    optional:          the same

    Images are kept until `take` or `discard_old` finds them older than `max_age_ns`: transport delays of
    cameras may differ by less than that. At most MAX_IMAGES of a camera are kept, those that arrived last.
    """

    def __init__(
        self,
        cameras: Sequence[str],
        joints: JointBuffer,
        max_skew_ns: int,
        max_age_ns: int,
        optional_cameras: Sequence[str] = (),
    ) -> None:
        self._required = tuple(camera for camera in cameras if camera not in optional_cameras)
        self.optional = tuple(optional_cameras)
        names = (*self._required, *self.optional)
        if not self._required:
            raise ValueError(f"at least one camera must be required; optional are {list(optional_cameras)}")
        if len(set(names)) != len(names) or JOINTS in names:
            raise ValueError(f"camera names must differ from each other and from {JOINTS!r}: {list(names)}")
        if max_skew_ns < 0 or max_age_ns <= 0:
            raise ValueError(f"max_skew_ns {max_skew_ns} must be >= 0, max_age_ns {max_age_ns} > 0")
        self._joints = joints
        self._max_skew_ns = max_skew_ns
        self._max_age_ns = max_age_ns
        self._streams = {name: Stream(name) for name in (*names, JOINTS)}
        # stamp -> (payload, time of receipt), in order of arrival
        self._images: dict[str, dict[int, tuple[object, int]]] = {name: {} for name in names}
        self._last_taken_ns: int | None = None
        self._last_now_ns: int | None = None
        self._latest_receipt_ns = 0

    def add_image(self, camera: str, stamp_ns: int, payload: object, received_ns: int) -> None:
        """Keep an image. Any order; a second one with the same stamp replaces the first.

        Raises ValueError for a camera that is none of its own.
        """
        if camera not in self._images:
            raise ValueError(f"camera {camera!r} is not one of {list(self._images)}")
        self._latest_receipt_ns = received_ns
        if not self._streams[camera].receive(stamp_ns, received_ns):
            return
        images = self._images[camera]
        if stamp_ns not in images and len(images) >= MAX_IMAGES:
            # First in, first out, whatever the stamps: after an unnoticed jump the new ones stay.
            del images[next(iter(images))]
        images[stamp_ns] = payload, received_ns

    def add_joints(
        self,
        stamp_ns: int,
        names: Sequence[str],
        positions: Sequence[float] | NDArray[np.float64],
        received_ns: int,
    ) -> None:
        """Merge one JointState (see JointBuffer.add)."""
        self._latest_receipt_ns = received_ns
        stream = self._streams[JOINTS]
        if not stream.receive(stamp_ns, received_ns):
            return
        rejections = self._joints.add(stamp_ns, names, positions)
        if rejections:
            stream.blame(StreamProblem(JOINTS, "rejected", joints=tuple(rejections)))

    def blame(self, stream: str, cause: str) -> None:
        """Record that a stream's content was refused elsewhere, as a payload that does not decode."""
        self._streams[stream].blame(StreamProblem(stream, "rejected", cause))

    def take(self, now_ns: int) -> InputSet | Missing:
        """The newest coherent set at `now_ns` (ROS clock), or what is missing.

        A set is one image of every required camera, stamps within `max_skew_ns` of each other, and the
        joints sampled at the oldest of them; no stamp used is older than `max_age_ns`. Of all sets the
        one with the newest instant is taken, and of those the one with the least skew.

        The same set may be taken again (`InputSet.is_new`). Content is never compared: a robot at rest
        looks the same and is still to be acted on. A `now_ns` that went back further than `max_age_ns`
        means the clock jumped: everything is forgotten, as `clear` does.
        """
        if self._last_now_ns is not None and now_ns < self._last_now_ns - self._max_age_ns:
            self.clear()
        self._last_now_ns = now_ns
        within = (now_ns - self._max_age_ns, now_ns + self._max_age_ns)
        self._drop_unusable(now_ns, within)
        newest_ns: int | None = None
        for stamps in self._find_sets():
            instant = min(stamps.values())
            newest_ns = instant if newest_ns is None else newest_ns
            joints = self._joints.sample(instant, self._max_age_ns, within)
            if joints is not None:
                result: InputSet | Missing = self._build_set(instant, stamps, joints, now_ns)
                break
        else:
            result = Missing(tuple(self._find_problems(newest_ns, now_ns, within)))
        for stream in self._streams.values():
            stream.counted_before = stream.count
        return result

    def discard_old(self, now_ns: int) -> None:
        """Drop images that `take` could not use any more, where takes are rare: images are large."""
        oldest = now_ns - self._max_age_ns
        for images in self._images.values():
            for stamp_ns in [stamp for stamp in images if stamp < oldest]:
                del images[stamp_ns]

    def status(self, now_ns: int) -> list[StreamStatus]:
        """Figures of every stream, for diagnostics: required cameras, optional ones, joints."""
        newest = [
            stream.last_ns
            for name, stream in self._streams.items()
            if name != JOINTS and stream.last_ns is not None
        ]
        return [
            StreamStatus(
                stream=name,
                rate_hz=stream.rate_hz(self._latest_receipt_ns),
                age_ns=None if stream.last_ns is None else now_ns - stream.last_ns,
                skew_ns=None if stream.last_ns is None or not newest else max(newest) - stream.last_ns,
                count=stream.count,
                received_ns=stream.receipts[-1] if stream.receipts else None,
                problem=stream.problem,
                faulty=stream.faulty,
            )
            for name, stream in self._streams.items()
        ]

    def clear(self) -> None:
        """Forget all inputs: on a backward clock jump, when a bag starts again, at activation."""
        for images in self._images.values():
            images.clear()
        for stream in self._streams.values():
            stream.clear()
        self._joints.clear()
        self._last_taken_ns = None
        self._last_now_ns = None

    def _drop_unusable(self, now_ns: int, within: tuple[int, int]) -> None:
        """Drop what is too old, and what is stamped too far ahead: it would pass for fresh long after it was
        taken."""
        oldest, newest = within
        for camera, images in self._images.items():
            for stamp_ns in [stamp for stamp in images if not oldest <= stamp <= newest]:
                del images[stamp_ns]
                if stamp_ns > newest:
                    self._blame_future(camera, stamp_ns, now_ns)
        last_joint_ns = self._joints.newest_ns
        if last_joint_ns is not None and self._joints.discard_after(newest):
            self._blame_future(JOINTS, last_joint_ns, now_ns)

    def _blame_future(self, stream: str, stamp_ns: int, now_ns: int) -> None:
        problem = StreamProblem(stream, "future", offset_ns=stamp_ns - now_ns, limit_ns=self._max_age_ns)
        self._streams[stream].blame(problem)

    def _find_sets(self) -> Iterator[dict[str, int]]:
        """Stamps by camera of every coherent set of required cameras, newest instant first."""
        stamps = {camera: sorted(self._images[camera]) for camera in self._required}
        for instant in sorted({stamp for column in stamps.values() for stamp in column}, reverse=True):
            chosen: dict[str, int] = {}
            for camera, column in stamps.items():
                at = bisect_left(column, instant)
                if at == len(column) or column[at] - instant > self._max_skew_ns:
                    break
                chosen[camera] = column[at]
            else:
                yield chosen

    def _build_set(
        self, instant: int, required: Mapping[str, int], joints: NDArray[np.float64], now_ns: int
    ) -> InputSet:
        stamps = dict(required)
        for camera in self.optional:
            first, last = min(stamps.values()), max(stamps.values())
            fitting = [
                stamp
                for stamp in self._images[camera]
                if max(last, stamp) - min(first, stamp) <= self._max_skew_ns
            ]
            if fitting:
                stamps[camera] = min(fitting, key=lambda stamp: abs(stamp - instant))
        is_new = instant != self._last_taken_ns
        self._last_taken_ns = instant
        return InputSet(
            stamp_ns=instant,
            images={camera: self._images[camera][stamp][0] for camera, stamp in stamps.items()},
            joints=joints,
            age_ns=now_ns - instant,
            skew_ns=max(stamps.values()) - min(stamps.values()),
            image_stamps=stamps,
            received_ns=max(self._images[camera][stamp][1] for camera, stamp in stamps.items()),
            is_new=is_new,
        )

    def _find_problems(
        self, newest_ns: int | None, now_ns: int, within: tuple[int, int]
    ) -> Iterator[StreamProblem]:
        """What keeps the inputs from being coherent. `newest_ns`: the newest instant with all images."""
        absent = [camera for camera in self._required if not self._images[camera]]
        for camera in absent:
            yield self._explain_absence(camera, now_ns)
        if not absent and newest_ns is None:
            yield from self._explain_skew(now_ns)
        yield from self._explain_joints(now_ns if newest_ns is None else newest_ns, now_ns, within)

    def _look(self, stream: str, now_ns: int) -> StreamFigures:
        return self._streams[stream].look(now_ns, self._latest_receipt_ns)

    def _explain_absence(self, camera: str, now_ns: int) -> StreamProblem:
        stream, figures = self._streams[camera], self._look(camera, now_ns)
        if stream.count == 0:
            return StreamProblem(camera, "silent", figures=figures)
        if stream.faulty and stream.problem is not None:
            return replace(stream.problem, figures=figures)
        return StreamProblem(camera, "stale", limit_ns=self._max_age_ns, figures=figures)

    def _explain_skew(self, now_ns: int) -> Iterator[StreamProblem]:
        """Name the cameras that have no image near one of the camera with the newest; else all others."""
        stamps = {camera: self._images[camera] for camera in self._required}
        lead = max(stamps, key=lambda camera: max(stamps[camera]))
        distances = {
            camera: min(abs(a - b) for a in own for b in stamps[lead])
            for camera, own in stamps.items()
            if camera != lead
        }
        apart = {camera: gap for camera, gap in distances.items() if gap > self._max_skew_ns}
        for camera, gap in (apart or distances).items():
            yield StreamProblem(
                camera,
                "unsynchronized",
                offset_ns=gap,
                limit_ns=self._max_skew_ns,
                lead=lead,
                behind_ns=max(stamps[lead]) - max(stamps[camera]),
                figures=self._look(camera, now_ns),
            )

    def _explain_joints(self, instant: int, now_ns: int, within: tuple[int, int]) -> Iterator[StreamProblem]:
        faults = tuple(self._joints.find_faults(instant, self._max_age_ns, within))
        if not faults:
            return
        stream, figures = self._streams[JOINTS], self._look(JOINTS, now_ns)
        if stream.faulty and stream.problem is not None:
            # The last message's own fault first, unless it is one of these.
            known = stream.problem.joints
            joints = faults if known and set(faults) <= set(known) else (*known, *faults)
            yield replace(stream.problem, joints=joints, figures=figures)
            return
        # Of several reasons the one nearest to the cause.
        reasons: tuple[Reason, ...] = ("rejected", "stale", "silent")
        reason = next(reason for reason in reasons if any(fault.reason == reason for fault in faults))
        yield StreamProblem(JOINTS, reason, joints=faults, figures=figures)
