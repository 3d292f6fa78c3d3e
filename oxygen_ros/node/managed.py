# SPDX-License-Identifier: Apache-2.0
"""Lifecycle transitions as coroutines: the executor goes on while a transition waits.

rclpy runs transitions inside the service's callback: loading would stop the executor for minutes, a request
that does not fit the state would end the process, and an exception would leave no reason. Here a transition
may await a thread, a request that does not fit is refused with a reason, and errors are logged.
"""

from __future__ import annotations

import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.lifecycle import LifecycleNodeMixin, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.task import Future

_NAMES = {
    Transition.TRANSITION_CONFIGURE: "configure",
    Transition.TRANSITION_CLEANUP: "cleanup",
    Transition.TRANSITION_ACTIVATE: "activate",
    Transition.TRANSITION_DEACTIVATE: "deactivate",
    Transition.TRANSITION_UNCONFIGURED_SHUTDOWN: "shutdown",
    Transition.TRANSITION_INACTIVE_SHUTDOWN: "shutdown",
    Transition.TRANSITION_ACTIVE_SHUTDOWN: "shutdown",
}


class TransitionRefused(RuntimeError):
    """A transition could not be made; the node stays in (or returns to) the state before."""


def describe_error(error: BaseException) -> str:
    """An error that no user can cure, and the place in the code it comes from."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{place}"


class ManagedNode(LifecycleNodeMixin, Node, ABC):
    """A lifecycle node whose transitions are the coroutines `configure`, `activate`, ... of its subclass.

    They raise TransitionRefused for what the user can cure. A shutdown is a `cleanup`. Everything runs in the
    executor's thread.
    """

    def __init__(self, name: str) -> None:
        Node.__init__(self, name)
        # Reentrant: the state can be read during a transition.
        LifecycleNodeMixin.__init__(self, callback_group=ReentrantCallbackGroup())
        service: Any = self._service_change_state  # typed for plain functions alone
        service.callback = self._on_change_state
        self._is_changing = False
        # One transition at a time, one thread at a time.
        self._background: threading.Thread | None = None

    def get_logger(self) -> Any:
        node: Any = super()  # untyped there
        return node.get_logger()

    @property
    def state(self) -> str:
        """Label of the current state: unconfigured, configuring, inactive, ..."""
        return str(self._state_machine.current_state[1])

    @abstractmethod
    async def configure(self) -> None: ...

    @abstractmethod
    async def activate(self) -> None: ...

    @abstractmethod
    async def deactivate(self) -> None: ...

    @abstractmethod
    async def cleanup(self) -> None: ...

    async def change_state(self, transition_id: int) -> bool:
        """Make a transition; whether it succeeded. The reason of a failure is logged."""
        name = _NAMES.get(transition_id, str(transition_id))
        if self._is_changing:
            self.get_logger().error(f"{name} refused: the node is {self.state}; wait until that is over")
            return False
        try:
            self._state_machine.trigger_transition_by_id(transition_id, True)
        except Exception as error:
            # rclpy's error class is private; any of them means that the state has no such transition.
            self.get_logger().error(f"{name} refused: no such transition from {self.state} ({error})")
            return False
        self._is_changing = True
        try:
            outcome = await self._run(name)
            self._state_machine.trigger_transition_by_label(outcome.to_label(), True)
            if outcome == TransitionCallbackReturn.ERROR:
                # From errorprocessing; success leads to unconfigured, from where all can be tried again.
                recovered = await self._run("cleanup")
                self._state_machine.trigger_transition_by_label(recovered.to_label(), True)
        finally:
            self._is_changing = False
        return bool(outcome == TransitionCallbackReturn.SUCCESS)

    async def _run(self, name: str) -> TransitionCallbackReturn:
        actions: dict[str, Callable[[], Awaitable[None]]] = {
            "configure": self.configure,
            "activate": self.activate,
            "deactivate": self.deactivate,
            "cleanup": self.cleanup,
            "shutdown": self.cleanup,
        }
        try:
            await actions[name]()
        except TransitionRefused as reason:
            self.get_logger().error(f"{name} failed: {reason}")
            return TransitionCallbackReturn.FAILURE
        except Exception as error:
            # A programming error must not end the node.
            self.get_logger().error(f"{name} failed: {describe_error(error)}")
            return TransitionCallbackReturn.ERROR
        return TransitionCallbackReturn.SUCCESS

    async def _on_change_state(
        self, request: ChangeState.Request, response: ChangeState.Response
    ) -> ChangeState.Response:
        wanted = request.transition
        labels = {item[1]: item[0] for item in self._state_machine.available_transitions}
        if wanted.label and wanted.label not in labels:
            words = f"no transition '{wanted.label}' from {self.state}; only {sorted(labels)}"
            self.get_logger().error(words)
            response.success = False
        else:
            response.success = await self.change_state(labels[wanted.label] if wanted.label else wanted.id)
        return response

    async def run_in_thread(self, work: Callable[[], Any], name: str) -> Any:
        """Run blocking work in a thread of its own; returns or raises what it does."""
        future = Future()

        def run() -> None:
            # Errors as results too: rclpy prints the exception of a future that is never read.
            try:
                outcome: tuple[Any, Exception | None] = work(), None
            except Exception as caught:
                outcome = None, caught
            future.set_result(outcome)
            if self.executor is not None:
                self.executor.wake()

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._background = thread
        thread.start()
        result, error = await future
        if error is not None:
            raise error
        return result

    def join_background(self, timeout: float) -> bool:
        """Wait for the work in a thread, when the process ends; whether it has ended."""
        if self._background is not None:
            self._background.join(timeout)
        return self._background is None or not self._background.is_alive()
