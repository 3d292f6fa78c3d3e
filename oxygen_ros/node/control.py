# SPDX-License-Identifier: Apache-2.0
"""One control tick: decode, act, limit and publish the chunk, then advance the text. No ROS.

The chunk leaves before any text advances. worker.py decides when a tick runs and handles its errors; its
thread calls everything.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.engine import FinishedText, FinishReason, Session
from oxygen_ros.node.layout import RobotLayout
from oxygen_ros.node.record import ChunkRecord, RunState, TickRecord, TickTimes
from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.images import ImageError, decode_compressed, decode_image
from oxygen_ros.robot.joining import ChunkJoiner, JoinRule, Trajectory
from oxygen_ros.robot.streams import StreamProblem
from oxygen_ros.robot.synchronizer import InputSet

PASSED_KEPT = 100  # chunks


class ChunkPublisher(Protocol):
    """Where chunks go, at once. expert: its place among the model's."""

    def publish_chunk(self, expert: int, chunk: Chunk, tick: int, first_valid: int) -> None: ...


class Commander(Protocol):
    """Where trajectories go. is_held: the robot is on hold; holds: how often it was so far; may_move: whether
    trajectories are published now."""

    @property
    def is_held(self) -> bool: ...
    @property
    def holds(self) -> int: ...
    @property
    def may_move(self) -> bool: ...
    def send(self, joints: Sequence[str], trajectory: Trajectory) -> None: ...


class Undecodable(Exception):
    """A required camera's image cannot be read; the tick does not start."""

    def __init__(self, problem: StreamProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


@dataclass(eq=False)
class ControlLoop:
    """A session between decoded inputs and the publishers, tick after tick.

    session:  its experts are those of `layout`; now_ns: ROS time [ns]
    """

    session: Session
    layout: RobotLayout
    rule: JoinRule
    publisher: ChunkPublisher
    commander: Commander
    now_ns: Callable[[], int]

    def __post_init__(self) -> None:
        self._experts = self.session.engine.model.spec.experts
        experts = (self.layout.expert, *self.layout.other_experts)
        self._columns = {at: self.layout.columns(at) for at in experts}
        self._joiner = ChunkJoiner(self.rule, self.layout.limits, self._columns[self.layout.expert])
        self._holds = self.commander.holds
        self._refused = self._clamped = self._late_joins = 0
        self._passed: deque[int] = deque(maxlen=PASSED_KEPT)

    @property
    def covers(self) -> float:
        """Seconds from an observation to the last action of the commanding expert's chunk."""
        expert = self._experts[self.layout.expert]
        return expert.horizon * expert.step

    def instruct(self, words: str) -> None:
        """Set the instruction from the next tick on. Raises ValueError when the model has no room for it."""
        self.session.instruct(words)
        self._joiner.forget(still_followed=True)

    def decode(
        self, inputs: InputSet, topics: Mapping[str, str], blame: Callable[[str, str], None]
    ) -> dict[str, NDArray[np.uint8]]:
        """Images by camera; an optional camera's that cannot be read is left out.

        topics: camera -> topic; blame: called with the camera and what is wrong with its image

        Raises Undecodable for a required camera.
        """
        images: dict[str, NDArray[np.uint8]] = {}
        for camera, message in inputs.images.items():
            try:
                images[camera] = _decode(message, self.layout.cameras[camera].transport, topics[camera])
            except ImageError as error:
                blame(camera, str(error))
                if not self.layout.cameras[camera].optional:
                    raise Undecodable(StreamProblem(camera, "rejected", cause=str(error))) from error
        return images

    def run(
        self, inputs: InputSet, images: Mapping[str, NDArray[np.uint8]], times: TickTimes, due: float | None
    ) -> TickRecord:
        """Tick over a set of inputs: act, publish, then advance the text.

        images:  of `inputs`, decoded
        times:   known so far
        due:     when the next tick is due on the engine's clock [s]; None if none comes by itself

        An error leaves the slots consistent; call `stop` then.
        """
        stamp, expert = inputs.stamp_ns, self._experts[self.layout.expert]
        holds = self.commander.holds
        if self.commander.is_held or holds != self._holds:
            # While held, and at the first tick after, no earlier chunk is being executed.
            self._joiner.forget()
        self._holds = holds
        leftover = self._joiner.find_leftover(stamp, inputs.joints, expert.horizon, expert.step)
        started = self.session.begin(stamp, images, inputs.joints, leftover)
        began = time.monotonic()
        chunk = self._publish(self.layout.expert, started.actions, inputs, started.tick)
        phases = self.session.engine.phases
        seconds = time.monotonic() - began
        chunk_seconds = phases.process + phases.prefill + phases.denoise + seconds
        times = replace(times, publish=seconds, chunk=chunk_seconds)
        others = tuple(
            self._publish(at, self.session.act(at), inputs, started.tick) for at in self.layout.other_experts
        )
        report = self.session.finish(due)
        return TickRecord(
            tick=report.tick, stamp=stamp, joints=inputs.joints, age=inputs.age_ns / 1e9,
            skew=inputs.skew_ns / 1e9, chunk=chunk, others=others, feedback=report.feedback,
            finished=report.finished, unasked=report.unasked, times=times,
            phases=replace(report.phases), state=self.state(),
        )  # fmt: skip

    def stop(self, reason: FinishReason) -> list[FinishedText]:
        """End all texts now (deactivation, clock jump, error); returns them with what they have so far."""
        self._joiner.forget(still_followed=True)
        return self.session.stop(reason)

    def state(self) -> RunState:
        session, engine, joiner = self.session, self.session.engine, self._joiner
        return RunState(
            mode=engine.mode, instruction=session.instruction, live=engine.live,
            counters=replace(engine.counters),
            prefix_slots=(engine.prefixes.used, engine.prefixes.size),
            suffix_slots=(engine.suffixes.used, engine.suffixes.size),
            feedback_dropped={kind: item.dropped for kind, item in session.feedbacks.items()},
            chunks_refused=self._refused, actions_clamped=self._clamped, late_joins=self._late_joins,
            strayed=joiner.strayed, slowed=joiner.slowed, most_passed=max(self._passed, default=0),
        )  # fmt: skip

    def _publish(self, at: int, actions: NDArray[np.float64], inputs: InputSet, tick: int) -> ChunkRecord:
        """Limit an expert's chunk and publish it; the commanding one's is joined and becomes a trajectory."""
        is_commanding = at == self.layout.expert
        observed = inputs.joints[self._columns[at]]
        record = ChunkRecord(self._experts[at].name)
        try:
            values = np.ascontiguousarray(actions, np.float64)
            chunk = Chunk(inputs.stamp_ns, self._experts[at].step, self.layout.spaces[at], values)
            if is_commanding:
                chunk = self._joiner.blend(chunk)
            limited = self.layout.limits.apply(chunk, observed)
            chunk, record = limited.chunk, replace(record, clamped=limited.clamped)
            now_ns = self.now_ns()
            first_valid = chunk.first_valid(now_ns)
            if first_valid >= chunk.horizon:
                raise ChunkError(
                    f"chunk refused: ready {(now_ns - chunk.stamp_ns) / 1e9:.3f} s after its observation "
                    f"and covers {chunk.covers_s:.3f} s"
                )
            self.publisher.publish_chunk(at, chunk, tick, first_valid)
            latency = (time.monotonic_ns() - inputs.received_ns) / 1e9
            record = replace(record, chunk=chunk, first_valid=first_valid, latency=latency)
            if is_commanding:
                self._passed.append(first_valid)
                rule = self.rule
                self._late_joins += rule.mode != "replace" and first_valid > rule.delay
                self._command(chunk, observed)
        except ChunkError as error:
            record = replace(record, refusal=str(error))
        if is_commanding:
            self._refused += bool(record.refusal)
            self._clamped += sum(record.clamped.values())
        return record

    def _command(self, chunk: Chunk, observed: NDArray[np.float64]) -> None:
        """Send the published chunk to the controller, joined to the trajectory that it follows now."""
        commander, joiner = self.commander, self._joiner
        holds = commander.holds
        if holds != self._holds or not commander.may_move:
            joiner.forget()
        self._holds = holds
        trajectory: Trajectory | None = None
        try:
            if commander.may_move:
                trajectory = joiner.join(chunk, observed, self.now_ns())
                commander.send(chunk.space.joints, trajectory)
        except ChunkError:
            # Too late for the controller: it continues the last trajectory.
            trajectory = joiner.trajectory
            raise
        finally:
            if not commander.is_held:
                joiner.remember(chunk, trajectory)


def _decode(message: Any, transport: str, topic: str) -> NDArray[np.uint8]:
    """message: has the fields of a sensor_msgs/CompressedImage or, where transport is "raw", of an Image"""
    m = message
    if transport == "compressed":
        return decode_compressed(m.format, m.data, topic)
    return decode_image(m.encoding, m.height, m.width, m.step, m.is_bigendian, m.data, topic)
