# SPDX-License-Identifier: Apache-2.0
"""Why the inputs are not coherent: for each stream at fault what it lacks, by how much, and the limit.

Here lives the wording and the choice of whom to blame; what is coherent is decided in sampler.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from oxygen_ros.robot.joints import JointBuffer, summarise
from oxygen_ros.robot.streams import JOINTS, Reason, Stream, StreamProblem


@dataclass(frozen=True, slots=True)
class Look:
    """What the sampler saw when it found no coherent set.

    stamps:             stamps of the images kept of each required camera
    streams:            of all cameras and of the joints
    joints:             the joints' history
    now_ns:             time of taking (ROS clock); within: oldest and newest stamp that may be used then
    latest_receipt_ns:  last receipt of any stream
    max_skew_ns, max_age_ns:  the sampler's limits
    """

    stamps: Mapping[str, Collection[int]]
    streams: Mapping[str, Stream]
    joints: JointBuffer
    now_ns: int
    within: tuple[int, int]
    latest_receipt_ns: int
    max_skew_ns: int
    max_age_ns: int

    def find_problems(self, newest_ns: int | None) -> Iterator[StreamProblem]:
        """What keeps the inputs from being coherent. `newest_ns`: the newest instant with all images."""
        absent = [camera for camera, stamps in self.stamps.items() if not stamps]
        for camera in absent:
            yield self._explain_absence(camera)
        if not absent and newest_ns is None:
            yield from self._explain_skew()
        yield from self._explain_joints(self.now_ns if newest_ns is None else newest_ns)

    def _describe(self, stream: str) -> str:
        return self.streams[stream].describe(self.now_ns, self.latest_receipt_ns)

    def _explain_absence(self, camera: str) -> StreamProblem:
        stream = self.streams[camera]
        words = self._describe(camera)
        if stream.count == 0:
            return StreamProblem(
                camera,
                "silent",
                f"no image received yet; is it published, and is its QoS compatible? ({words})",
            )
        if stream.faulty and stream.problem is not None:
            return StreamProblem(camera, stream.problem.reason, f"{stream.problem.detail} ({words})")
        return StreamProblem(
            camera, "stale", f"newest image is older than {self.max_age_ns / 1e9:.3f} s ({words})"
        )

    def _explain_skew(self) -> Iterator[StreamProblem]:
        """Name the cameras that have no image near one of the camera with the newest; else all others."""
        lead = max(self.stamps, key=lambda camera: max(self.stamps[camera]))
        distances = {
            camera: min(abs(a - b) for a in stamps for b in self.stamps[lead])
            for camera, stamps in self.stamps.items()
            if camera != lead
        }
        apart = {camera: gap for camera, gap in distances.items() if gap > self.max_skew_ns}
        for camera, gap in (apart or distances).items():
            behind = max(self.stamps[lead]) - max(self.stamps[camera])
            yield StreamProblem(
                camera,
                "unsynchronised",
                (
                    f"skew to {lead!r} is {gap / 1e9:.3f} s at best (limit for all cameras together "
                    f"{self.max_skew_ns / 1e9:.3f} s), its newest image is {behind / 1e9:.3f} s behind "
                    f"({self._describe(camera)})"
                ),
            )

    def _explain_joints(self, instant: int) -> Iterator[StreamProblem]:
        faults = list(self.joints.find_faults(instant, self.max_age_ns, self.within))
        if not faults:
            return
        stream = self.streams[JOINTS]
        reasons = {reason for _, reason, _ in faults}
        words = summarise(sentence for _, _, sentence in faults)
        if stream.faulty and stream.problem is not None:
            reason: Reason = stream.problem.reason
            if words not in stream.problem.detail:
                words = f"{stream.problem.detail}; {words}"
        else:
            # Of several the one that says most about the cause.
            reason = "rejected" if "rejected" in reasons else "stale" if "stale" in reasons else "silent"
        yield StreamProblem(JOINTS, reason, f"{words} ({self._describe(JOINTS)})")
