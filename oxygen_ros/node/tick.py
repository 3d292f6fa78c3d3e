# SPDX-License-Identifier: Apache-2.0
"""One tick of the robot: decode the images, run the session, publish chunk, texts and figures.

Here lives the order of publishing. When a tick comes, and what happens when one fails, is worker.py.
Everything runs in the worker's thread.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray
from sensor_msgs.msg import CompressedImage, Image

from oxygen_ros.engine import FinishReason, Session, TickReport
from oxygen_ros.node.commands import Commands
from oxygen_ros.node.outputs import ChunkTally, Outputs, TickTimes
from oxygen_ros.node.pace import Pace
from oxygen_ros.node.settings import Robot
from oxygen_ros.node.timekeeper import TimeKeeper
from oxygen_ros.observation import Observation
from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.images import ImageError, decode_compressed, decode_image
from oxygen_ros.robot.join import Joiner
from oxygen_ros.robot.limits import LimitedChunk
from oxygen_ros.robot.overlap import Overlap
from oxygen_ros.robot.sample import Sample
from oxygen_ros.robot.sampler import Sampler

PASSED_KEPT = 100  # chunks


class Undecodable(Exception):
    """A required camera's image cannot be read; the sampler was told, and the tick does not start."""


class Ticker:
    """A session between the node's inputs and outputs.

    refusal:  why the last tick's chunk was not published, "" when it was
    refused:  chunks not published since activation
    clamped:  what limits changed in the last chunk
    clamped_total:  actions that limits changed since activation
    late_joins:  chunks of which more had passed at publication than the join's delay says
    late:     seconds (steady) the last tick began after it was due, with its inputs there
    passed:   of the last chunks, how many actions had passed at publication
    """

    def __init__(
        self,
        session: Session,
        robot: Robot,
        topics: Mapping[str, str],
        sampler: Sampler,
        outputs: Outputs,
        commands: Commands,
        keeper: TimeKeeper,
        pace: Pace,
        overlap: Overlap,
    ) -> None:
        """overlap: the session's"""
        self.session = session
        self.refusal = ""
        self.refused = 0
        self.clamped: dict[str, int] = {}
        self.clamped_total = 0
        self.late_joins = 0
        self.passed: deque[int] = deque(maxlen=PASSED_KEPT)
        self.overlap = overlap
        self._spec = session.engine.model.spec
        self._robot = robot
        self._topics = topics
        self._sampler = sampler
        self._outputs = outputs
        self._commands = commands
        self._keeper = keeper
        self._pace = pace
        self._optional = {camera.name for camera in robot.cameras if camera.optional}
        self._columns = [robot.joints.index(name) for name in robot.action_joints]
        self.late = 0.0
        self._due: float | None = None
        self._received_ns = 0
        self._latency = 0.0
        self._published: Chunk | None = None
        self._joiner = Joiner(robot.limits)
        self._holds = self._holds_seen = commands.holds

    @property
    def slowed(self) -> int:
        """Trajectories slowed down where they join the one before."""
        return self._joiner.slowed

    def run(self, sample: Sample, was_awaited: bool) -> TickReport:
        """Tick over a sample and publish everything that comes of it.

        was_awaited: the tick was due before the sample came; periods that passed meanwhile are nobody's fault

        Raises Undecodable before anything ran, or whatever the session raises; then call `abandon`.
        """
        now, now_ns, started = self._keeper.now(), self._keeper.now_ns(), time.monotonic()
        if was_awaited:
            self._pace.pass_over(now)
        wait = self._pace.late(now)
        due, self._due = self._due, None
        self.late = 0.0 if due is None or was_awaited or wait <= 0 else max(started - due, 0.0)
        if was_awaited:
            self._pace.resume(now)
        images = self._decode(sample.images)
        decode = time.monotonic() - started
        covers = self._spec.horizon * self._spec.step
        self._due = self._keeper.steady(
            self._pace.begin(now, now + covers + (sample.stamp_ns - now_ns) / 1e9)
        )
        self._received_ns, self._latency = sample.received_ns, 0.0
        self.refusal, self._published = "", None
        self._heed_hold()
        report = self.session.tick(sample.stamp_ns, images, sample.joints, self._publish, self._due)
        if self._published is not None:
            self._outputs.publish_preview(self._published, sample.joints)
        self._outputs.publish_texts(report.finished)
        times = TickTimes(wait, decode, self._pace.skipped, self._latency)
        judged = ChunkTally(self.refused, sum(self.clamped.values()), self.clamped_total)
        self._outputs.publish_tick(report, self.session, sample, times, judged)
        return report

    def abandon(self, reason: FinishReason) -> int:
        """End all texts now and publish what they have so far; how many there were."""
        self._due = None
        ended = self.session.stop(reason)
        self._outputs.publish_texts(ended)
        return len(ended)

    def _decode(self, messages: Mapping[str, object]) -> dict[str, NDArray[np.uint8]]:
        images: dict[str, NDArray[np.uint8]] = {}
        for camera, message in messages.items():
            try:
                images[camera] = _decode(message, self._topics[camera])
            except ImageError as error:
                self._sampler.blame(camera, str(error))
                if camera not in self._optional:
                    raise Undecodable(str(error)) from error
        return images

    def _publish(self, tick: int, observation: Observation, actions: NDArray[np.float64]) -> None:
        """Called by the session as soon as the actions are there; text has not advanced yet."""
        try:
            limited = self._limit(observation, actions)
            now_ns = self._keeper.now_ns()
            first_valid = limited.chunk.first_valid(now_ns)
            if first_valid >= limited.chunk.horizon:
                raise ChunkError(
                    f"chunk refused: ready {(now_ns - observation.stamp) / 1e9:.3f} s after its observation "
                    f"and covers {limited.chunk.covers_s:.3f} s"
                )
            self._outputs.publish_chunk(limited.chunk, tick, first_valid)
            self._latency = (time.monotonic_ns() - self._received_ns) / 1e9
            self._pace.has_published()
            self._published = limited.chunk
            self._remember(limited.chunk, first_valid)
            self._command(limited.chunk, observation.joints[self._columns])
        except ChunkError as error:
            self.refusal = str(error)
            self.refused += 1

    def _heed_hold(self) -> None:
        """While held, and at the first tick after, nothing of an earlier chunk will have been executed."""
        holds = self._commands.holds
        if self._commands.is_held or holds != self._holds_seen:
            self.overlap.forget()
        self._holds_seen = holds

    def _remember(self, chunk: Chunk, passed: int) -> None:
        """What the next chunk joins."""
        if not self._commands.is_held:
            self.overlap.remember(chunk)
        self.passed.append(passed)
        rule = self.overlap.rule
        self.late_joins += rule.mode != "replace" and passed > rule.delay

    def _command(self, chunk: Chunk, observed: NDArray[np.float64]) -> None:
        """The same chunk for a controller, joined to what that follows now."""
        holds = self._commands.holds
        if holds != self._holds or not self._commands.may_move:
            self._joiner.forget()
            self._holds = holds
        if self._commands.may_move:
            offsets, positions = self._joiner.join(chunk, observed, self._keeper.now_ns())
            self._commands.send(chunk, offsets, positions)

    def _limit(self, observation: Observation, actions: NDArray[np.float64]) -> LimitedChunk:
        chunk = Chunk(
            observation.stamp,
            self._spec.step,
            self._robot.action_joints,
            np.ascontiguousarray(actions, np.float64),
            self._spec.representation,
        )
        chunk = self.overlap.blend(chunk)
        limited = self._robot.limits.apply(chunk, observation.joints[self._columns])
        self.clamped = limited.clamped
        self.clamped_total += sum(limited.clamped.values())
        return limited


def _decode(message: object, topic: str) -> NDArray[np.uint8]:
    if isinstance(message, Image):
        return decode_image(
            message.encoding, message.height, message.width, message.step, message.is_bigendian,
            message.data, topic,
        )  # fmt: skip
    assert isinstance(message, CompressedImage)
    return decode_compressed(message.format, message.data, topic)
