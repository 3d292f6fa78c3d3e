# SPDX-License-Identifier: Apache-2.0
"""How smoothly chunks are joined: jumps of speed and acceleration of the simulated arm, by mode and delay.

    python -m oxygen_ros.demo.joins --png docs/joins.png --json build/joins.json

A loop in simulated time: observe, infer for a set time while the arm moves on, join, limit, pass to the
trajectory executor, as the node does. The policy is a stand-in with a known result. No ROS, no rendering, no
network: the figures do not depend on the machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.actions import joint_space
from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.expert import plan
from oxygen_ros.demo.sim.state import State
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.trajectory import TrajectoryExecutor
from oxygen_ros.demo.sim.world import World, rest_joints
from oxygen_ros.models.flow import Flow, integrate
from oxygen_ros.models.interface import Guide
from oxygen_ros.observation import Leftover
from oxygen_ros.robot.chunk import Chunk, ChunkError
from oxygen_ros.robot.joining import MODES, SCHEDULES, ChunkJoiner, JoinRule
from oxygen_ros.robot.limits import JointLimit, Limits

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NS: Final = 1_000_000_000
_PERIOD_NS: Final = round(g.CONTROL_PERIOD * _NS)
_ARM: Final = slice(0, 6)
_WINDOW: Final = 0.1
"""Seconds after a join in which the arm's acceleration is looked at."""
_NUDGE_EVERY: Final = 3.0
"""Seconds between two nudges of the blocks, which make the plan change."""
SCATTER: Final = np.array([0.03, 0.03, 0.03, 0.03, 0.03, 0.03, 0.002])
"""Standard deviation of an action at the chunk's end, of each joint [rad, the gripper m]."""
_AT_ONCE: Final = 0.25
"""Part of it that the first action has already."""
_MEMORY: Final = 0.3
"""Seconds along the chunk over which deviations change."""
UNIT: Final = np.array([0.3, 0.3, 0.3, 0.3, 0.3, 0.3, 0.03])
"""What 1 is in the model's units: deltas from the joints observed [rad, the gripper m]."""

_HEAD: Final = (
    "                       speed jump         acceleration jump\n"
    "mode     delay joins    median       95 %    median     95 %  between  behind  idle placed"
)
_COLORS: Final = {"replace": "#b3492f", "blend": "#c79a1e", "rtc": "#22658f"}
_LABELS: Final = {"replace": "replace", "blend": "blend", "rtc": "rtc (guided)"}


# -- the policy --------------------------------------------------------------------------------


class ScatteredExpert:
    """A flow-matching policy with a known result: chunks [H, 7] of joint targets about the expert's plan.

    It replaces a model: a Gaussian about the scripted expert's plan, with deviations that change slowly
    along the chunk and grow towards its end, as those of a learned policy do. Its velocity field is exact, so
    the denoise loop, the guide and the schedule are those of the models (models.flow), without a network.
    """

    def __init__(self, task: Task, horizon: int, step: float, denoise_steps: int, seed: int) -> None:
        self.horizon, self.step, self.denoise_steps = horizon, step, denoise_steps
        self._task = task
        self._noise = np.random.default_rng(seed)
        self._flow = Flow([1.0 - k / denoise_steps for k in range(denoise_steps)])
        at = step * np.arange(1, horizon + 1)
        grown = _AT_ONCE + (1 - _AT_ONCE) * at / at[-1]
        alike = np.exp(-0.5 * ((at[:, None] - at) / _MEMORY) ** 2)
        covariance = alike * grown[:, None] * grown + 1e-8 * np.eye(horizon)
        # E[x1 | x_t] = mean + gain (x_t - (1 - t) mean), for every joint alike, up to its scale.
        self._gains = [
            [torch.from_numpy(self._gain(covariance * scale**2, t)).float() for scale in SCATTER / UNIT]
            for t in self._flow.times
        ]

    def act(self, state: State, leftover: Leftover | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A chunk, and the expert's own plan it is scattered about, both [H, 7].

        leftover: what the denoise loop is guided towards
        """
        wanted = plan(state, self._task, self.horizon, self.step)
        joints = state.positions
        mean = self._normalize(wanted, joints)
        guide = None
        if leftover is not None:
            weights = torch.from_numpy(leftover.weights).float()[:, None].expand_as(mean)
            guide = Guide(self._normalize(leftover.actions, joints), weights, leftover.max_weight)
        noise = torch.from_numpy(self._noise.standard_normal(wanted.shape)).float()

        def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
            t = self._flow.times[step]
            away = x - (1 - t) * mean
            clean = mean + torch.stack([gain @ away[:, j] for j, gain in enumerate(self._gains[step])], 1)
            return (x - clean) / t

        actions = integrate(noise, self._flow, velocity, guide)
        return actions.double().numpy() * UNIT + joints, wanted

    @staticmethod
    def _gain(covariance: NDArray[np.float64], t: float) -> NDArray[np.float64]:
        seen = (1 - t) ** 2 * covariance + t**2 * np.eye(len(covariance))
        gain: NDArray[np.float64] = (1 - t) * np.linalg.solve(seen, covariance).T
        return gain

    @staticmethod
    def _normalize(actions: NDArray[np.float64], joints: NDArray[np.float64]) -> torch.Tensor:
        return torch.from_numpy((actions - joints) / UNIT).float()


# -- the measurement ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class JoinPlan:
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
    """The figures of one run, over all joins; of the joint in which they were largest.

    speed_jump:         change of the reference's speed at a join [rad/s]: median and 95th percentile
    acceleration_jump:  largest change of the arm's acceleration from one control period to the next in 0.1 s
                        after a join [rad/s^2], likewise
    between:            the speed jump where two actions of one chunk meet, for comparison
    behind:             how far the first quarter second of what was executed of a chunk is from the expert's
                        plan of that observation [rad, root mean square]: what smoothness costs
    idle:               part of the time in which a chunk had run out and the arm stood
    slowed:             part of the joins at which the speed limit changed the trajectory
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


class JoinMeasurement:
    """One arm under one rule."""

    def __init__(self, plan: JoinPlan) -> None:
        task = self._task = Task()
        self._plan = plan
        self._world = World(plan.seed, task)
        self._policy = ScatteredExpert(task, plan.horizon, plan.step, plan.denoise_steps, plan.seed)
        self._follow = TrajectoryExecutor(g.JOINTS, rest_joints())
        bounds = zip(g.JOINTS, g.JOINT_LOWER, g.JOINT_UPPER, g.JOINT_SPEED, strict=True)
        # A pressed joint reads outside its range; the executor's targets stay within it.
        self._limits = Limits({n: JointLimit(lo - 0.1, up + 0.1, v) for n, lo, up, v in bounds}, "clamp")
        rule = replace(plan.rule, delay=plan.delay_steps, max_weight=float(plan.denoise_steps))
        self._joiner = ChunkJoiner(rule, self._limits)
        self._space = joint_space(g.JOINTS)
        self._rng = np.random.default_rng(plan.seed)
        self._periods = 0
        self._references = [rest_joints()]
        self._speeds = [np.zeros(len(g.JOINTS))]
        self._joins: list[int] = []
        self._knots: list[int] = []
        self._behind: list[float] = []
        self._idle = 0

    def measure(self) -> Figures:
        """Run to the end and evaluate. Raises RuntimeError when nothing was joined."""
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
            placed=self._world.blocks_in_box(self._task.color),
        )

    def _tick(self) -> None:
        plan, began = self._plan, self._periods
        stamp = self._now_ns()
        state = self._world.state()
        leftover = self._joiner.find_leftover(stamp, state.positions, plan.horizon, plan.step)
        actions, wanted = self._policy.act(state, leftover)
        self._move(plan.delay_steps * plan.step)
        chunk = self._joiner.blend(Chunk(stamp, plan.step, self._space, actions))
        limited = self._limits.apply(chunk, state.positions).chunk
        now = self._now_ns()
        try:
            trajectory = self._joiner.join(limited, state.positions, now)
        except ChunkError as error:
            raise RuntimeError(f"a delay of {plan.delay:g} of the chunk leaves nothing: {error}") from error
        self._joiner.remember(limited, trajectory)
        positions = g.clip_joints(trajectory.positions)
        self._follow.accept(g.JOINTS, stamp, trajectory.offsets, positions, now)
        self._joins.append(self._periods)
        first = limited.first_valid(now)
        self._behind += [*np.abs(limited.values - wanted)[first : first + 5, _ARM].max(axis=1)]
        due = (trajectory.offsets + stamp) // _PERIOD_NS - 1
        self._knots = [at for at in self._knots if at <= self._periods] + [int(at) for at in due[:-1]]
        self._move(max(plan.period - (self._periods - began) * g.CONTROL_PERIOD, 0.0))

    def _now_ns(self) -> int:
        # Above zero: for a trajectory controller a zero stamp means "now".
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
        """Move the blocks that are not held by some centimeters: the plan is no longer right."""
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


def make_parser() -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = argparse.ArgumentParser(
        prog="python -m oxygen_ros.demo.joins",
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
        JoinPlan(
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
    for each in plans:
        found.append(JoinMeasurement(each).measure())
        print(tell(found[-1]), flush=True)
    if options.json is not None:
        write_figures(options.json, plans, found)
    if options.png is not None:
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


def write_figures(path: Path, plans: Sequence[JoinPlan], found: Sequence[Figures]) -> None:
    """Plans and figures as JSON."""
    rows: list[dict[str, Any]] = [
        {"plan": asdict(plan), "figures": asdict(figures)} for plan, figures in zip(plans, found, strict=True)
    ]
    path.write_text(json.dumps(rows, indent=1) + "\n")


# -- the plot ----------------------------------------------------------------------------------


def draw(path: Path, found: Sequence[Figures], plan: JoinPlan) -> None:
    """Write the plot as PNG. plan: any of those measured, for what they have in common."""
    # An extra that only the plot needs.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.5, 3.9), layout="constrained")
    axes = figure.subplots(1, 3)
    _panel(axes[0], found, "speed jump at a join [rad/s]", lambda f: f.speed_jump)
    _panel(axes[1], found, "acceleration jump of the arm [rad/s²]", lambda f: f.acceleration_jump)
    _panel(axes[2], found, "distance from the newest plan [rad]", lambda f: (f.behind,))
    for axis in axes:
        _shade(axis, plan)
    axes[0].legend(frameon=False, loc="upper left", fontsize=9)
    overlap = "all that is left" if plan.rule.overlap is None else f"{plan.rule.overlap * plan.step:g} s"
    figure.suptitle(
        f"Chunks of {plan.horizon} actions, {plan.step:g} s apart; a tick every {plan.period:g} s or as soon "
        f"as inference is done; overlap: {overlap}, {plan.rule.schedule}. Dotted: 95th percentile.",
        fontsize=9,
    )
    figure.savefig(path, dpi=120)


def _panel(
    axis: Axes, found: Sequence[Figures], title: str, pick: Callable[[Figures], tuple[float, ...]]
) -> None:
    for mode, color in _COLORS.items():
        chosen = [figures for figures in found if figures.mode == mode]
        delays = [100 * figures.delay for figures in chosen]
        for index, style in enumerate(("-", ":")):
            values = [pick(figures) for figures in chosen]
            if values and index < len(values[0]):
                label = _LABELS[mode] if index == 0 else None
                heights = [value[index] for value in values]
                axis.plot(delays, heights, style, color=color, label=label, marker="o", markersize=3.5)
    axis.set_title(title, fontsize=10, loc="left")
    axis.set_xlabel("inference delay [% of the chunk]")
    axis.set_ylim(bottom=0)
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)


def _shade(axis: Axes, plan: JoinPlan) -> None:
    """Where a chunk runs out before the next one: one thread cannot observe again any sooner."""
    axis.axvspan(50, 82, color="#888888", alpha=0.14, linewidth=0)
    axis.set_xlim(-2, 82)
    axis.text(
        66, 0.03, "the arm waits", ha="center", va="bottom", fontsize=8, transform=axis.get_xaxis_transform()
    )


if __name__ == "__main__":
    raise SystemExit(main())
