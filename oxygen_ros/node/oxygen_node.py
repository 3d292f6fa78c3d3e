# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node `oxygen`: what happens in each transition.

Here lives what is made, kept and freed from one transition to the next. Everything runs in the executor's
thread but what configure hands to a thread of its own (loading, warm-up) and what the worker does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from lifecycle_msgs.msg import Transition
from rclpy.clock import Clock, ClockType
from sensor_msgs.msg import JointState
from std_srvs.srv import SetBool

from oxygen_ros.models import LoadInterrupted, load_model
from oxygen_ros.node import diagnostics as level
from oxygen_ros.node.assembly import make_worker
from oxygen_ros.node.commands import Commands
from oxygen_ros.node.declarations import Declarations
from oxygen_ros.node.description import DescriptionListener
from oxygen_ros.node.diagnostics import Board
from oxygen_ros.node.inputs import Inputs
from oxygen_ros.node.managed import ManagedNode, TransitionRefused
from oxygen_ros.node.outputs import Outputs
from oxygen_ros.node.parameters import ParameterProblem, rows_of_model
from oxygen_ros.node.preparation import (
    LoadModel,
    PreparationError,
    Prepared,
    load,
    prepare,
    release_memory,
)
from oxygen_ros.node.settings import Robot, Settings
from oxygen_ros.node.timekeeper import TimeKeeper
from oxygen_ros.node.watchdog import Watchdog
from oxygen_ros.node.worker import Worker
from oxygen_ros.robot.description import Described


class OxygenNode(ManagedNode):
    """One model that acts and talks."""

    def __init__(self, end_process: Callable[[str], None], load: LoadModel = load_model) -> None:
        """end_process: called from the worker when the device is lost; must return at once
        load:        makes a Model of a folder, as models.load_model does
        """
        super().__init__("oxygen")
        self._end_process = end_process
        self._load_model = load
        self._stop_loading = threading.Event()
        self._loading_since: float | None = None
        self._prepared: Prepared | None = None
        self._robot: Robot | None = None
        self._inputs: Inputs | None = None
        self._outputs: Outputs | None = None
        self._worker: Worker | None = None
        self._watchdog: Watchdog | None = None
        self._instruction = ""
        self._publish_soon = self.create_guard_condition(self._publish_diagnostics)
        self._board = Board(self, self._publish_soon.trigger)
        self._commands = Commands(self)
        self._keeper = TimeKeeper(self, self._poke_clock)
        self._declarations = Declarations(self, self._may_change, self._take_parameter)
        self._commands.is_enabled = self._declarations.values["command.enabled"]
        self._hold = self.create_service(SetBool, "~/hold", self._on_hold)
        # On the steady clock: a simulation that stops must still be reported.
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._timer = self.create_timer(level.PERIOD, self._publish_diagnostics, clock=self._steady)

    # -- transitions ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Walk to active, when `autostart` says so."""
        if self._declarations.values["autostart"] and await self.change_state(
            Transition.TRANSITION_CONFIGURE
        ):
            await self.change_state(Transition.TRANSITION_ACTIVATE)

    async def configure(self) -> None:
        self._stop_loading.clear()
        try:
            self._declarations.check_all()
            settings = self._read_settings()
            self._loading_since = time.monotonic()
            self._board.hardware_id = settings["model"]
            self._report_loading()
            model, seconds = await self.run_in_thread(
                lambda: load(settings, self._load_model, self._stop_loading.is_set), "oxygen loader"
            )
            # The model says which cameras and joints there are; their parameters exist from now on.
            self._declarations.declare(rows_of_model(model.spec.cameras, model.spec.joints))
            self._declarations.check_all()
            settings = self._read_settings()
            description = await self._hear_description(settings)
            robot = settings.describe_robot(model.spec, description)
            self._prepared = await self.run_in_thread(
                lambda: prepare(settings, model, robot, self._stop_loading.is_set), "oxygen warm-up"
            )
            self._robot = robot
            self._inputs = Inputs(self, robot.subscribed, settings["max_age"], self._poke)
            self._outputs = Outputs(self, settings, robot, settings.find_deadline(model.spec))
        except (ParameterProblem, PreparationError) as error:
            self._fail_configure(str(error))
        except LoadInterrupted:
            self._fail_configure("interrupted while loading")
        except Exception as error:
            self._fail_configure(f"{type(error).__name__}: {error}")
        finally:
            self._loading_since = None
        self._instruction = settings["instruction"]
        if robot.unlimited:
            self.get_logger().warning(
                f"no position limits for {', '.join(robot.unlimited)}: set limits.<joint>.lower and .upper"
            )
        self._report_model(seconds)
        self._report_inactive()

    async def activate(self) -> None:
        prepared, robot, inputs, outputs = self._prepared, self._robot, self._inputs, self._outputs
        assert prepared is not None
        assert robot is not None
        assert inputs is not None
        assert outputs is not None
        self._worker = make_worker(
            prepared, robot, inputs, outputs,
            instruction=self._instruction, commands=self._commands, keeper=self._keeper, board=self._board,
            log=self.get_logger().warning, poisoned=self._end_process, give_up=self._give_up,
        )  # fmt: skip
        settings = prepared.settings
        self._watchdog = Watchdog(
            self._board, settings["watchdog.stuck"], settings["watchdog.give_up"], self._end_process
        )
        self._worker.start()

    async def deactivate(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.stop()
            await self.run_in_thread(worker.join, "oxygen stop")
            self._instruction = worker.instruction
        self._worker = None
        self._report_inactive()

    async def cleanup(self) -> None:
        await self.deactivate()
        self._free()
        for part in level.PARTS:
            self._board.report(part, level.STALE, "not configured")

    async def shut_down(self) -> None:
        await self.cleanup()

    def stop(self) -> bool:
        """End loading and worker, when the process ends; whether all threads did in time."""
        self._stop_loading.set()
        worker = self._worker
        has_ended = True
        if worker is not None:
            worker.stop()
            has_ended = worker.join(timeout=5.0)
        if self._outputs is not None:
            self._outputs.flush(1.0)
        return self.join_background(timeout=3.0) and has_ended

    async def _hear_description(self, settings: Settings) -> Mapping[str, Described] | None:
        """The robot's own limits, when parameters ask for them."""
        if not settings["limits.use_robot_description"]:
            return None
        listener = DescriptionListener(self)
        try:
            heard: Mapping[str, Described] = await self.run_in_thread(
                lambda: listener.wait(settings["limits.description_wait"], self._stop_loading.is_set),
                "oxygen robot description",
            )
            return heard
        finally:
            listener.destroy()

    # -- parameters ----------------------------------------------------------------------------

    def _may_change(self) -> bool:
        return self.state == "unconfigured"

    def _take_parameter(self, name: str, value: Any) -> None:
        if name == "command.enabled":
            self._commands.is_enabled = value
        elif name == "instruction" and self._inputs is not None:
            self._inputs.set_instruction(value)

    def _read_settings(self) -> Settings:
        return Settings(self._declarations.given())

    # -- callbacks -----------------------------------------------------------------------------

    def _on_hold(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if request.data:
            joints = self._robot.action_joints if self._robot is not None else ()
            newest = self._recent_joints()
            step = self._prepared.engine.model.spec.step if self._prepared is not None else 0.1
            response.message = self._commands.hold(joints, newest, self._keeper.now_ns(), step)
        else:
            response.message = self._commands.release()
        response.success = True
        self.get_logger().warning(f"~/hold: {response.message}")
        return response

    def _recent_joints(self) -> list[JointState]:
        """Joint states that are not too old to hold at, the newest last."""
        if self._inputs is None or self._prepared is None:
            return []
        oldest_ns = time.monotonic_ns() - int(self._prepared.settings["max_age"] * 1e9)
        return [message for message, received_ns in self._inputs.newest_joints if received_ns >= oldest_ns]

    def _poke(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.poke()

    def _poke_clock(self) -> None:
        worker = self._worker
        if worker is not None:
            worker.poke_clock()

    # -- reports -------------------------------------------------------------------------------

    def _publish_diagnostics(self) -> None:
        extra: dict[str, dict[str, str]] = {}
        if self._inputs is not None and self._outputs is not None:
            heard, seen = self._inputs.find_mismatches(), self._outputs.find_mismatches()
            extra["inputs"] = {f"QoS of {stream}": words for stream, words in heard.items()}
            extra["control"] = {f"QoS of {topic}": f"{topic}: {words}" for topic, words in seen.items()}
        if self._worker is not None and self._watchdog is not None:
            self._watchdog.look(self._worker.last_sign)
        if self._loading_since is not None:
            self._report_loading()
        self._board.publish(extra)

    def _give_up(self, reason: str) -> None:
        """Too many ticks failed. Called by the worker, which ends; the executor deactivates."""
        executor = self.executor
        if executor is not None:
            executor.create_task(self._deactivate_for, reason)

    async def _deactivate_for(self, reason: str) -> None:
        await self.change_state(Transition.TRANSITION_DEACTIVATE)
        if self.state == "inactive":
            words = f"deactivated: {reason}; activate to try again"
            self._board.report("control", level.ERROR, words, is_logged=True)
            self.get_logger().error(words)

    def _report_loading(self) -> None:
        seconds = time.monotonic() - (self._loading_since or time.monotonic())
        self._board.report("model", level.WARN, f"loading, {seconds:.0f} s so far")

    def _report_model(self, seconds: float) -> None:
        assert self._prepared is not None
        prepared, latency = self._prepared, self._prepared.latency
        spec, device = prepared.engine.model.spec, prepared.engine.model.device
        values = {"loaded in [s]": seconds, **prepared.describe()}
        words = f"{spec.family} on {device}, {latency.chunk * 1e3:.0f} ms a chunk"
        self._board.report("model", level.OK, words, values, is_logged=True)
        self.get_logger().info(f"configured: {words}, join: {values['join']}")
        if prepared.unrecorded:
            self.get_logger().warning(prepared.unrecorded)

    def _report_inactive(self) -> None:
        for part in ("inputs", "control", "text"):
            self._board.report(part, level.STALE, "inactive")

    def _fail_configure(self, reason: str) -> None:
        self._free()
        self._board.report("model", level.ERROR, f"configure failed: {reason}", is_logged=True)
        raise TransitionRefused(reason)

    def _free(self) -> None:
        if self._inputs is not None:
            self._inputs.destroy()
        if self._outputs is not None:
            self._outputs.destroy()
        self._inputs = self._outputs = self._prepared = self._robot = None
        release_memory()
