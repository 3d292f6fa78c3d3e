# SPDX-License-Identifier: Apache-2.0
"""Injects a fault and undoes it: each kind of `faults` on the processes and topics of a run."""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable

from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import CompressedImage
from std_msgs.msg import String

from oxygen_ros.msg import ActionChunk
from oxygen_ros.processes import ChildProcess
from soak.expectations import Expectations
from soak.faults import STREAMS, TOPICS, Fault
from soak.observer import Observer

BURST = 400
# Seconds that simulated time goes back: more than a pass of Expectations lasts.
JUMP = (15.0, 40.0)
# Hostile texts: too long, with control characters, with special tokens.
RUDE_WORDS = (
    "what is in the box?",
    "a" * 5000,
    "what\x00is\x1b[31m in\r\nthe\tbox?",
    "<eos><bos><pad><loc0001>{question} {0} %s",
    "是什么在盒子里 \U0001f916 ‮",
    "",
)


class Injector:
    """Faults on the drivers of a run (by stream) and on the topics of the node."""

    def __init__(
        self,
        drivers: dict[str, ChildProcess],
        restart: Callable[[str, int], ChildProcess],
        observer: Observer,
        expectations: Expectations,
        seed: int,
    ) -> None:
        """restart: starts a stream's driver anew, at an offset of simulated time to the wall clock [ns]"""
        self._drivers = drivers
        self._restart = restart
        self._observer = observer
        self._expectations = expectations
        self._chance = random.Random(seed)
        self._stranger: Node | None = None
        self._offset_ns = 0

    def begin(self, fault: Fault) -> int:
        """Start a fault. Returns the wall clock [ns] before which it cannot have shown."""
        now = time.time_ns()
        match fault.kind:
            case "restart":
                self._drivers[fault.target].kill()
            case "stall":
                self._drivers[fault.target].send(signal.SIGSTOP)
            case "questions":
                for _ in range(BURST):
                    self._observer.questions.publish(String(data=self._chance.choice(RUDE_WORDS)))
            case "clock_jump":
                self._set_clock(-int(self._chance.uniform(*JUMP) * 1e9))
            case "mismatch" | "mismatch_chunk" | "wrong_type":
                self._stranger = self._make_stranger(fault)
            case _:
                self._drivers[fault.target].tell(f"{fault.target} {fault.kind}")
        return now

    def end(self, fault: Fault) -> int:
        """Undo a fault. Returns the wall clock [ns] before which it cannot be over."""
        now = time.time_ns()
        match fault.kind:
            case "restart":
                self._drivers[fault.target] = self._restart(fault.target, self._offset_ns)
            case "stall":
                self._drivers[fault.target].send(signal.SIGCONT)
            case "clock_jump":
                self._set_clock(0)
            case "questions":
                pass
            case "mismatch" | "mismatch_chunk" | "wrong_type":
                assert self._stranger is not None
                self._stranger.destroy_node()
                self._stranger = None
            case _:
                self._drivers[fault.target].tell(f"{fault.target} well")
        return now

    def find_begin(self, fault: Fault, begun_ns: int) -> int | None:
        """When a fault first showed [ns]; None while it has not."""
        if fault.target not in STREAMS or fault.kind in ("restart", "stall", "wrong_type"):
            return begun_ns
        return self._expectations.first_bad(fault.target, begun_ns)

    def find_end(self, fault: Fault, ended_ns: int) -> int | None:
        """When the first good message after a fault was sent [ns]; None while there is none."""
        if fault.target not in STREAMS or fault.kind == "wrong_type":
            return ended_ns
        return self._expectations.first_good(fault.target, ended_ns)

    def close(self) -> None:
        if self._stranger is not None:
            self._stranger.destroy_node()
        for driver in self._drivers.values():
            driver.kill()

    def _set_clock(self, offset_ns: int) -> None:
        self._offset_ns = offset_ns
        for driver in self._drivers.values():
            driver.tell(f"offset {offset_ns}")

    def _make_stranger(self, fault: Fault) -> Node:
        """A node with an end that does not fit."""
        node = Node("stranger", start_parameter_services=False, enable_rosout=False)
        if fault.kind == "mismatch":
            profile = QoSProfile(depth=1, reliability=ReliabilityPolicy.BEST_EFFORT)
            node.create_publisher(String, "/oxygen/instruction", profile)
        elif fault.kind == "mismatch_chunk":
            profile = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
            node.create_subscription(ActionChunk, "/oxygen/action_chunk", lambda _: None, profile)
        else:
            node.create_publisher(CompressedImage, TOPICS[fault.target], 1)
        return node
