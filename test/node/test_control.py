# SPDX-License-Identifier: Apache-2.0
"""The control tick alone: whose joints, whose space, what a hold does to what is remembered. No ROS."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from engine_toy import BASE, EXPERT, SPEC, FakeClock, ToyModel, build, see

from oxygen_ros.actions import ComponentKind, joint_space
from oxygen_ros.engine import Budget, FinishReason, Session
from oxygen_ros.node.control import ControlLoop
from oxygen_ros.node.layout import RobotLayout, make_layout
from oxygen_ros.node.parameters import ParameterProblem
from oxygen_ros.node.record import TickRecord, TickTimes
from oxygen_ros.node.settings import make_settings
from oxygen_ros.robot.chunk import Chunk, explain_uncommandable
from oxygen_ros.robot.joining import JoinRule, Trajectory
from oxygen_ros.robot.synchronizer import InputSet

MS = 1_000_000
SEEN = np.array([0.25, -0.5])  # lift, turn
VALUES = {
    "cameras.top.topic": "/top",
    "other_experts": ["base"],
    "joints.lift.name": "mast",
    "joints.turn.name": "waist",
    "limits.waist.velocity": 0.1,
}


class Commander:
    """A controller's side that a test sets. `meanwhile` happens while a trajectory is made or sent."""

    def __init__(self) -> None:
        self.is_held, self.holds, self.is_enabled = False, 0, True
        self.sent: list[tuple[tuple[str, ...], Trajectory]] = []
        self.meanwhile = lambda: None

    @property
    def may_move(self) -> bool:
        return self.is_enabled and not self.is_held

    def hold(self) -> None:
        self.is_held, self.holds = True, self.holds + 1

    def send(self, joints: Any, trajectory: Trajectory) -> None:
        self.meanwhile()
        if self.may_move:
            self.sent.append((tuple(joints), trajectory))


class Scene:
    """A control loop over the toy, whose clock stands still unless told."""

    def __init__(self, mode: str = "blend", spec: Any = SPEC, **changes: Any) -> None:
        self.model = ToyModel()
        self.model.spec = spec
        engine, _ = build(model=self.model, clock=FakeClock())
        settings = make_settings({**VALUES, **changes})
        self.layout: RobotLayout = make_layout(settings, spec)
        self.commander = Commander()
        self.published: list[tuple[int, Chunk]] = []
        self.late_ns = 10 * MS
        self.stamp = 0
        session = Session(engine, [], Budget(), expert=self.layout.expert)
        rule = JoinRule(mode)  # type: ignore[arg-type]
        self.loop = ControlLoop(
            session, self.layout, rule, self, self.commander, lambda: self.stamp + self.late_ns
        )

    def publish_chunk(self, expert: int, chunk: Chunk, tick: int, first_valid: int) -> None:
        self.published.append((expert, chunk))

    def tick(self) -> TickRecord:
        self.stamp += 100 * MS
        images = see(1, self.stamp // (100 * MS) % 200).images
        inputs = InputSet(self.stamp, images, SEEN, 0, 0, {"top": self.stamp}, 0, True)
        return self.loop.run(inputs, images, TickTimes(), None)

    @property
    def remembered(self) -> tuple[bool, bool]:
        """Whether there is a last chunk, and a trajectory that the controller follows."""
        return self.loop._joiner._last is not None, self.loop._joiner.trajectory is not None


def test_each_expert_has_its_own_space_joints_and_limits() -> None:
    """The base turns the second joint only, slowly: its chunk begins where that one stands."""
    scene = Scene()
    record = scene.tick()
    (arm, chunk), (base, other) = scene.published
    assert (arm, base) == (0, 1)
    assert chunk.space == joint_space(("mast", "waist"))
    assert other.space == joint_space(("waist",))
    assert (other.horizon, other.step) == (BASE.horizon, BASE.step)
    assert np.abs(other.values[:, 0] - SEEN[1]).max() <= 0.1 * BASE.horizon * BASE.step + 1e-9
    assert [item.expert for item in (record.chunk, *record.others)] == ["arm", "base"]
    assert set(record.others[0].clamped) <= {"waist.velocity"}
    ((joints, _),) = scene.commander.sent
    assert joints == ("mast", "waist")


def test_only_the_commanding_experts_chunks_are_counted() -> None:
    scene = Scene()
    scene.late_ns = 450 * MS  # the arm's chunk is over, the base's is not
    record = scene.tick()
    assert [expert for expert, _ in scene.published] == [1]
    assert "ready 0.450 s after its observation" in record.chunk.refusal
    assert record.others[0].refusal == ""
    assert record.state.chunks_refused == 1
    scene.late_ns = 10 * MS
    before = record.state.actions_clamped
    record = scene.tick()
    assert record.state.actions_clamped - before == sum(record.chunk.clamped.values())
    assert record.state.chunks_refused == 1


def test_a_refused_chunk_of_another_expert_is_not_counted() -> None:
    scene = Scene(
        **{"limits.mode": "refuse", "limits.waist.velocity": 1e9, "expert": "base"}, other_experts=["arm"]
    )
    scene.layout.limits.by_joint["mast"] = replace(scene.layout.limits.by_joint["mast"], velocity=1e-9)
    record = scene.tick()
    assert record.others[0].refusal.startswith("joint 'mast'")
    assert (record.chunk.refusal, record.state.chunks_refused) == ("", 0)


def test_a_hold_while_the_trajectory_is_sent_leaves_nothing_to_join() -> None:
    scene = Scene()
    scene.tick()
    assert scene.remembered == (True, True)
    scene.commander.meanwhile = scene.commander.hold
    scene.tick()
    assert len(scene.commander.sent) == 1
    scene.tick()  # held
    assert scene.remembered == (False, False)


def test_a_hold_that_came_and_went_is_noticed() -> None:
    """The controller was told to stand: the next way starts at the observed joints."""
    scene = Scene("replace")
    scene.tick()
    scene.commander.holds += 1
    scene.tick()
    (_, before), (_, after) = scene.commander.sent
    assert np.array_equal(after.start, SEEN)
    assert not np.array_equal(before.find_reference(after.start_ns, after.stamp_ns), SEEN)


def test_a_hold_between_the_chunk_and_its_trajectory_is_noticed() -> None:
    scene = Scene("replace")
    scene.tick()
    scene.model.before["denoise"] = lambda: setattr(scene.commander, "holds", 1)
    scene.tick()
    assert np.array_equal(scene.commander.sent[1][1].start, SEEN)


def test_without_commands_chunks_are_joined_but_no_way_is_followed() -> None:
    scene = Scene()
    scene.tick()
    scene.commander.is_enabled = False
    scene.tick()
    assert scene.remembered == (True, False)


@pytest.mark.parametrize("stop", [False, True], ids=["instruction", "error"])
def test_the_controller_still_follows_its_way_after(stop: bool) -> None:
    scene = Scene()
    scene.tick()
    if stop:
        scene.loop.stop(FinishReason.ERROR)
    else:
        scene.loop.instruct("turn")
    assert scene.remembered == (False, True)


def test_a_chunk_too_late_for_the_controller_leaves_it_on_the_way_before() -> None:
    """It was published in time, and the time ran out before its trajectory was made."""
    scene = Scene("replace")
    scene.tick()
    before = scene.commander.sent[0][1]
    instants = iter([10 * MS, 500 * MS])
    scene.loop.now_ns = lambda: scene.stamp + next(instants, 10 * MS)
    record = scene.tick()
    assert "nothing of the chunk is left" in record.chunk.refusal
    assert scene.loop._joiner.trajectory is before


def test_a_space_that_cannot_be_commanded_or_joined_is_refused_by_name() -> None:
    deltas = replace(EXPERT, action_space=joint_space(("lift", "turn"), ComponentKind.JOINT_DELTA, "rad"))
    spec = replace(SPEC, experts=(deltas, BASE))
    with pytest.raises(ParameterProblem, match=r"'command.enabled' is true, but .* 'mast' is a joint_delta"):
        make_layout(make_settings({**VALUES, "command.enabled": True}), spec)
    with pytest.raises(ParameterProblem, match=r"'join.mode' is 'rtc', but .* 'mast' is a joint_delta"):
        make_layout(make_settings({**VALUES, "join.mode": "rtc"}), spec)
    assert explain_uncommandable(make_layout(make_settings(VALUES), spec).space)
    # Another expert's space does not matter.
    make_layout(
        make_settings({**VALUES, "expert": "base", "other_experts": ["arm"], "command.enabled": True}), spec
    )


def test_joints_that_only_another_expert_moves_need_limits_too() -> None:
    values = {**VALUES, "expert": "base", "other_experts": ["arm"]}
    assert set(make_layout(make_settings(values), SPEC).unlimited) == {"mast", "waist"}
    with pytest.raises(ParameterProblem, match=r"robot_description has no joint 'mast' that moves"):
        make_layout(
            make_settings({**values, "limits.waist.lower": -1.0, "limits.waist.upper": 1.0}), SPEC, {}
        )


@pytest.mark.parametrize("others", [[], ["base"]])
def test_what_the_commanding_chunk_took_does_not_count_the_other_experts(others: list[str]) -> None:
    scene = Scene(other_experts=others)
    clock = scene.loop.session.engine.clock
    scene.model.before["denoise"] = lambda: clock.sleep(0.1)  # type: ignore[attr-defined]
    assert scene.tick().times.chunk == pytest.approx(0.1, abs=0.05)
