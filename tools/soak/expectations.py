# SPDX-License-Identifier: Apache-2.0
"""What the drivers published when, and whether a chunk may come of it.

The soak's own definition of coherent, fresh and finite input, from the drivers' lines alone: it shares no
code with the node's synchronizer. Plain Python, one thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

KEPT_NS = 60_000_000_000
# Simulated time may come to the same stamps again; what was sent longer ago belongs to another pass.
PASS_NS = 10_000_000_000
# From a driver's line to the node having the message, on a busy machine.
TRANSIT_NS = 400_000_000
# Between the node taking its inputs and the time its own figures begin, on a busy machine.
SLACK_NS = 150_000_000


@dataclass(frozen=True, slots=True, order=True)
class Entry:
    """An image or a joint's reading. stamp, sent: wall clock [ns]; good: whether it may be acted on."""

    stamp_ns: int
    sent_ns: int
    good: bool


class Expectations:
    """What may become a chunk, from all messages by stream; joints by joint.

    max_skew_ns, max_age_ns: the node's parameters
    """

    def __init__(
        self, cameras: Sequence[str], joints: Sequence[str], max_skew_ns: int, max_age_ns: int
    ) -> None:
        self._cameras = tuple(cameras)
        self._joints = tuple(joints)
        self._max_skew_ns = max_skew_ns
        self._max_age_ns = max_age_ns
        self._entries: dict[str, list[Entry]] = {name: [] for name in (*cameras, *joints)}
        # stream -> (when sent, whether good, news and sent to anybody) of every message, in the order told.
        # How long a publisher and a subscription take to meet is the middleware's, not the node's.
        self.told: dict[str, list[tuple[int, bool]]] = {}
        self._pruned_ns = 0

    def add(self, line: str) -> None:
        """A line of a driver; see `driver`. Raises ValueError for any other line."""
        stream, stamp, sent, listeners, content = line.split()
        stamp_ns, sent_ns, is_heard = int(stamp), int(sent), int(listeners) > 0
        if stream in self._cameras:
            is_news = not self._between(stream, stamp_ns, stamp_ns, sent_ns - PASS_NS)
            if is_news and content == "good":
                insort(self._entries[stream], Entry(stamp_ns, sent_ns, True))
            self._tell(stream, sent_ns, content == "good" and is_news and is_heard)
        else:
            # An unreadable message has no readings; older ones count until they are too old.
            names = [] if content == "bad" else content.split(",")
            for name in names:
                joint = name.lstrip("!")
                insort(self._entries[joint], Entry(stamp_ns, sent_ns, joint == name))
            self._tell(stream, sent_ns, set(names) == set(self._joints) and is_heard)
        self._prune(sent_ns)

    def first_bad(self, stream: str, after_ns: int) -> int | None:
        """When the first bad (or repeated) message of a stream was sent after a time [ns]."""
        return self._first(stream, after_ns, is_good=False)

    def first_good(self, stream: str, after_ns: int) -> int | None:
        """When the first good message of a stream was sent after a time [ns]."""
        return self._first(stream, after_ns, is_good=True)

    def find_faults(self, stamp_ns: int, taken_ns: int) -> list[str]:
        """What is wrong with the input of a chunk; [] when all is well.

        stamp_ns:  of the chunk: the oldest of its images
        taken_ns:  when the node took its inputs [ns, wall clock], at the latest. Only good images are kept
                   here: a bad one that was used leaves its camera without any
        """
        return [*self._image_faults(stamp_ns, taken_ns), *self._joint_faults(stamp_ns, taken_ns)]

    def _image_faults(self, stamp_ns: int, taken_ns: int) -> Iterator[str]:
        has_instant = False
        for camera in self._cameras:
            good = self._between(camera, stamp_ns, stamp_ns + self._max_skew_ns, taken_ns - PASS_NS)
            if not good:
                yield f"unsynchronized: {camera} published no good image near the chunk's stamp"
                continue
            has_instant |= good[0].stamp_ns == stamp_ns
            age = (taken_ns - max(entry.sent_ns for entry in good)) / 1e9
            if age > (self._max_age_ns + SLACK_NS) / 1e9:
                yield f"stale: {camera} published the image {age:.3f} s before it was used"
        if not has_instant:
            yield "the chunk's stamp is of no good image"

    def _joint_faults(self, stamp_ns: int, taken_ns: int) -> Iterator[str]:
        for joint in self._joints:
            window = stamp_ns - self._max_age_ns, stamp_ns + self._max_age_ns
            near = self._between(joint, *window, taken_ns - PASS_NS)
            if not any(entry.good for entry in near):
                yield f"stale: {joint} has no good reading within max_age of the image"
                continue
            # A bad one counts when it had surely arrived.
            there = [e for e in near if e.sent_ns <= taken_ns - (0 if e.good else TRANSIT_NS)]
            closest = min(there, key=lambda entry: abs(entry.stamp_ns - stamp_ns), default=None)
            if closest is not None and not closest.good:
                age = (taken_ns - closest.sent_ns) / 1e9
                yield (
                    f"non-finite or failed: {joint}'s reading nearest to the image is bad, "
                    f"published {age:.3f} s before it was used"
                )

    def _between(self, name: str, low_ns: int, high_ns: int, since_ns: int) -> list[Entry]:
        """Entries with a stamp from low to high, sent since then."""
        entries = self._entries[name]
        first = bisect_left(entries, low_ns, key=lambda entry: entry.stamp_ns)
        last = bisect_right(entries, high_ns, key=lambda entry: entry.stamp_ns)
        return [entry for entry in entries[first:last] if entry.sent_ns >= since_ns]

    def _tell(self, stream: str, sent_ns: int, is_good: bool) -> None:
        self.told.setdefault(stream, []).append((sent_ns, is_good))

    def _first(self, stream: str, after_ns: int, is_good: bool) -> int | None:
        told = self.told.get(stream, [])
        start = bisect_left(told, (after_ns, False))
        return next((sent_ns for sent_ns, good in told[start:] if good == is_good), None)

    def _prune(self, now_ns: int) -> None:
        if now_ns < self._pruned_ns + KEPT_NS:
            return
        self._pruned_ns = now_ns
        for entries in self._entries.values():
            entries[:] = [entry for entry in entries if entry.sent_ns > now_ns - KEPT_NS]
        for told in self.told.values():
            told[:] = [pair for pair in told if pair[0] > now_ns - KEPT_NS]
