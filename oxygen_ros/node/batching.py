# SPDX-License-Identifier: Apache-2.0
"""A subscription whose messages are taken many at a time when they come fast.

rclpy's executor goes over every service, timer and subscription of the node each time it wakes. That takes
most of a millisecond with the interpreter's lock held, which the worker needs too. Joint states at 500 Hz
cost a third of that when taken every `EVERY`. The executor's thread calls everything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rclpy.callback_groups import MutuallyExclusiveCallbackGroup
from rclpy.clock import Clock, ClockType
from rclpy.event_handler import SubscriptionEventCallbacks
from rclpy.node import Node
from rclpy.qos import QoSProfile

EVERY = 0.02  # s between two reads of a fast topic; rarer messages are taken at once


class _Gate(MutuallyExclusiveCallbackGroup):
    """Hides its subscription from the executor while closed."""

    def __init__(self) -> None:
        group: Any = super()  # untyped there
        group.__init__()
        self.is_closed = False

    def can_execute(self, entity: Any) -> bool:
        group: Any = super()
        return not self.is_closed and bool(group.can_execute(entity))


class BatchedSubscription:
    """A subscription; `keep` is called with each message, in their order."""

    def __init__(
        self,
        node: Node,
        kind: Any,
        topic: str,
        profile: QoSProfile,
        keep: Callable[[Any], None],
        events: SubscriptionEventCallbacks,
    ) -> None:
        self._node = node
        self._keep = keep
        self._most = int(profile.depth)
        self._gate = _Gate()
        self._timer = node.create_timer(EVERY, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._timer.cancel()
        self.subscription = node.create_subscription(
            kind, topic, self._take_first, profile, callback_group=self._gate, event_callbacks=events
        )

    def drain(self) -> int:
        """Take the waiting messages, at most the topic's depth; returns how many."""
        subscription = self.subscription
        for count in range(self._most):
            # What the executor does for one message.
            with subscription.handle:
                taken = subscription.handle.take_message(subscription.msg_type, subscription.raw)
            if taken is None:
                return count
            self._keep(taken[0])
        return self._most

    def destroy(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_subscription(self.subscription)

    def _take_first(self, message: Any) -> None:
        self._keep(message)
        self._gate.is_closed = True
        self._timer.reset()

    def _look(self) -> None:
        if self.drain() == 0:
            self._timer.cancel()
            self._gate.is_closed = False
