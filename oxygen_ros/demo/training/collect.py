# SPDX-License-Identifier: Apache-2.0
"""Episodes in the simulator to shards of labeled frames.

Two ways, one loop. Demonstrations: the expert works, is pushed off its path at times, and returns. DAgger
(Ross et al. 2011): the policy works, the expert takes over from its state. Only frames under the expert are
kept, labeled with its next commands: a label never comes from a plan that physics did not confirm.

One process makes one shard; the same seed makes the same shard.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.expert import act, decide
from oxygen_ros.demo.sim.kinematics import Pose, Unreachable, gripper_pose, inverse
from oxygen_ros.demo.sim.state import State
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training.records import HISTORY, HORIZON, NOT_YET, PHASES, RECORD, STEP, write_shard
from oxygen_ros.demo.training.views import draw_arm, draw_task

FIRST_SEED: Final = 1_000_000
"""Layouts below this number are never trained on."""
_PERIODS: Final = round(STEP / g.CONTROL_PERIOD)
_LEAST: Final = 4
"""Frames with fewer expert steps after them are not kept."""
_LONGEST_DROP: Final = 9
"""Frames of one drop; a block that falls is in the box long before."""
_LONGEST: Final = 16.0
"""Episodes end after this many seconds; most are much shorter: new layouts are worth more."""

Frames = dict[str, NDArray[np.uint8]]
Policy = Callable[[Frames, NDArray[np.float64], Task, int, int], NDArray[np.float64]]
"""(pictures, joints [7], task, blocks inside as remembered or NOT_YET, stamp) -> targets [n, 7]"""


@dataclass(slots=True)
class LabeledEpisode:
    """One episode under way. `commands` has one row more than steps were made."""

    world: World
    task: Task
    rng: np.random.Generator
    size: int
    commands: list[NDArray[np.float64]] = field(default_factory=list)
    inside: deque[int] = field(default_factory=lambda: deque([NOT_YET] * (HISTORY + 1), HISTORY + 1))
    kept: list[tuple[int, NDArray[np.uint8], NDArray[np.void]]] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)

    @property
    def now(self) -> int:
        """Steps made."""
        return len(self.commands) - 1

    def begin(self) -> None:
        """Time zero is here; everything before it was setting up."""
        self.commands = [self.world.state().targets]
        self.inside[0] = self.world.blocks_in_box(self.task.color)

    def step(self, path: NDArray[np.float64] | None) -> None:
        """One STEP under the expert (None) or along `path` [_PERIODS, 7]."""
        for period in range(_PERIODS):
            self.world.step(act(self.world.state(), self.task) if path is None else path[period])
        state = self.world.state()
        self.commands.append(state.targets)
        self.inside.appendleft(state.count_in_box(self.task.color))

    def follow(self, path: NDArray[np.float64]) -> None:
        """A whole path [n, 7] of joint targets, one a control period, padded to whole steps."""
        short = -len(path) % _PERIODS
        padded = np.concatenate([path, np.repeat(path[-1:], short, axis=0)])
        for first in range(0, len(padded), _PERIODS):
            self.step(padded[first : first + _PERIODS])

    def pictures(self) -> Frames:
        return {name: self.world.render(name, self.size, self.size) for name in ("top", "wrist")}

    def keep(self, from_policy: bool) -> None:
        """Keep this instant as a frame; its label is filled in when the segment has ended."""
        state = self.world.state()
        intent = decide(state, self.task)
        record = np.zeros((), RECORD)
        record["seed"], record["time"] = self.world.seed, self.now * STEP
        record["joints"] = state.positions
        record["colour"], record["count"] = g.COLORS.index(self.task.color), self.task.count
        record["inside"] = list(self.inside)
        record["phase"] = PHASES.index(intent.phase.value)
        record["acted"] = g.COLORS.index(intent.color)
        record["policy"] = from_policy
        record["blocks"][:, 4] = -1
        for i, block in enumerate(state.blocks):
            seen = -1 if block.in_box else g.COLORS.index(block.color)
            record["blocks"][i] = (*block.position, block.yaw, seen)
        views = self.pictures()
        self.kept.append((self.now, np.stack([views["top"], views["wrist"]]), record))

    def label(self, first_kept: int, end: int, goes_on: bool) -> None:
        """Give the frames from `first_kept` on the commands up to step `end`; then rest, if it `goes_on`."""
        for at, _, record in self.kept[first_kept:]:
            rows = self.commands[at + 1 : min(at + HORIZON, end) + 1]
            record["valid"] = HORIZON if goes_on else len(rows)
            padding = [rows[-1] if rows else self.commands[at]] * (HORIZON - len(rows))
            record["targets"] = np.stack([*rows, *padding])


def lay_out(world: World, task: Task, already: int, seed: int, rng: np.random.Generator) -> None:
    """A new layout with `already` of the task's blocks moved into the box."""
    world.task = task
    world.reset(seed)
    x, y = g.BOX_CENTER
    corner = 0.035
    for k in range(already):
        at = (x + (corner if k else -corner), y + float(rng.uniform(-corner, corner)), g.BLOCK / 2)
        world.place_block(k, at, float(rng.uniform(-0.7, 0.7)))


def scatter_arm(world: World, rng: np.random.Generator) -> bool:
    """Put the arm somewhere over the mat before time zero; whether it was.

    Never empty over the box: that must mean that a block was just released.
    """
    arm = draw_arm(world.state(), rng, to_box=False)
    if arm is not None:
        world.place_arm(arm)
    return arm is not None


def run_episode(
    world: World, seed: int, rng: np.random.Generator, size: int, policy: Policy | None
) -> list[tuple[NDArray[np.uint8], NDArray[np.void]]]:
    """One episode; its labeled frames."""
    task, already = draw_task(rng)
    lay_out(world, task, already, seed, rng)
    episode = LabeledEpisode(world, task, rng, size)
    scattered = rng.random() < (0.75 if policy is None else 0.5) and scatter_arm(world, rng)
    if already or rng.random() < (0.7 if scattered else 0.4):  # already under way
        episode.inside.extend([already] * (HISTORY + 1))
    longest = float(rng.uniform(1.5, 5.0)) if scattered or rng.random() < 0.4 else _LONGEST
    episode.begin()
    calm = policy is None and rng.random() < 0.3
    pushed = False
    while episode.now * STEP < longest:
        first = len(episode.kept)
        steps = 160 if calm else int(rng.integers(8, 26) if policy is None else rng.integers(7, 15))
        end = min(episode.now + steps, round(longest / STEP))
        outcome = _expert_segment(episode, end, pushed, policy is not None)
        episode.label(first, episode.now, goes_on=outcome == "done")
        if outcome != "going":
            break
        if policy is None:
            state = world.state()
            episode.follow(path_to(state.targets, draw_push(state, rng), float(rng.uniform(0.15, 0.5))))
        else:
            for _ in range(int(rng.integers(1, 7))):
                _policy_step(episode, policy)
        pushed = True
    return [(frame, record) for _, frame, record in episode.kept if record["valid"] >= _LEAST]


def _expert_segment(episode: LabeledEpisode, end: int, pushed: bool, from_policy: bool) -> str:
    """The expert up to step `end`, every frame kept.

    Returns "going", "done" (and the arm at rest) or "jammed": a block lies across the box's rim,
    and the expert waits for it to fall.
    """
    resting = dropping = 0
    while episode.now < end:
        if end - episode.now >= _LEAST:
            episode.keep(pushed and from_policy)
            dropping = dropping + 1 if episode.kept[-1][2]["phase"] == PHASES.index("drop") else 0
        episode.step(None)
        finished = episode.inside[0] >= episode.task.count
        still = float(np.abs(episode.commands[-1] - episode.commands[-2]).max()) < 1e-3
        resting = resting + 1 if finished and still else 0
        if resting >= 4:
            return "done"
        if dropping > _LONGEST_DROP:
            del episode.kept[-_LONGEST_DROP:]
            return "jammed"
    return "going"


def _policy_step(episode: LabeledEpisode, policy: Policy) -> None:
    """The policy for 4 or 6 steps of one chunk, as the node would splice it."""
    rng, state = episode.rng, episode.world.state()
    remembered = episode.inside[int(rng.integers(5, 12))]
    stamp = int(rng.integers(1 << 40))
    chunk = policy(episode.pictures(), state.positions, episode.task, remembered, stamp)
    before = state.targets
    for target in chunk[: int(rng.choice((4, 6)))]:
        ramp = np.linspace(0.0, 1.0, _PERIODS + 1)[1:, None]
        episode.step(before + (target - before) * ramp)
        before = target


def collect_shard(
    folder: Path, number: int, frames: int, size: int, policy: Policy | None = None, prefix: str = "demo"
) -> int:
    """Make shard `number` of at least `frames` frames; returns how many. One that exists is left alone."""
    name = f"{prefix}{number:04d}"
    if (folder / f"{name}.records.npy").exists():
        return 0
    rng = np.random.default_rng([number, len(prefix)])
    world = World(0)
    found: list[tuple[NDArray[np.uint8], NDArray[np.void]]] = []
    try:
        episode = 0
        while len(found) < frames:
            seed = FIRST_SEED + number * 10_000 + episode + (500_000_000 if policy else 0)
            found += run_episode(world, seed, rng, size, policy)
            episode += 1
    finally:
        world.close()
    write_shard(folder, name, np.stack([f for f, _ in found]), np.stack([r for _, r in found]))
    return len(found)


# -- pushes --------------------------------------------------------------------------------------

_PUSH = np.array([0.028, 0.028, 0.022])
"""Standard deviation of a push of the TCP [m]."""
_LOWEST = 0.014


def draw_push(state: State, rng: np.random.Generator) -> NDArray[np.float64]:
    """Joint targets [7] a push ends at: near where the arm is, or the same place with other fingers.

    The arm stays near its path: an empty hand over the box must mean that a block was just released.
    """
    targets = np.array(state.targets)
    kind = rng.random()
    if kind < 0.12:  # stand still for a moment
        return targets
    if kind < 0.30:  # fingers only
        targets[6] = rng.uniform(g.CLOSED, g.OPEN)
        return g.clip_joints(targets)
    here = gripper_pose(state.targets)
    size = _PUSH * (0.35 if rng.random() < 0.4 else 1.0)
    x, y, z = np.array([here.x, here.y, here.z]) + rng.normal(0.0, size)
    z = max(z, min(here.z, _LOWEST) if rng.random() < 0.5 else 0.05)
    try:
        arm = inverse(Pose(float(x), float(y), float(z), 0.0))
    except Unreachable:
        return targets
    targets[:5] = arm[:5]
    targets[5] += rng.normal(0.0, 0.25)
    if rng.random() < 0.15:
        targets[6] = rng.uniform(g.CLOSED, g.OPEN)
    return g.clip_joints(targets)


def path_to(start: NDArray[np.float64], end: NDArray[np.float64], seconds: float) -> NDArray[np.float64]:
    """Joint targets [periods, 7] from `start` to `end`, starting and ending at rest, within speed limits."""
    speed_limited = float(np.max(1.6 * np.abs(end - start) / g.JOINT_SPEED))
    periods = max(2, round(max(seconds, speed_limited) / g.CONTROL_PERIOD))
    s = np.linspace(0.0, 1.0, periods + 1)[1:, None]
    path: NDArray[np.float64] = start + (end - start) * (s * s * (3 - 2 * s))
    return path
