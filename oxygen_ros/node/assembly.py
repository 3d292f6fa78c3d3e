# SPDX-License-Identifier: Apache-2.0
"""What one activation is made of: session, sampler, pace, ticker and watch, put together into a worker.

Here lives only the putting together; nothing runs until the worker is started. What is new with each
activation is made here, what stays from configure to cleanup comes in.
"""

from __future__ import annotations

from collections.abc import Callable

from oxygen_ros.node.commands import Commands
from oxygen_ros.node.diagnostics import Board
from oxygen_ros.node.inputs import INSTRUCTION_CHARS, Inputs, clean_words
from oxygen_ros.node.outputs import Outputs
from oxygen_ros.node.pace import make_pace
from oxygen_ros.node.preparation import Prepared
from oxygen_ros.node.settings import Robot
from oxygen_ros.node.tick import Ticker
from oxygen_ros.node.timekeeper import TimeKeeper
from oxygen_ros.node.watch import Watch
from oxygen_ros.node.worker import Worker
from oxygen_ros.robot.joints import JointBuffer
from oxygen_ros.robot.overlap import Overlap
from oxygen_ros.robot.sampler import Sampler


def make_worker(
    prepared: Prepared,
    robot: Robot,
    inputs: Inputs,
    outputs: Outputs,
    *,
    instruction: str,
    commands: Commands,
    keeper: TimeKeeper,
    board: Board,
    log: Callable[[str], object],
    poisoned: Callable[[str], None],
    give_up: Callable[[str], None],
) -> Worker:
    """A worker at its first tick, not yet started.

    instruction: of the first tick
    log:         where warnings go
    poisoned, give_up: see Worker; called in its thread
    """
    settings = prepared.settings
    cameras = robot.subscribed
    max_age_ns = int(settings["max_age"] * 1e9)
    sampler = Sampler(
        [camera.name for camera in cameras],
        JointBuffer(robot.joints, robot.ranges, history_ns=2 * max_age_ns),
        max_skew_ns=int(settings["max_skew"] * 1e9),
        max_age_ns=max_age_ns,
        optional_cameras=[camera.name for camera in cameras if camera.optional],
    )
    pace = make_pace(settings["trigger"], settings["period"])
    overlap = Overlap(prepared.join_rule, [robot.joints.index(name) for name in robot.action_joints])
    session = prepared.make_session(clean_words(instruction, INSTRUCTION_CHARS), overlap)
    ticker = Ticker(session, robot, inputs.topics, sampler, outputs, commands, keeper, pace, overlap)
    watch = Watch(board, inputs.topics, keeper, commands, settings, log)
    return Worker(settings, ticker, sampler, inputs, keeper, pace, board, watch, poisoned, give_up)
