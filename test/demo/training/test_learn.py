# SPDX-License-Identifier: Apache-2.0
"""The loop learns, a stopped run continues unchanged, and its export is an ordinary checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oxygen_ros.demo.training.check import check, draw_curve
from oxygen_ros.demo.training.checkpoints import export
from oxygen_ros.demo.training.forward import run
from oxygen_ros.demo.training.learn import (
    Trainer,
    TrainingPlan,
    _silence,
    learn,
    sentence_logits,
    sentence_mask,
)
from oxygen_ros.models import load_model
from oxygen_ros.models.pi05.model import Pi05

PLAN = TrainingPlan(steps=8, batch=8, draws=2, warm_up=2, rate=3e-3)


def quiet(trainer: Trainer, losses: Any) -> None:
    pass


def weights(trainer: Trainer) -> torch.Tensor:
    return torch.cat([p.flatten() for p in trainer.parts.parameters()])


def test_losses_fall(small: Any, tmp_path: Path) -> None:
    trainer = Trainer(small.base, TrainingPlan(steps=60, batch=16, draws=2, warm_up=5, rate=5e-3), tmp_path)
    seen: list[tuple[float, float, float]] = []
    learn(trainer, small.data, tell=lambda t, x: seen.append((x.action, x.text, x.spot)))
    first, last = np.nanmean(seen[:5], axis=0), np.nanmean(seen[-5:], axis=0)
    assert last[0] < 0.8 * first[0], "actions"
    assert last[1] < 0.5 * first[1], "text"
    assert last[2] < 0.8 * first[2], "spotting"
    draw_curve(trainer.curve, tmp_path / "curve.png")
    assert (tmp_path / "curve.png").stat().st_size > 1000


def test_a_step_without_text_measures_the_same_in_fewer_shapes(small: Any, tmp_path: Path) -> None:
    """What is compiled reads batches without their text, prompts padded to one of few lengths."""
    trainer = Trainer(small.base, PLAN, tmp_path)
    batch = small.data.draw(8, 2, np.random.default_rng(0))
    silent = _silence(batch, small.base.config.pad_id)
    assert silent.inputs.prompt.shape[1] % 8 == 0
    assert silent.inputs.text.shape == (8, 1)
    told = [trainer._measure(b, words=False) for b in (batch, silent)]
    torch.testing.assert_close(told[0], told[1], equal_nan=True)


def test_a_stopped_run_ends_with_the_same_weights(small: Any, tmp_path: Path) -> None:
    whole = Trainer(small.base, PLAN, tmp_path / "whole")
    learn(whole, small.data, tell=quiet)

    stopped = Trainer(small.base, PLAN, tmp_path / "stopped")

    def stop_at_three(trainer: Trainer, losses: Any) -> None:
        if trainer.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        learn(stopped, small.data, tell=stop_at_three)
    resumed = Trainer(small.base, PLAN, tmp_path / "stopped")
    assert resumed.step == 3
    learn(resumed, small.data, tell=quiet)
    torch.testing.assert_close(weights(resumed), weights(whole), rtol=0, atol=0)
    for name, tensor in whole.average.items():
        torch.testing.assert_close(resumed.average[name], tensor, rtol=0, atol=0)


def test_a_killed_save_leaves_the_old_state(small: Any, tmp_path: Path) -> None:
    trainer = Trainer(small.base, PLAN, tmp_path)
    trainer.save()
    (tmp_path / "state.part").write_bytes(b"half of a file")
    assert Trainer(small.base, PLAN, tmp_path).step == 0


def test_rate_goes_up_stays_and_falls() -> None:
    plan = TrainingPlan(steps=100, warm_up=10, fall=0.4, rate=1.0)
    assert plan.rate_at(0) == pytest.approx(0.1)
    assert plan.rate_at(30) == plan.rate_at(59) == 1.0
    assert plan.rate_at(80) == pytest.approx(0.505)
    assert plan.rate_at(100) == pytest.approx(0.01)


def test_the_export_is_an_ordinary_checkpoint(small: Any, tmp_path: Path) -> None:
    trainer = Trainer(small.base, PLAN, tmp_path / "run")
    learn(trainer, small.data, tell=quiet)
    export(trainer.averaged(), small.base, tmp_path / "model", "Says so.")
    loaded = load_model(tmp_path / "model")
    assert isinstance(loaded, Pi05)
    for name, tensor in loaded.network.state_dict().items():
        torch.testing.assert_close(tensor, trainer.average[name], rtol=0.01, atol=0.01)
    assert json.loads((tmp_path / "model" / "config.json").read_text())["description"] == "Says so."
    figures = check(small.base, trainer.averaged(), small.data, 16)
    assert 0 <= figures["memory_exact"] <= 1
    assert figures["tcp_mm"] > 0


def test_only_the_sentence_and_its_end_are_learned(small: Any, rng: np.random.Generator) -> None:
    """Neither the prompt suffix nor padding counts."""
    batch = small.data.make(np.arange(6), 1, rng, "answer")
    mask = sentence_mask(batch)
    tokenizer = small.base.processor.tokenizer
    for i in range(6):
        said = batch.inputs.text[i, 1:][mask[i]].tolist()
        assert said[-1] == small.base.config.eos_id
        assert tokenizer.detokenize(said[:-1]).endswith(".")
        start = batch.inputs.text[i, : batch.inputs.text_prompt[i]].tolist()
        assert tokenizer.detokenize(start).startswith("Question: ")
    out = run(
        Trainer(small.base, PLAN, Path("unused")).network,
        batch.inputs,
        Trainer(small.base, PLAN, Path("unused")).rotary,
    )
    logits, wanted = sentence_logits(out, batch)
    assert len(logits) == len(wanted) == int(mask.sum())
