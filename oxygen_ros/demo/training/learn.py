# SPDX-License-Identifier: Apache-2.0
"""The training loop: losses, optimizer, schedule. Resumable at any saved step.

`forward` is the forward pass, `batch` the data. A batch follows from (seed, step) and the shards there are;
with the same shards a resumed run ends with the same weights.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from oxygen_ros.demo.training.auxiliary_heads import (
    PlanningHead,
    PointingHead,
    SpottingHead,
    planning_loss,
    pointing_loss,
    spotting_loss,
)
from oxygen_ros.demo.training.batch import Batch, Dataset
from oxygen_ros.demo.training.checkpoints import Base, fresh_network, load_state, save_state
from oxygen_ros.demo.training.forward import TrainingOutputs, run
from oxygen_ros.models.layers import Rotary
from oxygen_ros.models.pi05.network import Network


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How a run goes.

    steps:   when it ends; the learning rate falls over the last `fall` part of it
    draws:   noises for every prefix
    talk:    every so many steps the text is trained too; it is learned long before the actions
    """

    steps: int = 8000
    batch: int = 64
    draws: int = 4
    talk: int = 3
    rate: float = 1.5e-3
    warm_up: int = 200
    fall: float = 0.35
    decay: float = 0.02
    average: float = 0.995
    text_weight: float = 0.25
    spot_weight: float = 0.3
    plan_weight: float = 1.0
    point_weight: float = 0.2
    seed: int = 0

    def rate_at(self, step: int) -> float:
        """Learning rate: up, level, down to a hundredth along a cosine."""
        if step < self.warm_up:
            return self.rate * (step + 1) / self.warm_up
        start = self.steps * (1 - self.fall)
        if step < start:
            return self.rate
        done = min((step - start) / max(self.steps - start, 1), 1.0)
        return self.rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


@dataclass(frozen=True, slots=True)
class Losses:
    """What one step measured.

    action:       squared error of the velocity
    text:         nats a token, NaN if it was not trained
    spot, point:  of the auxiliary heads
    """

    total: torch.Tensor
    action: float
    text: float
    spot: float
    point: float


class Trainer:
    """A network in training, and the average of its weights, which is exported."""

    def __init__(self, base: Base, plan: TrainingPlan, folder: Path, *, compiled: bool = False) -> None:
        """folder: of the state; an existing one is continued
        compiled: steps without text go through torch.compile: 1.7 times as fast on a CPU, after two
                  minutes; needs a C++ compiler
        """
        self.base, self.plan, self.folder = base, plan, folder
        self.network = fresh_network(base.config, base.raw["state_bin_base"], plan.seed)
        c = base.config
        generator_state = torch.get_rng_state()
        torch.manual_seed(plan.seed)
        self.spotting = SpottingHead(c.backbone.width)
        self.planning = PlanningHead(c.backbone.depth - 2, c.backbone.width, c.horizon, c.action_dim)
        self.pointing = PointingHead(c.backbone.width)
        torch.set_rng_state(generator_state)
        heads = {"spotting": self.spotting, "planning": self.planning, "pointing": self.pointing}
        self.parts = nn.ModuleDict({"network": self.network, **heads})
        self.average = {k: v.clone() for k, v in self.network.state_dict().items()}
        self.optimizer = torch.optim.AdamW(self._groups(), betas=(0.9, 0.97), eps=1e-8)
        self.rotary = make_rotary(base)
        self._measure_silent = torch.compile(self._measure, dynamic=False) if compiled else self._measure
        self.step = 0
        self.curve: list[tuple[int, float, float, float]] = []
        if self.state_file.exists():
            self._load()

    @property
    def state_file(self) -> Path:
        return self.folder / "state.safetensors"

    def train_step(self, data: Dataset) -> Losses:
        """One batch, one update."""
        plan = self.plan
        rng = np.random.default_rng([plan.seed, self.step])
        batch = data.draw(plan.batch, plan.draws, rng)
        losses = self.losses(batch)
        self.optimizer.zero_grad(set_to_none=True)
        losses.total.backward()
        nn.utils.clip_grad_norm_(self.parts.parameters(), 1.0)
        for group in self.optimizer.param_groups:
            group["lr"] = plan.rate_at(self.step)
        self.optimizer.step()
        self.step += 1
        share = min(plan.average, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            mine = self.network.state_dict()
            torch._foreach_lerp_(list(self.average.values()), [mine[k] for k in self.average], 1 - share)
        return losses

    def losses(self, batch: Batch) -> Losses:
        if self.step % self.plan.talk == 0:
            total, *parts = self._measure(batch, words=True)
        else:
            total, *parts = self._measure_silent(_silence(batch, self.base.config.pad_id), words=False)
        return Losses(total, *(part.item() for part in parts))

    def _measure(self, batch: Batch, words: bool) -> tuple[torch.Tensor, ...]:
        """The sum that is minimized, then the fields of `Losses`."""
        plan = self.plan
        out = run(self.network, batch.inputs, self.rotary, words=words)
        action = action_loss(out, batch)
        spot = spotting_loss(self.spotting(out.patches), batch.spots)
        point = pointing_loss(self.pointing(out.middle), batch.target)
        total = action + plan.spot_weight * spot + plan.point_weight * point
        if plan.plan_weight:
            total = total + plan.plan_weight * planning_loss(
                self.planning(out.last), batch.actions, batch.weights
            )
        if not words:
            return total, action, action.new_tensor(float("nan")), spot, point
        told = text_loss(out, batch)
        return total + plan.text_weight * told, action, told, spot, point

    def averaged(self) -> Network:
        """A network of the averaged weights, for export and evaluation."""
        network = Network(self.base.config)
        network.load_state_dict(self.average)
        return network.requires_grad_(False)

    def save(self) -> None:
        """Write the state."""
        tensors = {f"parts.{k}": v for k, v in self.parts.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.items()}
        for name, parameter in self.parts.named_parameters():
            state = self.optimizer.state.get(parameter, {})
            tensors |= {f"adam.{k}.{name}": v for k, v in state.items()}
        facts = {"step": self.step, "plan": asdict(self.plan), "curve": self.curve}
        self.folder.mkdir(parents=True, exist_ok=True)
        save_state(self.state_file, tensors, facts)

    def _load(self) -> None:
        tensors, facts = load_state(self.state_file)

        def under(prefix: str) -> dict[str, torch.Tensor]:
            return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}

        self.parts.load_state_dict(under("parts."))
        self.average = under("average.")
        for name, parameter in self.parts.named_parameters():
            moments = {k: tensors.get(f"adam.{k}.{name}") for k in ("step", "exp_avg", "exp_avg_sq")}
            if moments["step"] is not None:  # a run saved before its first step has none
                self.optimizer.state[parameter] = moments
        self.step = int(facts["step"])
        self.curve = [(int(p[0]), *map(float, p[1:])) for p in facts["curve"]]  # type: ignore[misc]

    def _groups(self) -> list[dict[str, Any]]:
        """Weight decay on matrices only."""
        parameters = list(self.parts.parameters())
        return [
            {"params": [p for p in parameters if p.dim() > 1], "weight_decay": self.plan.decay},
            {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
        ]


def _silence(batch: Batch, pad: int) -> Batch:
    """Without its text and with prompts of few different lengths: few shapes to compile for."""
    inputs = batch.inputs
    prompt = F.pad(inputs.prompt, (0, -inputs.prompt.shape[1] % 8), value=pad)
    return replace(batch, inputs=replace(inputs, prompt=prompt, text=inputs.text[:, :1].contiguous()))


def make_rotary(base: Base) -> Rotary:
    """Rotary positions for everything a training pass can hold."""
    c = base.config
    return Rotary(c.backbone.head_dim, c.rope_base, c.max_prefix + 128, torch.device("cpu"), torch.float32)


def action_loss(out: TrainingOutputs, batch: Batch) -> torch.Tensor:
    """Squared error of the velocity `noise - actions`, over what the expert commanded."""
    wanted = batch.noise - batch.actions[:, None]
    error = ((out.velocity - wanted) ** 2).mean(-1) * batch.weights[:, None]
    loss: torch.Tensor = error.sum() / (batch.weights.sum() * error.shape[1]).clamp(min=1)
    return loss


def text_loss(out: TrainingOutputs, batch: Batch) -> torch.Tensor:
    """Cross-entropy of the sentence and its end token."""
    logits, wanted = sentence_logits(out, batch)
    return F.cross_entropy(logits, wanted)


def sentence_logits(out: TrainingOutputs, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits [n, vocabulary] that predict the sentences' tokens [n]."""
    mask = sentence_mask(batch)
    return out.logits[:, :-1][mask], batch.inputs.text[:, 1:][mask]


def sentence_mask(batch: Batch) -> torch.Tensor:
    """[B, T - 1]: places whose next token belongs to a sentence or is its end."""
    at = torch.arange(batch.inputs.text.shape[1] - 1)[None]
    return (at >= batch.inputs.text_prompt[:, None] - 1) & (at < batch.inputs.text_length[:, None] - 1)


def learn(
    trainer: Trainer,
    data: Dataset,
    *,
    tell: Callable[[Trainer, Losses], None],
    save_every: int = 250,
    refresh_every: int = 100,
    seconds: float = math.inf,
) -> None:
    """Train to the plan's end or for `seconds`; the state is saved at intervals and at the end."""
    started = time.monotonic()
    recent: list[Losses] = []
    try:
        while trainer.step < trainer.plan.steps and time.monotonic() - started < seconds:
            losses = trainer.train_step(data)
            recent.append(losses)
            if trainer.step % 20 == 0:
                means = [
                    float(np.nanmean([getattr(x, n) for x in recent])) for n in ("action", "text", "spot")
                ]
                trainer.curve.append((trainer.step, *means))  # type: ignore[arg-type]
                recent.clear()
            tell(trainer, losses)
            if trainer.step % refresh_every == 0:
                data.refresh()
            if trainer.step % save_every == 0:
                trainer.save()
    finally:
        trainer.save()
