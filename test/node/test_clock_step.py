# SPDX-License-Identifier: Apache-2.0
"""A clock that steps back, by however little: no later chunk carries a stamp of the time before.

The worker's turns are run one by one, with a clock and a queue of inputs that the test controls.
"""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import pytest
from sensor_msgs.msg import Image, JointState

from oxygen_ros.node.settings import make_settings
from oxygen_ros.node.trigger import PeriodTrigger
from oxygen_ros.node.worker import Worker
from oxygen_ros.robot.joints import JointBuffer
from oxygen_ros.robot.synchronizer import Synchronizer

MAX_AGE = 1.0
MS = 1_000_000
BEGIN = 1_000_000 * MS


class Scene:
    """A worker between a clock that is set and a tick that only notes its stamp."""

    def __init__(self) -> None:
        self.now_ns = BEGIN
        self.has_jumped = False
        self.ticked: list[int] = []
        self.queue: deque[tuple[str, Any, int]] = deque()
        clocks = SimpleNamespace(
            is_sim=True,
            now=lambda: self.now_ns / 1e9,
            now_ns=lambda: self.now_ns,
            steady=lambda due: due,
            take_jumps=self._take_jumps,
            silence=lambda: 0.0,
        )
        inputs = SimpleNamespace(
            topics={"top": "/top", "joint_states": "/joint_states"},
            questions_lost=0,
            drain=self._drain,
            clear=lambda keep_questions=False: self.queue.clear(),
            take_instruction=lambda: None,
            take_questions=list,
        )
        record = SimpleNamespace(chunk=SimpleNamespace(chunk=None), state=SimpleNamespace(live=1))
        control = SimpleNamespace(
            covers=1.0,
            decode=lambda *_: {},
            run=lambda taken, *_: (self.ticked.append(taken.stamp_ns), record)[1],
            stop=lambda reason: [],
        )
        nobody = SimpleNamespace(
            publish_tick=lambda record: None, publish_texts=lambda texts: None, note=lambda record: None,
            miss=lambda problems: None, restart=lambda words: None,
        )  # fmt: skip
        joints = JointBuffer(("a",), {}, history_ns=int(2e9 * MAX_AGE))
        synchronizer = Synchronizer(["top"], joints, max_skew_ns=0, max_age_ns=int(1e9 * MAX_AGE))
        settings = make_settings({"max_age": MAX_AGE, "period": 0.1})
        self._worker = Worker(
            settings, control, synchronizer, inputs, nobody, clocks, PeriodTrigger(0.1),
            nobody, nobody, lambda words: None, lambda words: None,
        )  # type: ignore[arg-type] # fmt: skip

    def send(self) -> int:
        """An image and the joints of now, into the queue; their stamp."""
        image, joints = Image(), JointState(name=["a"], position=[0.0])
        for name, message in (("joint_states", joints), ("top", image)):
            message.header.stamp.sec, message.header.stamp.nanosec = divmod(self.now_ns, 10**9)
            self.queue.append((name, message, self.now_ns))
        return self.now_ns

    def step(self, milliseconds: int) -> None:
        """Move the clock; back is a jump."""
        self.now_ns += milliseconds * MS
        self.has_jumped = self.has_jumped or milliseconds < 0

    def turn(self) -> None:
        self._worker._turn()

    def _take_jumps(self) -> tuple[bool, bool]:
        has_jumped, self.has_jumped = self.has_jumped, False
        return has_jumped, False

    def _drain(self) -> Any:
        while self.queue:
            yield self.queue.popleft()


@pytest.mark.parametrize("is_drained", [True, False], ids=["synchronized", "queued"])
@pytest.mark.parametrize("back", [60, 500, 900, 5000])
def test_nothing_of_the_time_before_is_acted_on(is_drained: bool, back: int) -> None:
    """An image not acted on yet when the clock steps back would be fresh for as long as it was."""
    scene = Scene()
    first = scene.send()
    scene.turn()
    assert scene.ticked == [first]
    scene.step(20)
    scene.send()
    if is_drained:
        scene.turn()  # no tick is due: the synchronizer keeps it
        assert scene.ticked == [first]
    scene.step(-back)
    for _ in range(30):
        scene.turn()
        scene.step(50)
    assert scene.ticked == [first]
    # What comes now is of the new time, and acted on.
    newer = scene.send()
    scene.turn()
    assert scene.ticked == [first, newer]
