# SPDX-License-Identifier: Apache-2.0
"""Publishers of what the node makes, and their messages.

Here lives no decision about what is published. All but the constructor and `destroy` is called by the worker.
Numbers go into array fields as `array.array`: other sequences are copied element by element. Messages of a
tick are made once and filled anew.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from visualization_msgs.msg import Marker, MarkerArray

from oxygen_ros.engine import FinishedText, Session, TickReport
from oxygen_ros.msg import ActionChunk, TextOutput, TickStats
from oxygen_ros.node import qos
from oxygen_ros.node.commands import to_time
from oxygen_ros.node.parameters import KINDS
from oxygen_ros.node.settings import Robot, Settings
from oxygen_ros.robot.chunk import Chunk
from oxygen_ros.robot.sample import Sample

_REPRESENTATIONS = {
    "position": ActionChunk.POSITION,
    "velocity": ActionChunk.VELOCITY,
}


@dataclass(frozen=True, slots=True)
class TickTimes:
    """What the engine does not know of a tick: seconds waited for its start and spent decoding images;
    latency: seconds from the newest image's receipt to the chunk's publication (0: there was none)."""

    wait: float
    decode: float
    skipped: int
    latency: float


@dataclass(frozen=True, slots=True)
class ChunkTally:
    """What limits did: chunks refused since activation, actions clamped in this chunk and since then."""

    refused: int
    clamped: int
    clamped_total: int


class Outputs:
    """The node's publishers. Made in configure, before the worker starts."""

    def __init__(self, node: Node, settings: Settings, robot: Robot, deadline: float) -> None:
        """deadline: offered for chunks [s]"""
        self._node = node
        self._profiles: dict[str, QoSProfile] = {}
        self._publishers: list[Publisher] = []
        self._chunks = self._advertise(ActionChunk, "action_chunk", qos.make_chunk_profile(deadline))
        self._texts = self._advertise(TextOutput, "text", qos.TEXT)
        self._strings = {kind: self._advertise(String, kind, qos.TEXT) for kind in KINDS}
        self._ticks = self._advertise(TickStats, "tick", qos.TICK)
        self._markers = self._advertise(MarkerArray, "markers", qos.TEXT)
        self._preview = self._advertise(JointState, "preview/joint_states", qos.NEWEST)
        self._chunk = ActionChunk(joint_names=list(robot.action_joints))
        self._stats = TickStats()
        self._ghost = JointState(name=list(robot.joints))
        self._columns = [robot.joints.index(name) for name in robot.action_joints]
        self._marker = _make_marker(settings)
        self._last_words: dict[str, str] = {}

    def publish_chunk(self, chunk: Chunk, tick: int, first_valid: int) -> None:
        """The real-time topic; before any text of the tick."""
        message = self._chunk
        message.header.stamp = to_time(chunk.stamp_ns)
        message.tick = tick
        message.representation = _REPRESENTATIONS[chunk.representation]
        message.step = chunk.step
        message.horizon = chunk.horizon
        message.first_valid = first_valid
        message.values = array.array("f", chunk.values.astype(np.float32).tobytes())
        message.valid_until = to_time(chunk.valid_until_ns)
        self._chunks.publish(message)

    def publish_preview(self, chunk: Chunk, joints: NDArray[np.float64]) -> None:
        """Where the chunk ends, as joint states of a ghost robot. joints: float64 [J], observed."""
        if chunk.representation != "position":
            return
        pose = joints.copy()
        pose[self._columns] = chunk.values[-1]
        self._ghost.header.stamp = to_time(chunk.valid_until_ns)
        self._ghost.position = array.array("d", pose.tobytes())
        self._preview.publish(self._ghost)

    def publish_texts(self, texts: Sequence[FinishedText]) -> None:
        """Every ended text with all its figures; those that are complete also as plain strings."""
        for text in texts:
            message = TextOutput(
                tick_asked=text.tick_asked,
                tick_finished=text.tick_finished,
                id=text.id,
                kind=text.kind,
                prompt=text.prompt,
                text=text.text,
                finish_reason=str(text.finish_reason),
                tokens=len(text.tokens),
                steps=text.steps,
                seconds=text.seconds,
                instruction=text.instruction,
                memory=text.memory,
                subtask=text.subtask,
                adapter=text.task.adapter,
                seed=text.task.seed,
                temperature=text.task.temperature,
                top_p=text.task.top_p,
            )
            message.header.stamp = to_time(text.stamp)
            self._texts.publish(message)
            if text.finish_reason.is_complete and text.kind in self._strings:
                self._strings[text.kind].publish(String(data=text.text))
                self._show(text)

    def publish_tick(
        self, report: TickReport, session: Session, sample: Sample, times: TickTimes, tally: ChunkTally
    ) -> None:
        """The figures of one tick."""
        engine, phases = session.engine, report.phases
        counters = engine.counters
        message = self._stats
        message.tick = report.tick
        message.mode = engine.mode
        message.wait = times.wait
        message.process = times.decode + phases.process
        message.prefill = phases.prefill
        message.denoise = phases.denoise
        message.publish = report.publish
        message.text = phases.text
        message.latency = times.latency
        message.age = sample.age_ns / 1e9
        message.skew = sample.skew_ns / 1e9
        message.granted_steps = phases.granted_steps
        message.used_steps = phases.used_steps
        message.rows = phases.rows
        message.requests_live = report.live
        message.finished = counters.finished
        message.expired = counters.expired
        message.rejected = counters.rejected + counters.dropped
        message.memories_dropped = report.memories_dropped
        message.frame_slots_used = engine.frames.used
        message.frame_slots_total = engine.frames.size
        message.suffix_slots_used = engine.suffixes.used
        message.suffix_slots_total = engine.suffixes.size
        message.ticks_skipped = times.skipped
        message.prefills = counters.prefills
        message.actions_clamped = tally.clamped
        message.actions_clamped_total = tally.clamped_total
        message.chunks_refused = tally.refused
        message.header.stamp = to_time(report.stamp)
        self._ticks.publish(message)

    def find_mismatches(self) -> Mapping[str, str]:
        """topic -> who subscribes to it with a profile that hears nothing. The executor's."""
        found: dict[str, str] = {}
        for topic, profile in self._profiles.items():
            complaints = [
                complaint
                for subscription in self._node.get_subscriptions_info_by_topic(topic)
                if (complaint := qos.explain_subscription(subscription, profile))
            ]
            if complaints:
                found[topic] = "; ".join(complaints)
        return found

    def flush(self, seconds: float) -> None:
        """Wait until listeners have the last texts, so that they are not lost with the process."""
        self._texts.wait_for_all_acked(Duration(nanoseconds=int(seconds * 1e9)))

    def destroy(self) -> None:
        for publisher in self._publishers:
            self._node.destroy_publisher(publisher)

    def _advertise(self, kind: type, topic: str, profile: QoSProfile) -> Publisher:
        publisher = self._node.create_publisher(kind, f"~/{topic}", profile)
        self._publishers.append(publisher)
        self._profiles[publisher.topic_name] = profile
        return publisher

    def _show(self, text: FinishedText) -> None:
        """The last words of each kind in RViz, one line a kind."""
        self._last_words[text.kind] = text.text
        lines = [f"{kind}: {self._last_words[kind]}" for kind in KINDS if kind in self._last_words]
        self._marker.text = "\n".join(lines)
        self._markers.publish(MarkerArray(markers=[self._marker]))


def _make_marker(settings: Settings) -> Marker:
    marker = Marker(ns="oxygen", id=0, type=Marker.TEXT_VIEW_FACING, action=Marker.ADD)
    # Stamp zero: shown at the frame's newest transform. No lifetime: the words stand until others come.
    marker.header.frame_id = settings["markers.frame"]
    marker.pose.position.z = settings["markers.height"]
    marker.pose.orientation.w = 1.0
    marker.scale.z = settings["markers.size"]
    marker.color.r = marker.color.g = marker.color.b = marker.color.a = 1.0
    return marker
