# SPDX-License-Identifier: Apache-2.0
"""The first stage: the vision tower alone learns to detect blocks.

Four times as many frames a second as the whole network, and of more layouts. `auxiliary_heads` has the head,
`views` makes the frames.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from oxygen_ros.demo.training.auxiliary_heads import spotting_loss
from oxygen_ros.demo.training.batch import Dataset
from oxygen_ros.demo.training.learn import Trainer

_FALL = 0.5
"""Part of the time the learning rate falls over."""


def learn_to_see(
    trainer: Trainer,
    data: Dataset,
    *,
    seconds: float,
    tell: Callable[[int, float], None],
    batch: int = 64,
    rate: float = 2e-3,
    save_every: int = 500,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Train `trainer`'s vision tower and spotting head for `seconds`; the last loss. The state is saved.

    clock: of the seconds; the number of steps depends on the machine
    """
    tower, head = trainer.network.vision, trainer.spotting
    parts = nn.ModuleList([tower, head])
    optimizer = torch.optim.AdamW(parts.parameters(), lr=rate, betas=(0.9, 0.98), weight_decay=0.02)
    started, step, last = clock(), 0, float("nan")
    while (done := (clock() - started) / seconds) < 1.0:
        rng = np.random.default_rng([trainer.plan.seed, 11, step])
        images, truth = data.draw_views(batch, rng)
        loss = spotting_loss(head(tower(images.flatten(0, 1)).unflatten(0, (batch, -1))), truth)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parts.parameters(), 1.0)
        falling = max(done - 1 + _FALL, 0.0) / _FALL
        for group in optimizer.param_groups:
            group["lr"] = rate * min((step + 1) / 100, 0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * falling)))
        optimizer.step()
        step, last = step + 1, loss.item()
        tell(step, last)
        if step % save_every == 0:
            data.refresh()
            _keep(trainer)
    _keep(trainer)
    return last


def _keep(trainer: Trainer) -> None:
    """Copy the weights to the exported average, and save."""
    mine = trainer.network.state_dict()
    trainer.average |= {k: v.clone() for k, v in mine.items() if k.startswith("vision.")}
    trainer.save()
