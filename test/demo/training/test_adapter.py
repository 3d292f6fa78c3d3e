# SPDX-License-Identifier: Apache-2.0
"""The memory adapter: served as it was trained, better at its sentences, and no action bit changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from oxygen_ros.demo.sim import words
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.world import World
from oxygen_ros.demo.training.adapter import AdapterPlan, TextLora, train_adapter
from oxygen_ros.demo.training.checkpoints import Base
from oxygen_ros.demo.training.forward import run
from oxygen_ros.demo.training.learn import make_rotary, text_loss
from oxygen_ros.demo.training.rollout import EpisodeSetup, run_episode
from oxygen_ros.models import Capacity, Rows, load_model
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.processor import Pi05Inputs


def served_logits(model: Pi05, inputs: Pi05Inputs, text: torch.Tensor, adapter: int) -> torch.Tensor:
    prefix = model.encode(inputs, 0)
    rows = Rows(64, torch.device("cpu"))
    n = len(text)
    rows.token[:n] = text
    rows.position[:n] = prefix.next_position + torch.arange(n)
    rows.write_at[:n] = torch.arange(n)
    rows.wants_logits[:n] = torch.arange(n)
    rows.adapter[:n] = adapter
    rows.count = rows.wanted = rows.longest = n
    rows.prefix_spans = [(0, 0, n)]
    return model.extend(rows)


def test_the_adapter_learns_and_touches_no_action(
    small: Any, tmp_path: Path, rng: np.random.Generator
) -> None:
    folder = tmp_path / "memory"
    train_adapter(Base.read(small.model), small.data, folder, AdapterPlan(steps=40, batch=8, rate=2e-2))
    plain, adapted = load_model(small.model), load_model(small.model, adapters=[folder])
    assert isinstance(plain, Pi05)
    assert isinstance(adapted, Pi05)
    assert adapted.adapters == ("memory",)
    for model in (plain, adapted):
        model.allocate(Capacity(prefixes=1, suffixes=1, suffix_tokens=40, max_rows=64))
    batch = small.data.make(np.arange(8), 1, rng, "memory", corrupted=0.0, soften=False)
    b = batch.inputs
    before = text_loss(run(plain.network, b, make_rotary(small.base), actions=False), batch)
    worse = []
    for i in range(8):
        inputs = Pi05Inputs(b.images[i], b.prompt[i, : b.prompt_length[i]])
        text = b.text[i, : b.text_length[i]]
        own = served_logits(adapted, inputs, text, 1)
        chunk = adapted.denoise(0, batch.noise[i, 0])
        none = served_logits(plain, inputs, text, 0)
        assert torch.equal(chunk, plain.denoise(0, batch.noise[i, 0])), "the same chunk, bit for bit"
        torch.testing.assert_close(none, served_logits(adapted, inputs, text, 0))
        start = int(b.text_prompt[i])
        worse.append(torch.nn.functional.cross_entropy(own[start - 1 : -1], text[start:]).item())
    assert np.mean(worse) < 0.8 * float(before)


def test_it_is_served_as_it_was_trained(small: Any, tmp_path: Path, rng: np.random.Generator) -> None:
    plain = load_model(small.model)
    assert isinstance(plain, Pi05)
    lora = TextLora(plain.network, AdapterPlan())
    with torch.no_grad():
        for up in lora.up.values():
            up.normal_(0, 0.3)
    lora.save(tmp_path / "noise")
    model = load_model(small.model, adapters=[tmp_path / "noise"])
    assert isinstance(model, Pi05)
    model.allocate(Capacity(prefixes=1, suffixes=1, suffix_tokens=40, max_rows=64))
    batch = small.data.make(np.arange(4), 1, rng, "memory", soften=False)
    b = batch.inputs
    with torch.no_grad():
        trained = run(plain.network, b, make_rotary(small.base), lora.adapt, actions=False).logits
    for i in range(4):
        inputs = Pi05Inputs(b.images[i], b.prompt[i, : b.prompt_length[i]])
        n = int(b.text_length[i])
        served = served_logits(model, inputs, b.text[i, :n], 1)
        torch.testing.assert_close(served, trained[i, :n], atol=2e-5, rtol=1e-4)


def test_the_shipped_adapter_changes_no_action_bit() -> None:
    """The demo's model and adapter through whole sessions: the same chunks, memories of the grammar."""
    resource = Path(__file__).resolve().parents[3] / "resource"
    world, task = World(7), Task("red", 2)
    digests, said = [], []
    try:
        for adapters in ([], [resource / "demo_memory_adapter"]):
            model = load_model(resource / "demo_model", adapters=adapters)
            named = model.adapters[0] if adapters else ""
            setup = EpisodeSetup(limit=1.2, hold=0.4, feedback=False, memory_adapter=named)
            outcome = run_episode(world, model, task, 7, setup=setup)
            digests.append(outcome.actions)
            said.append([memory for memory, _ in outcome.memories])
    finally:
        world.close()
    assert digests[0] == digests[1]
    assert said[0]
    known = {words.memory(task, inside) for inside in (0, 1, 2)}
    assert set(said[0]) <= known
    assert set(said[1]) <= known
