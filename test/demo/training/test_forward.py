# SPDX-License-Identifier: Apache-2.0
"""What is trained is what is served: the batched pass against `Pi05.encode`, `denoise` and `extend`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from oxygen_ros.demo.sim import words
from oxygen_ros.demo.training.batch import task_of
from oxygen_ros.demo.training.check import denoise
from oxygen_ros.demo.training.forward import run
from oxygen_ros.demo.training.learn import make_rotary
from oxygen_ros.demo.training.records import NOT_YET
from oxygen_ros.models import Capacity, Rows, load_model
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.processor import Pi05Inputs
from oxygen_ros.observation import Observation


@pytest.fixture
def served(small: Any) -> Pi05:
    model = load_model(small.model)
    assert isinstance(model, Pi05)
    model.allocate(Capacity(prefixes=2, suffixes=2, suffix_tokens=40, max_rows=64))
    return model


@pytest.mark.parametrize("kind", ["memory", "narration", "answer"])
def test_text_and_actions_equal_the_served_model(
    small: Any, served: Pi05, rng: np.random.Generator, kind: str
) -> None:
    """A batch of prompts of different lengths, each against the served model by itself."""
    batch = small.data.make(np.arange(0, 60, 12), 1, rng, kind, corrupted=0.4, soften=False)
    inputs = batch.inputs
    assert len(set(inputs.prompt_length.tolist())) > 1, "the case must hold padded prompts"
    with torch.no_grad():
        out = run(served.network, inputs, make_rotary(small.base))
        chunks = denoise(small.base, served.network, batch)
    for i in range(len(inputs.images)):
        length = int(inputs.prompt_length[i])
        prefix = served.encode(Pi05Inputs(inputs.images[i], inputs.prompt[i, :length]), 0)
        torch.testing.assert_close(served.denoise(0, batch.noise[i, 0]), chunks[i], atol=2e-5, rtol=1e-4)
        count = int(inputs.text_length[i])
        rows = Rows(64, torch.device("cpu"))
        rows.token[:count] = inputs.text[i, :count]
        rows.position[:count] = prefix.next_position + torch.arange(count)
        rows.write_at[:count] = torch.arange(count)
        rows.wants_logits[:count] = torch.arange(count)
        rows.count = rows.wanted = rows.longest = count
        rows.prefix_spans = [(0, 0, count)]
        torch.testing.assert_close(served.extend(rows), out.logits[i, :count], atol=2e-5, rtol=1e-4)


def test_draws_of_one_prefix_do_not_see_each_other(
    small: Any, served: Pi05, rng: np.random.Generator
) -> None:
    batch = small.data.make(np.arange(3), 3, rng, "memory")
    rotary = make_rotary(small.base)
    with torch.no_grad():
        together = run(served.network, batch.inputs, rotary).velocity
        second = replace(
            batch.inputs, noisy=batch.inputs.noisy[:, 1:2].clone(), time=batch.inputs.time[:, 1:2].clone()
        )
        alone = run(served.network, second, rotary).velocity
    torch.testing.assert_close(together[:, 1:2], alone, atol=1e-5, rtol=1e-4)


def test_prompts_are_the_served_ones(small: Any, served: Pi05, rng: np.random.Generator) -> None:
    """Also where the words are known already and only the state is new."""
    batch = small.data.make(np.arange(40), 1, rng, "memory", corrupted=0.0, lag=8)
    for i in range(40):
        record = small.data.record(i)
        inside = int(record["inside"][8])
        feedback = {} if inside == NOT_YET else {"memory": words.memory(task_of(record), inside)}
        views = {"top": np.zeros((32, 32, 3), np.uint8)}
        joints = record["joints"].astype(np.float64)
        seen = Observation(0, views, joints, task_of(record).instruction, feedback)
        prompt = batch.inputs.prompt[i, : batch.inputs.prompt_length[i]]
        assert prompt.tolist() == served.process(seen).tokens.tolist()


def test_unprocess_undoes_the_normalization(small: Any, served: Pi05, rng: np.random.Generator) -> None:
    """Actions normalized for training come back as the joint targets they were."""
    rows = np.arange(10)
    batch = small.data.make(rows, 1, rng, "memory")
    for i in rows.tolist():
        record = small.data.record(i)
        seen = Observation(0, {}, record["joints"].astype(np.float64), "put one red block in the box")
        back = served.unprocess(batch.actions[i], seen)
        np.testing.assert_allclose(back, record["targets"], atol=1e-5)
