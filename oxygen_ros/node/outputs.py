# SPDX-License-Identifier: Apache-2.0
"""Publishers of what the node makes, and their messages.

Everything but the constructor, `find_mismatches`, `flush` and `destroy` is called by the worker. Numbers go
into array fields as `array.array`: other sequences are copied element by element. Messages of a tick are made
once and filled anew.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rclpy.duration import Duration
from rclpy.node import Node
from rclpy.publisher import Publisher
from rclpy.qos import QoSProfile
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from visualization_msgs.msg import Marker, MarkerArray

from oxygen_ros.actions import ComponentKind
from oxygen_ros.engine import FinishedText
from oxygen_ros.msg import ActionChunk, ActionComponent, TextOutput, TickStats
from oxygen_ros.node import qos
from oxygen_ros.node.commands import to_time
from oxygen_ros.node.preparation import Prepared
from oxygen_ros.node.record import TickRecord
from oxygen_ros.node.settings import MarkerSettings
from oxygen_ros.robot.chunk import Chunk

_KINDS = {kind: getattr(ActionComponent, kind.name) for kind in ComponentKind}


class Outputs:
    """The node's publishers. Made in configure, before the worker starts."""

    def __init__(self, node: Node, prepared: Prepared) -> None:
        self._node = node
        self._profiles: dict[str, QoSProfile] = {}
        self._publishers: list[Publisher] = []
        layout, settings = prepared.layout, prepared.settings
        self._texts = self._advertise(TextOutput, "text", qos.TEXT)
        self._strings = {kind: self._advertise(String, kind, qos.TEXT) for kind in settings.text.names}
        self._ticks = self._advertise(TickStats, "tick", qos.TICK)
        self._markers = self._advertise(MarkerArray, "markers", qos.TEXT)
        self._preview = self._advertise(JointState, "preview/joint_states", qos.NEWEST)
        # Expert -> its publisher and message.
        self._chunks = {
            layout.expert: self._advertise_chunks(
                prepared, layout.expert, "action_chunk", qos.make_chunk_profile(prepared.deadline)
            )
        }
        for at in layout.other_experts:
            topic = f"action_chunk/{prepared.engine.model.spec.experts[at].name}"
            self._chunks[at] = self._advertise_chunks(prepared, at, topic, qos.NEWEST)
        self._stats = TickStats()
        self._ghost = JointState(name=list(layout.joints))
        # The preview shows joint positions only.
        is_shown = all(kind is ComponentKind.JOINT_POSITION for kind in layout.space.kinds)
        self._ghost_columns = layout.columns(layout.expert) if is_shown else []
        self._marker = _make_marker(settings.markers)
        self._last_words: dict[str, str] = {}

    def publish_chunk(self, expert: int, chunk: Chunk, tick: int, first_valid: int) -> None:
        """Publish a chunk, before any text of the tick."""
        publisher, message = self._chunks[expert]
        message.header.stamp = to_time(chunk.stamp_ns)
        message.tick = tick
        message.step = chunk.step
        message.horizon = chunk.horizon
        message.first_valid = first_valid
        message.values = array.array("f", chunk.values.astype(np.float32).tobytes())
        message.valid_until = to_time(chunk.valid_until_ns)
        publisher.publish(message)

    def publish_tick(self, record: TickRecord) -> None:
        """Preview, texts and figures of a tick."""
        if (chunk := record.chunk.chunk) is not None and self._ghost_columns:
            # Where the chunk ends.
            pose = record.joints.copy()
            pose[self._ghost_columns] = chunk.values[-1]
            self._ghost.header.stamp = to_time(chunk.valid_until_ns)
            self._ghost.position = array.array("d", pose.tobytes())
            self._preview.publish(self._ghost)
        self.publish_texts(record.finished)
        times, phases, state, message = record.times, record.phases, record.state, self._stats
        message.header.stamp = to_time(record.stamp)
        message.tick = record.tick
        message.mode = state.mode
        message.wait = times.wait
        message.process = times.decode + phases.process
        message.prefill = phases.prefill
        message.denoise = phases.denoise
        message.publish = times.publish
        message.text = phases.text
        message.latency = record.chunk.latency
        message.age = record.age
        message.skew = record.skew
        message.granted_steps = phases.granted_steps
        message.used_steps = phases.used_steps
        message.rows = phases.rows
        message.requests_live = state.live
        message.finished = state.counters.finished
        message.expired = state.counters.expired
        message.rejected = state.counters.rejected + state.counters.dropped
        message.feedback_dropped = sum(state.feedback_dropped.values())
        message.prefix_slots_used, message.prefix_slots_total = state.prefix_slots
        message.suffix_slots_used, message.suffix_slots_total = state.suffix_slots
        message.actions_clamped = sum(record.chunk.clamped.values())
        message.actions_clamped_total = state.actions_clamped
        message.chunks_refused = state.chunks_refused
        message.ticks_skipped = times.skipped
        message.prefills = state.counters.prefills
        self._ticks.publish(message)

    def publish_texts(self, texts: Sequence[FinishedText]) -> None:
        """Every ended text with its figures; complete ones also as plain strings."""
        for text in texts:
            task, fed = text.task, text.feedback
            message = TextOutput(
                tick_asked=text.tick_asked, tick_finished=text.tick_finished, id=text.id, kind=text.kind,
                prompt=text.prompt, text=text.text, finish_reason=str(text.finish_reason),
                tokens=len(text.tokens), steps=text.steps, seconds=text.seconds,
                instruction=text.instruction, feedback_kinds=list(fed), feedback_texts=list(fed.values()),
                adapter=task.adapter, seed=task.seed, temperature=task.temperature, top_p=task.top_p,
            )  # fmt: skip
            message.header.stamp = to_time(text.stamp)
            self._texts.publish(message)
            if text.finish_reason.is_complete:
                self._strings[text.kind].publish(String(data=text.text))
                self._last_words[text.kind] = text.text
                # One line for each kind, in their order.
                self._marker.text = "\n".join(
                    f"{kind}: {self._last_words[kind]}" for kind in self._strings if kind in self._last_words
                )
                self._markers.publish(MarkerArray(markers=[self._marker]))

    def find_mismatches(self) -> Mapping[str, str]:
        """topic -> why a subscriber receives nothing on it. Called by the executor."""
        return qos.collect(
            (topic, qos.explain_subscription(subscription, profile))
            for topic, profile in self._profiles.items()
            for subscription in self._node.get_subscriptions_info_by_topic(topic)
        )

    def flush(self, seconds: float) -> None:
        """Wait until subscribers have the last texts, so that they are not lost with the process."""
        self._texts.wait_for_all_acked(Duration(nanoseconds=int(seconds * 1e9)))

    def destroy(self) -> None:
        for publisher in self._publishers:
            self._node.destroy_publisher(publisher)

    def _advertise(self, kind: Any, topic: str, profile: QoSProfile) -> Publisher:
        publisher: Publisher = self._node.create_publisher(kind, f"~/{topic}", profile)
        self._publishers.append(publisher)
        self._profiles[publisher.topic_name] = profile
        return publisher

    def _advertise_chunks(
        self, prepared: Prepared, expert: int, topic: str, profile: QoSProfile
    ) -> tuple[Publisher, ActionChunk]:
        components = [
            ActionComponent(
                name=component.name,
                kind=_KINDS[component.kind],
                size=len(component.columns),
                unit=component.unit,
                frame_id=component.frame,
                rotation=component.rotation,
            )
            for component in prepared.layout.spaces[expert].components
        ]
        name = prepared.engine.model.spec.experts[expert].name
        return self._advertise(ActionChunk, topic, profile), ActionChunk(expert=name, components=components)


def _make_marker(settings: MarkerSettings) -> Marker:
    marker = Marker(ns="oxygen", id=0, type=Marker.TEXT_VIEW_FACING, action=Marker.ADD)
    # Stamp zero: shown at the frame's newest transform. No lifetime: shown until the next text.
    marker.header.frame_id = settings.frame
    marker.pose.position.z = settings.height
    marker.pose.orientation.w = 1.0
    marker.scale.z = settings.size
    marker.color.r = marker.color.g = marker.color.b = marker.color.a = 1.0
    return marker
