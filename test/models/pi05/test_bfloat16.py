# SPDX-License-Identifier: Apache-2.0
"""pi0.5 in bfloat16: how far it may be from float32, in numbers.

Measured on the demo network (random weights): greedy tokens differ only where the two best logits of
float32 are closer than GAP; actions, of size about 4, stay within ACTIONS (measured: 0.011 at most,
0.003 in the mean).
"""

from __future__ import annotations

import pytest
import torch
from models_reference import Recompute
from models_scene import EOS, ROOMY, drive, make_model, make_network, observe, task

from oxygen_ros.engine import Budget, Engine
from oxygen_ros.models import load_model

# Two logits closer than this are a tie in bfloat16; logits of this network have a spread of about 1.
GAP = 0.1
# Largest and mean absolute difference of normalized actions.
ACTIONS, ACTIONS_MEAN = 0.05, 0.01

SCRIPT = {
    tick: (
        observe(tick),
        [task("memory", max_tokens=8), *([task("narration", max_tokens=8)] if tick % 2 else [])],
    )
    for tick in range(1, 5)
}


@pytest.fixture(scope="module")
def rounded():
    """The demo network's weights in bfloat16, as served, and the same rounded weights in float32."""
    small = make_network().to(torch.bfloat16)
    large = make_network()
    large.load_state_dict({name: tensor.float() for name, tensor in small.state_dict().items()})
    small.pack()
    return small, large.requires_grad_(False)


@pytest.mark.parametrize("over_pool", [False, True], ids=["by_prefix", "over_pool"])
def test_tokens_differ_only_at_ties(rounded, over_pool: bool) -> None:
    """Each token that bfloat16 chose is, in full recompute of its own text so far, a best one or a tie."""
    small, large = rounded
    truth = Recompute(large, torch.float32)
    model = make_model(small, over_pool=over_pool)
    outcome = drive(Engine(model, ROOMY), SCRIPT, Budget(steps=2, rows=32))
    reference = make_model(large)
    compared = 0
    for text in outcome.texts.values():
        inputs = reference.process(next(o for o, _ in SCRIPT.values() if o.stamp == text.stamp))
        chosen = [*text.tokens, *([EOS] if text.finish_reason == "eos" else [])]
        prompt = reference.tokenize(text.prompt)
        logits = truth.logits(inputs, [*prompt, *chosen[:-1]])[len(prompt) - 1 :]
        lost = logits.max(-1).values - logits.gather(1, torch.tensor(chosen)[:, None])[:, 0]
        assert lost.max() < GAP, f"{text.kind} of {text.stamp}: {lost.tolist()}"
        compared += len(chosen)
    assert compared >= 30


def test_actions_are_close_to_float32(rounded) -> None:
    small, large = rounded
    models = [make_model(network) for network in (small, large)]
    for tick in range(1, 6):
        noise = torch.randn(16, 7, generator=torch.Generator().manual_seed(tick))
        actions = []
        for model in models:
            if tick == 1:
                model.allocate(ROOMY)
            model.encode(model.process(observe(tick)), 0)
            actions.append(model.denoise(0, noise))
        assert actions[0].dtype == torch.float32, "actions are summed up in float32"
        difference = (actions[0] - actions[1]).abs()
        assert difference.max() < ACTIONS
        assert difference.mean() < ACTIONS_MEAN


def test_chunks_and_texts_do_not_depend_on_the_load(rounded) -> None:
    """Bitwise, in bfloat16 as in float32: a chunk with and without text."""
    silent = {tick: (observation, []) for tick, (observation, _) in SCRIPT.items()}
    runs = [drive(Engine(make_model(rounded[0]), ROOMY), s, Budget(steps=1)) for s in (SCRIPT, silent)]
    for tick in SCRIPT:
        assert (runs[0].chunks[tick] == runs[1].chunks[tick]).all()


def test_a_folder_loads_in_bfloat16(checkpoint) -> None:
    model = load_model(checkpoint, dtype="bfloat16")
    model.allocate(ROOMY)
    assert {p.dtype for p in model.network.parameters()} == {model.pool.keys.dtype} == {torch.bfloat16}
    float32 = load_model(checkpoint)
    float32.allocate(ROOMY)
    assert 2 * model.pool.bytes_per_token == float32.pool.bytes_per_token
