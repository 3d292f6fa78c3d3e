# SPDX-License-Identifier: Apache-2.0
"""The lifecycle node `oxygen`: what each transition makes, keeps and frees.

Everything runs in the executor's thread, except loading and warm-up, which have a thread in configure, and
the worker.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from lifecycle_msgs.msg import Transition
from rclpy.clock import Clock, ClockType
from std_msgs.msg import String
from std_srvs.srv import SetBool

from oxygen_ros.models import LoadInterrupted, load_model
from oxygen_ros.node import qos
from oxygen_ros.node.clocks import Clocks
from oxygen_ros.node.commands import Commands
from oxygen_ros.node.control import ControlLoop
from oxygen_ros.node.declarations import Declarations
from oxygen_ros.node.diagnostics import ERROR, OK, PARTS, PERIOD, STALE, WARN, Diagnostics
from oxygen_ros.node.inputs import INSTRUCTION_CHARS, Inputs, clean_words
from oxygen_ros.node.layout import make_layout
from oxygen_ros.node.managed import ManagedNode, TransitionRefused, describe_error
from oxygen_ros.node.monitor import Monitor
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
from oxygen_ros.node.settings import LimitSettings, make_settings
from oxygen_ros.node.trigger import TRIGGERS
from oxygen_ros.node.watchdog import Watchdog
from oxygen_ros.node.worker import Worker
from oxygen_ros.robot.chunk import explain_uncommandable
from oxygen_ros.robot.description import Described, DescriptionError, read_description
from oxygen_ros.robot.joints import JointBuffer
from oxygen_ros.robot.synchronizer import Synchronizer

DESCRIPTION_LOOK = 0.1  # s between checks whether the process is ending


class OxygenNode(ManagedNode):
    """The node of one model."""

    def __init__(self, end_process: Callable[[str], None], load: LoadModel = load_model) -> None:
        """end_process: called from the worker when the device is lost; must return at once
        load:        makes a Model of a folder, as models.load_model does
        """
        super().__init__("oxygen")
        self._end_process = end_process
        self._load_model = load
        self._stop_loading = threading.Event()
        self._loading_since: float | None = None
        # From configure to cleanup.
        self._prepared: Prepared | None = None
        self._inputs: Inputs | None = None
        self._outputs: Outputs | None = None
        # From activate to deactivate.
        self._worker: Worker | None = None
        self._watchdog: Watchdog | None = None
        self._instruction = ""
        publish_soon = self.create_guard_condition(self._publish_diagnostics)
        self._diagnostics = Diagnostics(self, publish_soon.trigger)
        self._commands = Commands(self)
        self._clocks = Clocks(self, self._poke_clock)
        self._declarations = Declarations(
            self, self._may_change, self._expect_parameter, self._take_parameter
        )
        self._commands.is_enabled = self._declarations.values["command.enabled"]
        self.create_service(SetBool, "~/hold", self._on_hold)
        # On the steady clock: a simulation that stops must still be reported.
        self.create_timer(PERIOD, self._publish_diagnostics, clock=Clock(clock_type=ClockType.STEADY_TIME))

    # -- transitions ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Configure and activate, when `autostart` is set."""
        is_wanted = self._declarations.values["autostart"]
        if is_wanted and await self.change_state(Transition.TRANSITION_CONFIGURE):
            await self.change_state(Transition.TRANSITION_ACTIVATE)

    async def configure(self) -> None:
        self._stop_loading.clear()
        should_stop = self._stop_loading.is_set
        try:
            self._declarations.check_all()
            settings = make_settings(self._declarations.given())
            self._loading_since = time.monotonic()
            self._diagnostics.hardware_id = settings.model.folder
            self._report_loading()
            model, seconds = await self.run_in_thread(
                lambda: load(settings, self._load_model, should_stop), "oxygen loader"
            )
            # Parameters of the model's cameras and joints.
            self._declarations.declare(rows_of_model(model.spec.cameras, model.spec.joints))
            self._declarations.check_all()
            settings = make_settings(self._declarations.given())
            layout = make_layout(settings, model.spec, await self._await_description(settings.limits))
            prepared = await self.run_in_thread(
                lambda: prepare(settings, model, layout, should_stop), "oxygen warm-up"
            )
            self._inputs = Inputs(self, layout.cameras, settings.inputs.max_age, self._poke)
            self._outputs = Outputs(self, prepared)
            self._prepared = prepared
            # It may have been set while the model was loading.
            self._expect_parameter("command.enabled", self._commands.is_enabled)
        except (ParameterProblem, PreparationError) as error:
            self._fail_configure(str(error))
        except LoadInterrupted:
            self._fail_configure("interrupted while loading")
        except Exception as error:
            self._fail_configure(describe_error(error))
        finally:
            self._loading_since = None
        self._instruction = settings.instruction
        if layout.unlimited:
            self.get_logger().warning(
                f"no position limits for {', '.join(layout.unlimited)}: set limits.<joint>.lower and .upper"
            )
        for kind in settings.text.kinds:
            if kind.feed_after and kind.name not in model.spec.feedback:
                self.get_logger().info(
                    f"{kind.name} is not fed back: this model's prompt has no place for it"
                )
        self._report_model(prepared, seconds)
        self._report_inactive()

    async def activate(self) -> None:
        """Make what is new with each activation."""
        prepared, inputs, outputs = self._prepared, self._inputs, self._outputs
        assert prepared is not None
        assert inputs is not None
        assert outputs is not None
        settings, layout = prepared.settings, prepared.layout
        max_age_ns = int(settings.inputs.max_age * 1e9)
        optional = [name for name, camera in layout.cameras.items() if camera.optional]
        joints = JointBuffer(layout.joints, layout.ranges, history_ns=2 * max_age_ns)
        max_skew_ns = int(settings.inputs.max_skew * 1e9)
        synchronizer = Synchronizer(list(layout.cameras), joints, max_skew_ns, max_age_ns, optional)
        trigger = TRIGGERS[settings.trigger](settings.period)
        session = prepared.make_session(clean_words(self._instruction, INSTRUCTION_CHARS))
        control = ControlLoop(
            session, layout, prepared.join_rule, outputs, self._commands, self._clocks.now_ns
        )
        monitor = Monitor(
            self._diagnostics,
            inputs.topics,
            self._clocks,
            self._commands,
            settings,
            trigger.period,
            self.get_logger().warning,
        )
        self._worker = Worker(
            settings, control, synchronizer, inputs, outputs, self._clocks, trigger, self._diagnostics,
            monitor, device_lost=self._end_process, give_up=self._give_up,
        )  # fmt: skip
        self._watchdog = Watchdog(
            self._diagnostics, settings.watchdog.stuck, settings.watchdog.give_up, self._end_process
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
        for part in PARTS:
            self._diagnostics.report(part, STALE, "not configured")

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

    async def _await_description(self, settings: LimitSettings) -> Mapping[str, Described] | None:
        """The robot's own limits, when parameters ask for them. Raises ParameterProblem when none come."""
        if not settings.use_robot_description:
            return None
        heard: list[String] = []
        # The relative name, as robot_state_publisher uses it.
        subscription = self.create_subscription(String, "robot_description", heard.append, qos.DESCRIPTION)
        topic = subscription.topic_name

        def wait() -> Mapping[str, Described]:
            deadline = time.monotonic() + settings.description_wait
            while not heard:
                if self._stop_loading.wait(DESCRIPTION_LOOK):
                    raise LoadInterrupted("stopped while waiting for the robot description")
                if time.monotonic() > deadline:
                    raise ParameterProblem(
                        f"parameter 'limits.use_robot_description' is true, but no robot description came on "
                        f"{topic} (std_msgs/String, transient local) in {settings.description_wait:g} s: "
                        "start robot_state_publisher, remap robot_description, or set it false and give "
                        "limits.<joint>.*"
                    )
            return read_description(heard[-1].data)

        try:
            found: Mapping[str, Described] = await self.run_in_thread(wait, "oxygen robot description")
            return found
        except DescriptionError as error:
            raise ParameterProblem(f"{topic}: {error}") from error
        finally:
            self.destroy_subscription(subscription)

    # -- parameters ----------------------------------------------------------------------------

    def _may_change(self) -> bool:
        return self.state == "unconfigured"

    def _expect_parameter(self, name: str, value: Any) -> None:
        problem = "" if self._prepared is None else explain_uncommandable(self._prepared.layout.space)
        if name == "command.enabled" and value and problem:
            raise ParameterProblem(f"parameter 'command.enabled' must stay false: {problem}")

    def _take_parameter(self, name: str, value: Any) -> None:
        if name == "command.enabled":
            self._commands.is_enabled = value
        elif name == "instruction" and self._inputs is not None:
            self._inputs.set_instruction(value)

    # -- callbacks -----------------------------------------------------------------------------

    def _on_hold(self, request: SetBool.Request, response: SetBool.Response) -> SetBool.Response:
        if request.data:
            prepared = self._prepared
            joints = prepared.layout.space.joints if prepared is not None else ()
            step = prepared.expert.step if prepared is not None else 0.1
            newest = self._inputs.recent_joints() if self._inputs is not None else []
            response.message = self._commands.hold(joints, newest, self._clocks.now_ns(), step)
        else:
            response.message = self._commands.release()
        response.success = True
        self.get_logger().warning(f"~/hold: {response.message}")
        return response

    def _poke(self) -> None:
        if self._worker is not None:
            self._worker.poke()

    def _poke_clock(self) -> None:
        if self._worker is not None:
            self._worker.poke_clock()

    # -- reports -------------------------------------------------------------------------------

    def _publish_diagnostics(self) -> None:
        extra: dict[str, dict[str, str]] = {}
        if self._inputs is not None and self._outputs is not None:
            topics, heard = self._inputs.topics, self._inputs.find_mismatches()
            seen = self._outputs.find_mismatches()
            extra["inputs"] = {f"QoS of {name}": f"{topics[name]}: {words}" for name, words in heard.items()}
            extra["control"] = {f"QoS of {topic}": f"{topic}: {words}" for topic, words in seen.items()}
        if self._worker is not None and self._watchdog is not None:
            self._watchdog.look(self._worker.last_sign)
        if self._loading_since is not None:
            self._report_loading()
        self._diagnostics.publish(extra)

    def _give_up(self, reason: str) -> None:
        """Too many ticks failed. Called by the worker, which ends; the executor deactivates."""
        if self.executor is not None:
            self.executor.create_task(self._deactivate_for, reason)

    async def _deactivate_for(self, reason: str) -> None:
        await self.change_state(Transition.TRANSITION_DEACTIVATE)
        if self.state == "inactive":
            words = f"deactivated: {reason}; activate to try again"
            self._diagnostics.report("control", ERROR, words, is_logged=True)
            self.get_logger().error(words)

    def _report_loading(self) -> None:
        seconds = time.monotonic() - (self._loading_since or time.monotonic())
        self._diagnostics.report("model", WARN, f"loading, {seconds:.0f} s so far")

    def _report_model(self, prepared: Prepared, seconds: float) -> None:
        model, values = prepared.engine.model, prepared.describe()
        words = f"{model.spec.family} on {model.device}, {prepared.latency.chunk * 1e3:.0f} ms a chunk"
        self._diagnostics.report("model", OK, words, {"loaded in [s]": seconds, **values}, is_logged=True)
        self.get_logger().info(f"configured: {words}, join: {values['join']}")
        if prepared.slower:
            self.get_logger().warning(prepared.slower)

    def _report_inactive(self) -> None:
        for part in ("inputs", "control", "text"):
            self._diagnostics.report(part, STALE, "inactive")

    def _fail_configure(self, reason: str) -> NoReturn:
        self._free()
        self._diagnostics.report("model", ERROR, f"configure failed: {reason}", is_logged=True)
        raise TransitionRefused(reason)

    def _free(self) -> None:
        if self._inputs is not None:
            self._inputs.destroy()
        if self._outputs is not None:
            self._outputs.destroy()
        self._inputs = self._outputs = self._prepared = None
        release_memory()
