# SPDX-License-Identifier: Apache-2.0
"""Errors of a network on held-out frames, and its loss curves.

No simulator runs; `evaluate` measures success at the task.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import torch
from matplotlib.figure import Figure

from oxygen_ros.demo.sim.kinematics import forward
from oxygen_ros.demo.training.batch import KINDS, SERVED_LAG, Batch, Dataset
from oxygen_ros.demo.training.checkpoints import Base
from oxygen_ros.demo.training.forward import TrainingOutputs, run
from oxygen_ros.demo.training.learn import make_rotary, sentence_mask
from oxygen_ros.models.flow import Flow, denoise_times, integrate
from oxygen_ros.models.pi05.model import load
from oxygen_ros.models.pi05.network import Network

_BATCH = 64


@torch.no_grad()
def check(base: Base, network: Network | None, data: Dataset, frames: int) -> dict[str, float]:
    """Figures over `frames` random held-out frames with true memories in the prompt.

    <kind>_exact:   part of the texts right to the last token (greedy)
    updated_exact:  the same, of memories that differ from the one in the prompt
    tcp_mm:         mean distance of the hand 0.4 s ahead from where the expert sends it [mm]
    still_mm:       the same for an arm that stays where it is
    finger_mm:      mean error of the fingers' opening 0.4 s ahead [mm]
    """
    if network is None:
        cpu = torch.device("cpu")
        loaded = load(
            base.folder, base.raw, device=cpu, dtype=torch.float32, denoise_steps=None, adapters=(),
            should_stop=None,
        )  # fmt: skip
        network = loaded.network
    rotary, rng = make_rotary(base), np.random.default_rng(1)
    right: dict[str, list[bool]] = {kind: [] for kind in (*KINDS, "updated")}
    hand, still, fingers = [], [], []
    rows = rng.permutation(len(data))[:frames]
    for first in range(0, len(rows), _BATCH):
        part = rows[first : first + _BATCH]
        for kind in KINDS:
            batch = data.make(part, 1, rng, kind, corrupted=0.0, soften=False, lag=SERVED_LAG)
            exact = is_exact(run(network, batch.inputs, rotary, actions=False), batch)
            right[kind] += exact
            if kind == "memory":
                changed = [data.changed(row, SERVED_LAG) for row in part.tolist()]
                right["updated"] += [e for e, c in zip(exact, changed, strict=True) if c]
        chunk = denoise(base, network, batch)
        joints = np.stack([data.record(r)["joints"] for r in part.tolist()]).astype(np.float64)
        said = base.actions.unnormalize(chunk[:, 3].double().numpy()) + np.where(base.is_delta, joints, 0)
        truth = np.stack([data.record(r)["targets"][3] for r in part.tolist()]).astype(np.float64)
        for s, t, j in zip(said, truth, joints, strict=True):
            hand.append(1e3 * float(np.linalg.norm(forward(s)[0] - forward(t)[0])))
            still.append(1e3 * float(np.linalg.norm(forward(j)[0] - forward(t)[0])))
            fingers.append(1e3 * abs(float(s[6] - t[6])))
    figures = {f"{k}_exact": float(np.mean(v)) if v else float("nan") for k, v in right.items()}
    return figures | {
        "tcp_mm": float(np.mean(hand)),
        "tcp_median_mm": float(np.median(hand)),
        "still_mm": float(np.mean(still)),
        "finger_mm": float(np.mean(fingers)),
    }


def is_exact(out: TrainingOutputs, batch: Batch) -> list[bool]:
    """Whether greedy decoding would give each sentence to its end.

    Fed with the true tokens, the best next token is right at every place exactly when it is.
    """
    wrong = (out.logits[:, :-1].argmax(-1) != batch.inputs.text[:, 1:]) & sentence_mask(batch)
    exact: list[bool] = (~wrong.any(1)).tolist()
    return exact


def denoise(base: Base, network: Network, batch: Batch) -> torch.Tensor:
    """Normalized chunks [B, H, D] from the batch's first noise, as the served model integrates them."""
    rotary, config = make_rotary(base), base.config
    flow = Flow(denoise_times(config.denoise_steps, config.time_rule))
    inputs = batch.inputs

    def velocity(x: torch.Tensor, step: int) -> torch.Tensor:
        time = torch.full((len(x), 1), flow.times[step])
        return run(network, replace(inputs, noisy=x[:, None], time=time), rotary).velocity[:, 0]

    return integrate(batch.noise[:, 0], flow, velocity)


def draw_curve(curve: Sequence[tuple[int, float, float, float]], picture: Path) -> None:
    """Loss curves as a PNG."""
    if not curve:
        return
    steps, *series = np.array(curve).T
    with mpl.rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(10, 3), dpi=110, layout="constrained")
        names = ("action: velocity error", "text: nats a token", "spotting")
        for axis, values, name in zip(figure.subplots(1, 3), series, names, strict=True):
            axis.plot(steps, values, linewidth=0.6, color="#9bbfd6")
            width = max(len(values) // 30, 1)
            smooth = np.convolve(values, np.ones(width) / width, mode="valid")
            axis.plot(steps[width - 1 :], smooth, color="#0072b2")
            axis.set(yscale="log", title=name, xlabel="step")
        figure.savefig(picture)
