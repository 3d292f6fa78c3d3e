# SPDX-License-Identifier: Apache-2.0
"""Chunks joined to the one before, as the robot hears them: each way, and without one before."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from node_lab import Robot, nanoseconds
from numpy.typing import NDArray
from std_msgs.msg import String

TOPIC = "/oxygen/action_chunk"
HORIZON = 40  # of 0.05 s


def values_of(chunk: Any) -> NDArray[np.float64]:
    return np.array(chunk.values, np.float64).reshape(chunk.horizon, -1)


def test_each_way_publishes_finite_chunks_in_order(start_node: Callable[..., Any], robot: Robot) -> None:
    """The demo model, looking at pictures that change: what was said for a time is said again, or is not."""
    changes = {
        "join.delay_steps": 4,
        "join.tolerance": 10.0,
        "command.enabled": True,
        "period": 0.25,
        "autostart": False,
    }
    node = start_node(changes)
    robot.wait_for_state("unconfigured")
    # Of the four steps that will have been executed: the blend's are the old ones, the guide's nearly so.
    for mode, most in (("replace", np.inf), ("blend", 1e-5), ("rtc", 0.05)):
        assert robot.set_parameter("join.mode", mode) == ""
        robot.forget()
        assert robot.change_state("configure")
        assert f"value='{mode}" in str(robot.wait_for_status("model", mode))
        assert robot.change_state("activate")
        assert max(how_far_apart(robot)) <= most, mode
        trajectory = robot.wait_for("/oxygen/joint_trajectory")
        offsets = [nanoseconds(point.time_from_start) for point in trajectory.points]
        assert offsets
        assert all(a < b for a, b in itertools.pairwise(offsets))
        assert robot.change_state("deactivate")
        assert robot.change_state("cleanup")
    node.stop()


def how_far_apart(robot: Robot) -> list[float]:
    """Of each two chunks that follow each other, at the first four actions of the younger one."""
    last = robot.wait_for(TOPIC, lambda m: m.tick >= 6, timeout=60)
    chunks = [m for m in robot.heard[TOPIC] if m.tick <= last.tick]
    stamps = [nanoseconds(m.header.stamp) for m in chunks]
    assert all(a < b for a, b in itertools.pairwise(stamps))
    apart = []
    for at, (before, after) in enumerate(itertools.pairwise(chunks)):
        assert np.isfinite(values_of(after)).all()
        assert after.first_valid < after.horizon
        old_due = stamps[at] + (1 + np.arange(before.horizon)) * 1e8
        new_due = stamps[at + 1] + (1 + np.arange(4)) * 1e8
        if new_due[-1] <= old_due[-1]:
            was = np.array([np.interp(new_due, old_due, column) for column in values_of(before).T]).T
            apart.append(float(np.abs(values_of(after)[:4] - was).max()))
    assert apart
    return apart


@pytest.fixture(scope="module")
def swinging(start_node: Callable[..., Any], robot: Robot) -> Any:
    """A toy that wants joint2 now here and now there, and follows whatever it is guided towards.

    So a chunk that joins the one before holds both; one that stands alone is the same from end to end.
    """
    robot.forget()
    process = start_node(
        {
            "period": 0.3,
            "join.mode": "rtc",
            "join.delay_steps": HORIZON,
            "join.tolerance": 10.0,  # the arm stands still whatever it is told
            "command.enabled": True,
        },
        toy={"obedient": True, "horizon": HORIZON, "jump_ticks": list(range(1, 5000, 2))},
    )
    robot.wait_for(TOPIC, lambda m: not stands_alone(m), timeout=60)
    return process


def stands_alone(chunk: Any) -> bool:
    joint2 = values_of(chunk)[:, 1]
    return bool((joint2 == joint2[0]).all())


def test_another_instruction_joins_nothing_once(robot: Robot, swinging: Any) -> None:
    before = robot.now(TOPIC)
    robot.instruction.publish(String(data="the other one"))
    alone = robot.wait_for(TOPIC, stands_alone, after=before)
    robot.wait_for(TOPIC, lambda m: m.tick > alone.tick and not stands_alone(m))


def test_a_hold_joins_nothing_until_after_its_release(robot: Robot, swinging: Any) -> None:
    robot.wait_for(TOPIC, lambda m: not stands_alone(m), after=robot.now(TOPIC))
    assert robot.hold(True) == "held at the current position"
    # One may have been under way.
    first = robot.wait_for(TOPIC, after=robot.now(TOPIC) + 1)
    held = robot.wait_for(TOPIC, lambda m: m.tick >= first.tick + 2)
    assert all(stands_alone(m) for m in robot.heard[TOPIC] if first.tick <= m.tick <= held.tick)
    newest = robot.heard[TOPIC][-1].tick
    assert robot.hold(False) == "released"
    joined = robot.wait_for(TOPIC, lambda m: m.tick > newest and not stands_alone(m))
    # The first one after the release stood alone.
    assert joined.tick >= newest + 2


def test_a_hold_outlives_everything_but_its_release(robot: Robot, swinging: Any) -> None:
    """Another instruction, commands switched off and on, deactivation: still held, nothing is commanded."""
    trajectories = "/oxygen/joint_trajectory"
    assert robot.hold(True) == "held at the current position"
    robot.wait_for_status("control", "held: True")
    robot.wait_for_tick(2)
    before = robot.now(trajectories)
    robot.instruction.publish(String(data="go on"))
    robot.wait_for_status("control", "instruction: go on")
    assert robot.set_parameter("command.enabled", False) == ""
    assert robot.set_parameter("command.enabled", True) == ""
    assert robot.change_state("deactivate")
    assert robot.change_state("activate")
    robot.forget()
    # The sentinel: chunks of the new activation came, and no trajectory beside them.
    robot.wait_for(TOPIC, lambda m: m.tick >= 4)
    robot.wait_for_status("control", "held: True")
    assert before >= 1
    assert robot.now(trajectories) == 0
    assert robot.hold(False) == "released"
    robot.wait_for(trajectories)


def test_what_limits_changed_is_counted_in_the_tick(robot: Robot, swinging: Any) -> None:
    """100 rad is far beyond; each such action of joint2 is counted, in the tick and in /diagnostics."""
    one = robot.wait_for("/oxygen/tick", lambda m: m.actions_clamped > 0)
    later = robot.wait_for("/oxygen/tick", lambda m: m.tick > one.tick and m.actions_clamped > 0)
    assert later.actions_clamped_total >= one.actions_clamped_total + later.actions_clamped
    assert later.chunks_refused == 0
    assert "actions clamped" in str(robot.wait_for_status("control", "joint2.position"))
