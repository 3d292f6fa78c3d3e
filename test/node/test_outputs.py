# SPDX-License-Identifier: Apache-2.0
"""What a live node makes of cameras and joints: chunks on time, texts a few ticks later."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from node_lab import JOINTS, Robot, joints_of, nanoseconds
from rclpy.duration import Duration
from rclpy.qos import QoSProfile
from std_msgs.msg import String

from oxygen_ros.msg import ActionChunk, ActionComponent

ENDED = ("eos", "length", "stop")


@pytest.fixture(scope="module", autouse=True)
def node(start_node: Callable[..., Any], robot: Robot) -> Iterator[Any]:
    process = start_node({"command.enabled": True, "period": 0.25})
    robot.wait_for("/oxygen/tick", timeout=60)
    return process


def test_chunks_have_shape_and_stamps(robot: Robot) -> None:
    before = robot.now("/oxygen/action_chunk")
    first = robot.wait_for("/oxygen/action_chunk", after=before)
    second = robot.wait_for("/oxygen/action_chunk", lambda m: m.tick > first.tick)
    assert joints_of(first) == list(JOINTS)
    assert {(component.kind, component.size) for component in first.components} == {
        (ActionComponent.JOINT_POSITION, 1)
    }
    assert first.expert == "actions"
    assert first.horizon == 16
    assert first.step == pytest.approx(0.1)
    values = np.array(first.values, np.float64)
    assert values.shape == (16 * 7,)
    assert np.isfinite(values).all()
    assert np.abs(values).max() <= 3.2 + 1e-6
    assert nanoseconds(first.valid_until) == nanoseconds(first.header.stamp) + 1_600_000_000
    assert 0 <= first.first_valid < 16
    assert nanoseconds(second.header.stamp) > nanoseconds(first.header.stamp)


def test_texts_come_with_their_figures(robot: Robot) -> None:
    for kind in ("memory", "narration"):
        text = robot.wait_for(
            "/oxygen/text", lambda m, kind=kind: m.kind == kind and m.finish_reason in ENDED
        )
        # 8 tokens at 4 steps a tick, where the machine gives them; an early end may come in the tick itself.
        assert text.tick_finished >= text.tick_asked
        assert text.tokens <= 8
        assert nanoseconds(text.header.stamp) > 0
        robot.wait_for(f"/oxygen/{kind}", lambda m, text=text: m.data == text.text)


def test_a_text_is_stamped_as_the_chunk_of_its_tick(robot: Robot) -> None:
    before = robot.now("/oxygen/text")
    text = robot.wait_for("/oxygen/text", after=before + 3)
    chunk = robot.wait_for("/oxygen/action_chunk", lambda m: m.tick == text.tick_asked)
    assert chunk.header.stamp == text.header.stamp


def test_all_is_well_and_said_so(robot: Robot) -> None:
    assert robot.wait_for_status("inputs").message == "all inputs are fresh and in step"
    assert "incompatible" not in str(robot.wait_for_status("control"))


def test_a_listener_that_hears_nothing_is_named(robot: Robot) -> None:
    profile = QoSProfile(depth=1, deadline=Duration(seconds=0.01))
    listener = robot.node.create_subscription(ActionChunk, "/oxygen/action_chunk", lambda m: None, profile)
    try:
        status = robot.wait_for_status("control", "incompatible QoS", level="warn")
        assert "/robot requests reliable volatile deadline 0.01 s" in status.message
        assert "this node offers reliable volatile deadline 0.5 s" in status.message
    finally:
        robot.node.destroy_subscription(listener)


def test_one_prefill_a_tick_and_bounded_text(robot: Robot) -> None:
    first = robot.wait_for_tick()
    last = robot.wait_for_tick(6)
    assert last.mode == "oxygen"
    assert last.prefills - first.prefills == last.tick - first.tick
    assert last.used_steps <= last.granted_steps <= 4
    assert last.prefix_slots_used < last.prefix_slots_total
    assert min(last.prefill, last.denoise, last.publish) > 0
    assert 0 <= last.age < 0.3
    assert last.skew <= 0.03


def test_trajectories_start_after_now_and_increase(robot: Robot) -> None:
    before = robot.now("/oxygen/joint_trajectory")
    message = robot.wait_for("/oxygen/joint_trajectory", after=before)
    assert list(message.joint_names) == list(JOINTS)
    offsets = [nanoseconds(point.time_from_start) for point in message.points]
    assert offsets
    assert offsets[0] > 0
    assert all(a < b for a, b in itertools.pairwise(offsets))
    assert offsets[-1] == 1_600_000_000
    chunk = robot.wait_for("/oxygen/action_chunk", lambda m: m.header.stamp == message.header.stamp)
    # More may have passed between the two publications, never less.
    assert 0 < len(message.points) <= chunk.horizon - chunk.first_valid


def test_an_instruction_counts_from_the_next_tick(robot: Robot) -> None:
    robot.instruction.publish(String(data="open the\x07 gripper"))
    robot.wait_for_status("control", "instruction: open the gripper")


def test_a_plain_publisher_may_instruct_too(robot: Robot) -> None:
    """`ros2 topic pub` and rclpy's default are volatile; a latched subscription alone would not hear them."""
    publisher = robot.node.create_publisher(String, "/oxygen/instruction", 10)
    try:
        deadline = time.monotonic() + 20
        while publisher.get_subscription_count() < 1 and time.monotonic() < deadline:
            time.sleep(0.05)
        publisher.publish(String(data="wave"))
        robot.wait_for_status("control", "instruction: wave")
    finally:
        robot.node.destroy_publisher(publisher)


def test_an_instruction_that_does_not_fit_is_refused_by_name(robot: Robot) -> None:
    """The one before stands, chunks go on, and the next that fits is taken."""
    robot.instruction.publish(String(data="wave"))
    robot.wait_for_status("control", "instruction: wave")
    before = robot.now("/oxygen/action_chunk")
    robot.instruction.publish(String(data="y " * 300))
    status = robot.wait_for_status("control", '"wave" stands', level="warn")
    assert status.message.startswith('instruction "y y y')
    assert re.search(r"has \d+ tokens, the prompt has room for \d+: shorten it", status.message)
    assert next(pair.value for pair in status.values if pair.key == "instruction") == "wave"
    robot.wait_for("/oxygen/action_chunk", after=before + 3)
    chunks = robot.heard["/oxygen/action_chunk"][before : before + 4]
    assert [b.tick - a.tick for a, b in itertools.pairwise(chunks)] == [1] * 3
    robot.instruction.publish(String(data="open the gripper"))
    robot.wait_for_status("control", "instruction: open the gripper")


def test_a_question_of_too_many_tokens_is_refused_with_the_cure(robot: Robot) -> None:
    """Three tokens a letter: more than the slot of an answer, sized by letters, has room for."""
    robot.question.publish(String(data="盒子里还剩下什么东西呢" * 15))
    status = robot.wait_for_status("text", "not asked: answer: the prompt suffix has", level="warn")
    assert "盒子里还剩下" in status.message
    assert "ask it shorter, or raise question_max_chars" in status.message


def test_a_question_is_answered(robot: Robot) -> None:
    before = robot.now("/oxygen/text")
    robot.question.publish(String(data="what is\n left?"))
    answer = robot.wait_for("/oxygen/text", lambda m: m.kind == "answer", after=before)
    assert answer.finish_reason in ENDED
    assert answer.prompt == "Question: what is left? Answer: "


def test_hold_wins_until_released(robot: Robot) -> None:
    assert robot.hold(True) == "held at the current position"
    held = robot.wait_for("/oxygen/joint_trajectory", lambda m: len(m.points) == 1)
    assert list(held.points[0].positions) == pytest.approx([0.1 * i for i in range(7)])
    assert nanoseconds(held.points[0].time_from_start) > 0
    # The sentinel: chunks of later ticks arrived, and no trajectory did beside them.
    before = robot.now("/oxygen/joint_trajectory")
    robot.wait_for_tick(5)
    assert robot.now("/oxygen/joint_trajectory") == before
    robot.wait_for_status("control", "held: True")
    assert robot.hold(False) == "released"
    robot.wait_for("/oxygen/joint_trajectory", after=before)


def test_commands_can_be_switched_off_and_on(robot: Robot) -> None:
    assert robot.set_parameter("command.enabled", False) == ""
    robot.wait_for_tick(2)
    before = robot.now("/oxygen/joint_trajectory")
    robot.wait_for_tick(3)
    assert robot.now("/oxygen/joint_trajectory") == before
    assert robot.hold(True).startswith("held; commands are not enabled")
    assert robot.hold(False) == "released"
    assert robot.set_parameter("command.enabled", True) == ""
    robot.wait_for("/oxygen/joint_trajectory", after=before)


def test_other_parameters_wait_for_configure(robot: Robot) -> None:
    assert "read at configure" in robot.set_parameter("period", 0.2)
    assert robot.set_parameter("instruction", "wait") == ""
    robot.wait_for_status("control", "instruction: wait")
