# SPDX-License-Identifier: Apache-2.0
"""How smoothly chunks are joined: jumps of speed and acceleration of the simulated arm, by mode and delay.

    python -m oxygen_ros.sim.joins --png docs/joins.png --json build/joins.json

Here lives the loop in simulated time and what is measured in it: observe, infer for a set time while the arm
goes on, join, limit, hand over to the trajectory executor, as the node does. The policy is `joins_policy`,
the picture `joins_page`. No ROS, no rendering, no network: the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from oxygen_ros.observation import Observation
from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.join import Joiner
from oxygen_ros.robot.limits import JointLimit, Limits
from oxygen_ros.robot.overlap import MODES, SCHEDULES, JoinRule, Overlap
from oxygen_ros.sim import geometry as g
from oxygen_ros.sim.joins_policy import ScatteredExpert
from oxygen_ros.sim.task import Task
from oxygen_ros.sim.trajectory import TrajectoryExecutor
from oxygen_ros.sim.world import World, rest_joints

_NS: Final = 1_000_000_000
_PERIOD_NS: Final = round(g.CONTROL_PERIOD * _NS)
_ARM: Final = slice(0, 6)
_WINDOW: Final = 0.1
"""Seconds after a join in which the arm's acceleration is looked at."""
_NUDGE_EVERY: Final = 3.0
"""Seconds between two nudges of the blocks, which make the plan change."""


_HEAD: Final = (
    "                       speed jump         acceleration jump\n"
    "mode     delay joins    median       95 %    median     95 %  between  behind  idle placed"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """One run. delay: of inference, as part of the chunk; period: seconds between ticks, if that allows."""

    rule: JoinRule
    delay: float
    horizon: int = 20
    step: float = 0.05
    denoise_steps: int = 10
    period: float = 0.2
    seconds: float = 20.0
    seed: int = 0

    @property
    def delay_steps(self) -> int:
        return round(self.delay * self.horizon)


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run came to, over all joins; of the joint in which it was largest.

    speed_jump:         change of the reference's speed at a join [rad/s]: median and 95th percentile
    acceleration_jump:  largest change of the arm's acceleration from one control period to the next in 0.1 s
                        after a join [rad/s^2], likewise
    between:            the speed jump where two actions of one chunk meet, for comparison
    behind:             how far the first quarter second of what was executed of a chunk is from the expert's
                        plan of that observation [rad, root mean square]: what smoothness costs
    idle:               part of the time in which a chunk had run out and the arm stood
    slowed:             part of the joins at which the speed limit changed the way
    placed:             blocks put into the box
    """

    mode: str
    delay: float
    joins: int
    speed_jump: tuple[float, float]
    acceleration_jump: tuple[float, float]
    between: tuple[float, float]
    behind: float
    idle: float
    slowed: float
    placed: int


class Run:
    """One arm under one rule."""

    def __init__(self, plan: Plan) -> None:
        task = self._task = Task()
        self._plan = plan
        self._world = World(plan.seed, task)
        self._policy = ScatteredExpert(task, plan.horizon, plan.step, plan.denoise_steps, plan.seed)
        self._follow = TrajectoryExecutor(g.JOINTS, rest_joints())
        bounds = zip(g.JOINTS, g.JOINT_LOWER, g.JOINT_UPPER, g.JOINT_SPEED, strict=True)
        # What is pressed against something reads outside its range; the executor's targets stay within it.
        self._limits = Limits({n: JointLimit(lo - 0.1, up + 0.1, v) for n, lo, up, v in bounds}, "clamp")
        self._joiner = Joiner(self._limits)
        rule = replace(plan.rule, delay=plan.delay_steps, max_weight=float(plan.denoise_steps))
        self._overlap = Overlap(rule)
        self._rng = np.random.default_rng(plan.seed)
        self._periods = 0
        self._references = [rest_joints()]
        self._speeds = [np.zeros(len(g.JOINTS))]
        self._joins: list[int] = []
        self._knots: list[int] = []
        self._behind: list[float] = []
        self._idle = 0

    def measure(self) -> Figures:
        """Run to the end and look back. Raises RuntimeError when nothing was joined."""
        plan = self._plan
        ends = round(plan.seconds / g.CONTROL_PERIOD)
        every = round(_NUDGE_EVERY / g.CONTROL_PERIOD)
        nudges = 0
        while self._periods < ends:
            if self._periods // every > nudges:
                nudges += 1
                self._nudge()
            self._tick()
        # The first chunk joins nothing.
        joins = self._joins[1:]
        if not joins:
            raise RuntimeError(f"no join in {plan.seconds:g} s: run longer")
        rates = np.diff(np.array(self._references)[:, _ARM], axis=0) / g.CONTROL_PERIOD
        jumps = np.abs(np.diff(rates, axis=0)).max(axis=1)
        accelerations = np.diff(np.array(self._speeds)[:, _ARM], axis=0) / g.CONTROL_PERIOD
        jerks = np.abs(np.diff(accelerations, axis=0)).max(axis=1)
        window = round(_WINDOW / g.CONTROL_PERIOD)
        at_joins = set(joins)
        others = [at for at in self._knots if at not in at_joins and at < len(jumps)]
        return Figures(
            mode=plan.rule.mode,
            delay=plan.delay,
            joins=len(joins),
            speed_jump=_spread([jumps[at - 1] for at in joins if at - 1 < len(jumps)]),
            acceleration_jump=_spread(
                [jerks[at - 1 : at - 1 + window].max() for at in joins if at < len(jerks)]
            ),
            between=_spread([jumps[at - 1] for at in others]),
            behind=float(np.sqrt(np.mean(np.square(self._behind)))),
            idle=self._idle / self._periods,
            slowed=self._joiner.slowed / len(self._joins),
            placed=self._world.blocks_in_box(self._task.colour),
        )

    def _tick(self) -> None:
        plan, began = self._plan, self._periods
        stamp = self._now_ns()
        state = self._world.state()
        seen = Observation(stamp, {}, state.positions, "")
        previous = self._overlap.find_previous(seen, plan.horizon, plan.step)
        actions, wanted = self._policy.act(state, previous)
        self._move(plan.delay_steps * plan.step)
        chunk = self._overlap.blend(Chunk(stamp, plan.step, g.JOINTS, actions, "position"))
        limited = self._limits.apply(chunk, state.positions).chunk
        now = self._now_ns()
        try:
            offsets, points = self._joiner.join(limited, state.positions, now)
        except ChunkError as error:
            raise RuntimeError(f"a delay of {plan.delay:g} of the chunk leaves nothing: {error}") from error
        self._overlap.remember(limited)
        self._follow.accept(g.JOINTS, stamp, offsets, g.clip_joints(points), now)
        self._joins.append(self._periods)
        first = limited.first_valid(now)
        self._behind += [*np.abs(limited.values - wanted)[first : first + 5, _ARM].max(axis=1)]
        due = (offsets + stamp) // _PERIOD_NS - 1
        self._knots = [at for at in self._knots if at <= self._periods] + [int(at) for at in due[:-1]]
        self._move(max(plan.period - (self._periods - began) * g.CONTROL_PERIOD, 0.0))

    def _now_ns(self) -> int:
        # Above zero: a zero stamp means "now" to who follows trajectories.
        return (self._periods + 1) * _PERIOD_NS

    def _move(self, seconds: float) -> None:
        for _ in range(round(seconds / g.CONTROL_PERIOD)):
            self._idle += self._follow.finished(self._now_ns()) and bool(self._joins)
            target = self._follow.target(self._now_ns() + _PERIOD_NS)
            self._world.step(target)
            self._periods += 1
            self._references.append(target)
            self._speeds.append(self._world.joint_velocities())

    def _nudge(self) -> None:
        """Move the blocks nobody holds by some centimetres: what was planned is no longer right."""
        for index, block in enumerate(self._world.state().blocks):
            x, y, z = block.position
            if not (block.held or block.in_box):
                dx, dy = self._rng.normal(0.0, 0.015, 2)
                self._world.place_block(index, (x + float(dx), y + float(dy), z))


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Median and 95th percentile."""
    if not len(values):
        return (0.0, 0.0)
    return (float(np.median(values)), float(np.percentile(values, 95)))


def measure_all(plans: Sequence[Plan]) -> Iterator[Figures]:
    """The figures of each plan, in order."""
    for plan in plans:
        yield Run(plan).measure()


def make_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m oxygen_ros.sim.joins",
        description="Jumps of speed and acceleration where chunks are joined, in the simulated arm.",
    )
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 0.2, 0.4, 0.6, 0.8], metavar="PART")
    parser.add_argument("--seconds", type=float, default=20.0, help="simulated, of each run")
    parser.add_argument("--seed", type=int, default=3)
    parser.add_argument("--overlap", type=int, default=None, help="steps; default: all that is left")
    parser.add_argument("--schedule", choices=SCHEDULES, default="exp")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--png", type=Path, help="draw them here")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, write."""
    options = make_parser().parse_args(arguments)
    plans = [
        Plan(
            JoinRule(mode, overlap=options.overlap, schedule=options.schedule),
            delay,
            seconds=options.seconds,
            seed=options.seed,
        )
        for mode in MODES
        for delay in options.delays
    ]
    found: list[Figures] = []
    print(_HEAD)
    for figures in measure_all(plans):
        found.append(figures)
        print(tell(figures), flush=True)
    if options.json is not None:
        write_figures(options.json, plans, found)
    if options.png is not None:
        from oxygen_ros.sim.joins_page import draw  # matplotlib is an extra

        draw(options.png, found, plans[0])
    return 0


def tell(figures: Figures) -> str:
    """A line of the table under `_HEAD`."""
    pairs = (figures.speed_jump, figures.acceleration_jump)
    jumps = "  ".join(f"{median:8.3f} {most:8.3f}" for median, most in pairs)
    return (
        f"{figures.mode:8} {figures.delay:5.0%} {figures.joins:5d}  {jumps}  {figures.between[0]:7.3f} "
        f"{figures.behind:7.4f} {figures.idle:5.0%} {figures.placed:6d}"
    )


def write_figures(path: Path, plans: Sequence[Plan], found: Sequence[Figures]) -> None:
    """Plans and figures as JSON."""
    rows: list[dict[str, Any]] = [
        {"plan": asdict(plan), "figures": asdict(figures)} for plan, figures in zip(plans, found, strict=True)
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
