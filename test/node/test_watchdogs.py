# SPDX-License-Identifier: Apache-2.0
"""Ticks that fail, hang or come late, inputs that fall silent: reported on the steady clock, and survived."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from builtin_interfaces.msg import Time
from node_lab import SENSOR, Robot
from rosgraph_msgs.msg import Clock

from oxygen_ros.msg import TickStats
from oxygen_ros.node.watchdog import LONGEST_LOOK, Watchdog

SIM_SPEED = 0.02  # simulated seconds a second
# Of the toy's ticks, which count on when the node is activated again.
FAIL, STUCK, LATE = [3, 4, 5], 9, 14


@pytest.fixture(scope="module")
def fleet(start_node: Callable[..., Any], robot: Robot) -> dict[str, Any]:
    """All at once: importing torch takes its time."""
    common = {"text.memory.every_n_ticks": 1}
    return {
        "oxygen": start_node(
            {"period": 0.4, "watchdog.stuck": 1.0, "watchdog.late": 0.1, **common},
            toy={"fail_ticks": FAIL, "slow_ticks": {STUCK: 3.5, LATE: 0.6}, "step_seconds": 0.005},
        ),
        "hung": start_node(
            {"autostart": False, "watchdog.stuck": 0.5, "watchdog.give_up": 2.5, **common},
            name="hung",
            toy={"fail_load": True, "slow_ticks": {3: 1000.0}},
        ),
        "slow": start_node({"use_sim_time": True, "watchdog.silence": 1.5}, name="slow", toy={}),
    }


def test_three_failed_ticks_in_a_row_deactivate_the_node(robot: Robot, fleet: dict[str, Any]) -> None:
    status = robot.wait_for_status("control", "deactivated: ", level="error", timeout=60)
    assert "tick failed: RuntimeError: told to fail at tick 5" in status.message
    assert "3 in a row; activate to try again" in status.message
    assert robot.state() == "inactive"
    # Two tries after the first, each later than the one before, and their texts ended with a reason.
    fleet["oxygen"].wait_for_line("tick 3 \\(.*toy.py:\\d+\\); .* texts ended; next try in 0.1 s")
    fleet["oxygen"].wait_for_line(r"tick 4 \(.*toy.py:\d+\); 0 texts ended; next try in 0.2 s")
    ended = [m for m in robot.heard["/oxygen/text"] if m.finish_reason == "error"]
    assert ended
    # The sentinel: the reason is reported twice more, and no chunk came meanwhile.
    chunks = robot.now("/oxygen/action_chunk")
    for _ in range(2):
        robot.wait_for_status("control", "deactivated: ", level="error")
    assert robot.now("/oxygen/action_chunk") == chunks


def test_it_can_be_activated_again_and_nothing_is_held(robot: Robot, fleet: dict[str, Any]) -> None:
    before = robot.now("/oxygen/tick")
    assert robot.change_state("activate")
    tick = robot.wait_for("/oxygen/tick", after=before)
    assert tick.tick == 1
    # The only text is this tick's own.
    assert (tick.prefix_slots_used, tick.suffix_slots_used) == (1, tick.requests_live)
    robot.wait_for_status("control", "ticking", level="ok")


def test_a_tick_that_does_not_return_is_reported_and_the_executor_answers(
    robot: Robot, fleet: dict[str, Any]
) -> None:
    status = robot.wait_for_status(
        "control", "the worker is stuck: a tick has not returned for", level="error"
    )
    assert "after 30 s the process ends" in status.message
    assert robot.wait_for_status("inputs", "unknown: the worker is stuck")
    # message_filters#65: nothing waits for the tick, and it leaves nothing locked.
    ticks = robot.now("/oxygen/tick")
    assert robot.hold(True).startswith("held")
    assert robot.hold(False) == "released"
    assert robot.now("/oxygen/tick") == ticks, "the tick returned first"
    robot.wait_for_status("control", "periods wholly missed", level="warn")
    robot.wait_for_status("inputs", "fresh", level="ok")


def test_a_late_tick_is_reported_though_no_period_was_missed(robot: Robot, fleet: dict[str, Any]) -> None:
    """A tick of 0.6 s; the next one, due after 0.4 s, begins 0.2 s late."""
    status = robot.wait_for_status("control", "tick late: it began 0.", level="warn")
    assert float(status.message.split()[4]) > 0.1
    values = {pair.key: pair.value for pair in status.values}
    assert int(values["ticks late"]) >= 1


def test_an_error_nobody_expects_in_configure_is_survived(robot: Robot, fleet: dict[str, Any]) -> None:
    """ros2/rclpy#1209, PR#1696: the reason is reported, the node is there, and the next try succeeds."""
    robot.wait_for_state("unconfigured", "hung")
    assert not robot.change_state("configure", "hung")
    fleet["hung"].wait_for_line("configure failed: KeyError: 'told to fail once'")
    assert robot.state("hung") == "unconfigured"
    assert robot.change_state("configure", "hung")
    assert robot.change_state("activate", "hung")


def test_one_that_never_returns_ends_the_process_for_launch_to_restart(fleet: dict[str, Any]) -> None:
    """It was activated by the test before this one; its third tick hangs."""
    process = fleet["hung"]
    assert process.wait(timeout=30) == 69
    assert "a tick has not returned for" in process.output
    assert "Traceback" not in process.output


def test_silence_is_measured_on_the_steady_clock(robot: Robot, fleet: dict[str, Any]) -> None:
    """UniflexAI/tinynav PR#235: by a clock this slow, the images would be fresh for another 15 s."""
    began = time.monotonic()
    clock = robot.node.create_publisher(Clock, "/clock", 10)
    is_blind = False

    def sim_time() -> Time:
        simulated = 1_000_000_000_000 + int((time.monotonic() - began) * SIM_SPEED * 1e9)
        return Time(sec=simulated // 10**9, nanosec=simulated % 10**9)

    def joints(message: Any) -> Any:
        clock.publish(Clock(clock=sim_time()))
        message.header.stamp = sim_time()
        return message

    def images(camera: str, image: Any) -> Any:
        image.header.stamp = sim_time()
        return None if is_blind and camera == "wrist" else image

    def says(words: str) -> Callable[[Any], bool]:
        return lambda m: any(s.name == "slow: inputs" and words in s.message for s in m.status)

    with robot.spoiled(image=images, joints=joints):
        robot.wait_for("/diagnostics", says("all inputs are fresh"), after=robot.now("/diagnostics"))
        is_blind = True
        silent = says("/camera/wrist/image_raw: silent: nothing received for")
        robot.wait_for("/diagnostics", silent, after=robot.now("/diagnostics"), timeout=10)
        is_blind = False
        robot.wait_for("/diagnostics", says("all inputs are fresh"), after=robot.now("/diagnostics"))


def test_periods_that_simulated_time_leapt_over_were_not_missed(robot: Robot, fleet: dict[str, Any]) -> None:
    """A clock that moves on by an hour at once: no tick was possible in it."""
    began, leap = time.monotonic(), 0
    clock = robot.node.create_publisher(Clock, "/clock", 10)
    robot.listen("/slow/tick", TickStats, SENSOR)

    def sim_time() -> Time:
        simulated = 2_000_000_000_000 + leap * 10**9 + int((time.monotonic() - began) * 1e9)
        return Time(sec=simulated // 10**9, nanosec=simulated % 10**9)

    def joints(message: Any) -> Any:
        clock.publish(Clock(clock=sim_time()))
        message.header.stamp = sim_time()
        return message

    def images(camera: str, image: Any) -> Any:
        image.header.stamp = sim_time()
        return image

    with robot.spoiled(image=images, joints=joints):
        before = robot.wait_for("/slow/tick", lambda m: m.header.stamp.sec >= 2000, timeout=60)
        leap = 3600
        after = robot.wait_for("/slow/tick", lambda m: m.header.stamp.sec >= 5600, timeout=10)
    assert after.ticks_skipped - before.ticks_skipped < 100


class Nobody:
    """Diagnostics that report nothing, a process that does not end: the count alone is looked at."""

    def report(self, *_: object, **__: object) -> None: ...


def test_a_machine_that_slept_is_no_stuck_worker() -> None:
    dog = Watchdog(Nobody(), 5.0, 30.0, lambda words: None)  # type: ignore[arg-type]
    assert dog.measure(10.0, 10.5) == 0.5
    assert dog.measure(10.0, 11.5) == 1.5
    assert dog.measure(10.0, 5000.0) == 1.5 + LONGEST_LOOK
    assert dog.measure(5000.1, 5000.2) == pytest.approx(0.1)
