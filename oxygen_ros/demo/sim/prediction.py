# SPDX-License-Identifier: Apache-2.0
"""What the state will be one control period later, without physics: enough to plan a second or two ahead.

A kinematic stand-in for the world: joints follow their targets at once, a block between
closing fingers is held and moves along with them, a block let go is in the box or on the table.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.demo.sim import geometry as g
from oxygen_ros.demo.sim.kinematics import forward
from oxygen_ros.demo.sim.state import Block, State


def predict(state: State, targets: NDArray[np.float64], dt: float = g.CONTROL_PERIOD) -> State:
    """The state `dt` seconds after `state` when the joints are sent to `targets` [7]."""
    before, _ = forward(state.targets)
    after, turn = forward(targets)
    move = after - before
    held = state.held
    blocks = state.blocks
    if held is not None:
        block = blocks[held]
        if targets[6] > g.BLOCK:
            block = _let_go(block)
        else:
            x, y, z = block.position
            block = replace(block, position=(x + float(move[0]), y + float(move[1]), z + float(move[2])))
        blocks = (*blocks[:held], block, *blocks[held + 1 :])
    elif targets[6] <= g.BLOCK < state.targets[6]:
        blocks = tuple(_caught(block, after, turn) for block in blocks)
    positions = targets.copy()
    if any(block.held for block in blocks):
        positions[6] = max(g.BLOCK, positions[6])
    return State(
        time=state.time + dt,
        positions=positions,
        velocities=(positions - state.positions) / dt,
        targets=targets,
        target_rates=(targets - state.targets) / dt,
        blocks=blocks,
    )


def _let_go(block: Block) -> Block:
    x, y, _ = block.position
    over = abs(x - g.BOX_CENTER[0]) < g.HOLE / 2 and abs(y - g.BOX_CENTER[1]) < g.HOLE / 2
    return replace(block, position=(x, y, g.BLOCK / 2), in_box=over, held=False)


def _caught(block: Block, tcp: NDArray[np.float64], turn: NDArray[np.float64]) -> Block:
    across, along, up = (np.array(block.position) - tcp) @ turn
    near = abs(across) < g.BLOCK / 2 and abs(along) < (g.OPEN - g.BLOCK) / 2 and abs(up) < g.BLOCK / 2
    return replace(block, held=True) if near and not block.in_box else block


def periods_in(step: float, dt: float = g.CONTROL_PERIOD) -> int:
    """Periods of `dt` in `step` seconds; ValueError unless it is a positive whole number of them."""
    periods = round(step / dt)
    if periods < 1 or not math.isclose(periods * dt, step, rel_tol=1e-6):
        raise ValueError(f"step {step} s is not a positive multiple of the control period, {dt} s")
    return periods
