# SPDX-License-Identifier: Apache-2.0
"""A model that fails or is slow: the node reports it, goes on, and never commands invalid actions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from node_lab import Robot


@pytest.fixture(scope="module", autouse=True)
def node(start_node: Callable[..., Any], robot: Robot) -> Any:
    """Text of 40 ms and more a tick, some ticks that fail; the period is long enough to look at each."""
    process = start_node(
        {
            "model": None,
            "period": 0.3,
            "debug": True,
            "text.memory.every_n_ticks": 1,
            "text.narration.every_n_ticks": 2,
            "text.memory.max_tokens": 10,
            "text.memory.prompt": "Memory: ",
        },
        toy={
            "step_seconds": 0.015,
            "fail_ticks": [4, 5],
            "nan_ticks": [8, 9, 10],
            "jump_ticks": list(range(12, 24)),
        },
    )
    robot.wait_for("/oxygen/tick", timeout=60)
    return process


def test_a_failed_tick_is_reported_and_tried_again(robot: Robot, node: Any) -> None:
    node.wait_for_line(
        "tick failed: RuntimeError: told to fail at tick 4 \\(.*toy.py:\\d+\\); .* next try in 0.1 s"
    )
    robot.wait_for("/diagnostics", lambda m: "told to fail at tick" in str(m))
    text = robot.wait_for("/oxygen/text", lambda m: m.finish_reason == "error")
    assert text.kind in ("memory", "narration")
    robot.wait_for("/oxygen/tick", lambda m: m.tick == 6)
    assert {m.tick for m in robot.heard["/oxygen/action_chunk"]} >= {1, 2, 3, 6}
    assert not {m.tick for m in robot.heard["/oxygen/action_chunk"]} & {4, 5}


def test_non_finite_actions_are_refused(robot: Robot) -> None:
    robot.wait_for("/oxygen/tick", lambda m: m.tick == 11)
    assert not {8, 9, 10} & {m.tick for m in robot.heard["/oxygen/action_chunk"]}
    robot.wait_for("/diagnostics", lambda m: "joint3" in str(m) and "not finite" in str(m))


def test_actions_beyond_limits_are_clamped_and_said(robot: Robot) -> None:
    chunk = robot.wait_for("/oxygen/action_chunk", lambda m: m.tick == 12)
    assert max(chunk.values) == pytest.approx(3.2)
    robot.wait_for("/diagnostics", lambda m: "joint2.position x20" in str(m))


def test_the_chunk_leaves_before_text_advances(robot: Robot) -> None:
    """Text takes 60 ms here: the chunk is published that much before the tick's figures."""
    tick = robot.wait_for("/oxygen/tick", lambda m: m.used_steps == 4, after=robot.now("/oxygen/tick"))
    assert tick.text >= 0.06
    robot.wait_for("/oxygen/action_chunk", lambda m: m.tick == tick.tick)
    left = robot.sent_at("/oxygen/action_chunk", lambda m: m.tick == tick.tick)
    ended = robot.sent_at("/oxygen/tick", lambda m: m.tick == tick.tick)
    assert ended - left >= 0.06


def test_text_is_the_models_text(robot: Robot) -> None:
    text = robot.wait_for("/oxygen/text", lambda m: m.finish_reason == "eos")
    assert text.text == "abcdefg"
    assert text.tokens == 7
    # 1 step for the prompt and its first letter, 6 letters, the end: two ticks, or more on a busy machine.
    assert text.steps == 8
    assert text.tick_finished - text.tick_asked >= 1
