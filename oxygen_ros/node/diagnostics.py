# SPDX-License-Identifier: Apache-2.0
"""/diagnostics: the state of each part, with its reason.

Any thread may report (a dict entry is replaced whole). The executor publishes, every PERIOD and at once when
a level changes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.node import Node

from oxygen_ros.node import qos
from oxygen_ros.node.commands import to_time

OK, WARN = DiagnosticStatus.OK, DiagnosticStatus.WARN
ERROR, STALE = DiagnosticStatus.ERROR, DiagnosticStatus.STALE
# s between two messages; QoS mismatches are looked for then, and must be reported within a second.
PERIOD = 0.5
SILENT_FOR = 5.0  # s before a part's level is logged again
PARTS = ("inputs", "control", "text", "model")


@dataclass(frozen=True, slots=True)
class Report:
    """The state of one part."""

    level: bytes
    message: str
    values: Mapping[str, object] = field(default_factory=dict)


class Diagnostics:
    """The last report of each part, and the publisher."""

    def __init__(self, node: Node, changed: Callable[[], None]) -> None:
        """changed: called, in the reporting thread, when the level of a part changed"""
        self._node = node
        self._changed = changed
        self._publisher = node.create_publisher(DiagnosticArray, "/diagnostics", qos.DIAGNOSTICS)
        self._reports = dict.fromkeys(PARTS, Report(STALE, "not configured"))
        self.hardware_id = ""
        self._logged: dict[tuple[str, bytes], float] = {}

    def report(
        self,
        part: str,
        level: bytes,
        message: str,
        values: Mapping[str, object] | None = None,
        *,
        is_logged: bool = False,
    ) -> None:
        """Replace the report of a part. is_logged: it is logged elsewhere."""
        before = self._reports[part]
        self._reports[part] = Report(level, message, values or {})
        if level == before.level:
            return
        self._changed()
        if not is_logged:
            self._log(part, before.level, level, message)

    def _log(self, part: str, before: bytes, level: bytes, message: str) -> None:
        """At most one line of a level in SILENT_FOR seconds; /diagnostics has every change."""
        now = time.monotonic()
        if now < self._logged.get((part, level), -math.inf) + SILENT_FOR:
            return
        log = self._node.get_logger()
        if level == ERROR:
            log.error(f"{part}: {message}")
        elif level == WARN:
            log.warning(f"{part}: {message}")
        elif before in (ERROR, WARN):
            log.info(f"{part}: {message}")
        else:
            return
        self._logged[part, level] = now

    def publish(self, extra: Mapping[str, Mapping[str, str]]) -> None:
        """Publish all parts. extra: part -> further problems by key; they raise its level to WARN."""
        message = DiagnosticArray()
        message.header.stamp = to_time(int(self._node.get_clock().now().nanoseconds))
        for part, report in self._reports.items():
            level, words = report.level, report.message
            values = {str(key): _write(value) for key, value in report.values.items()}
            if troubles := extra.get(part):
                values.update(troubles)
                words = "; ".join([words, *troubles.values()] if words else troubles.values())
                level = max(level, WARN) if level != STALE else WARN
            name = f"{self._node.get_name()}: {part}"
            status = DiagnosticStatus(level=level, name=name, message=words, hardware_id=self.hardware_id)
            status.values = [KeyValue(key=key, value=value) for key, value in values.items()]
            message.status.append(status)
        self._publisher.publish(message)


def _write(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
