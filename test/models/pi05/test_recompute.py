# SPDX-License-Identifier: Apache-2.0
"""The engine over pi0.5 against full recompute of every token: other code, no cache, no pool.

Pausing, mixing and resuming change nothing. float32 against float64: ids
must be equal, actions within 2e-5, logits within 1e-4.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models_reference import Recompute
from models_scene import (
    EOS,
    ROOMY,
    drive,
    make_model,
    merge_adapter,
    observe,
    task,
    write_adapter,
)

from oxygen_ros.engine import Budget, Engine
from oxygen_ros.engine.noise import draw_noise
from oxygen_ros.models import Rows

# Prefixes that differ in cameras, in length and in what was said; kinds, prompts and lengths mix.
SCRIPT = {
    1: (observe(1), [task("memory", max_tokens=9), task("narration", max_tokens=7)]),
    2: (observe(2, cameras=("wrist",), instruction="go"), [task("subtask", max_tokens=6, adapter="formal")]),
    3: (
        observe(3, memory="one red block is in"),
        [task("memory", max_tokens=9), task("answer", words={"question": "what?"}, max_tokens=8)],
    ),
    4: (observe(4, cameras=("top",)), []),
    5: (
        observe(5, instruction="x" * 30),
        [task("memory", max_tokens=1), task("narration", max_tokens=10, adapter="terse")],
    ),
    6: (
        observe(6),
        [task("answer", words={"question": "how many are left in the box?"}, max_tokens=5, adapter="formal")],
    ),
}


@pytest.fixture(scope="module")
def adapters(demo_network, tmp_path_factory):
    """Folders of two adapters, and full recompute over the network merged with each."""
    folder = tmp_path_factory.mktemp("adapters")
    merged = {}
    for seed, name in enumerate(("formal", "terse")):
        write_adapter(folder / name, demo_network, rank=4, alpha=6.0, seed=seed)
        merged[name] = Recompute(
            merge_adapter(folder / name, demo_network, folder / f"{name}_merged", 1.5), torch.float64
        )
    return folder, merged


@pytest.fixture(scope="module")
def alone(demo_network, recompute, adapters):
    """Each text of the script by itself, by full recompute: (stamp, kind) -> Told.

    The prefix is the plain network's, so only text without adapter can be recomputed in one
    sequence; with adapter, the merged weights serve the words alone (see `mixed_text`).
    """
    model = make_model(demo_network)
    told = {}
    for observation, tasks in SCRIPT.values():
        inputs = model.process(observation)
        for asked in tasks:
            prompt = model.tokenize(asked.prompt, asked.words)
            if asked.adapter:
                told[observation.stamp, asked.kind] = mixed_text(
                    recompute, adapters[1][asked.adapter], inputs, prompt, asked.max_tokens
                )
            else:
                told[observation.stamp, asked.kind] = recompute.text(inputs, prompt, asked.max_tokens, (EOS,))
    return told


def mixed_text(plain: Recompute, merged: Recompute, inputs, prompt, limit):
    """Text whose own tokens run through `merged` weights, and whose prefix runs through `plain` ones."""
    words = Mixed(plain, merged)
    return words.text(inputs, prompt, limit, (EOS,))


class Mixed(Recompute):
    """Full recompute with one set of weights for the prefix and another for the words."""

    def __init__(self, plain: Recompute, merged: Recompute) -> None:
        self.config, self.dtype = plain.config, plain.dtype
        self.weights = self.plain = plain.weights
        self.merged = merged.weights

    def _decode(self, x, layer, may_see):
        """Both sets over the whole sequence; the rows of each are kept.

        A word's keys are the merged weights', a prefix token's the plain ones'.
        """
        count = int(may_see[0].sum())
        block = f"blocks.{layer}"
        parts = []
        for weights in (self.plain, self.merged):
            self.weights = weights
            parts.append(self._project(self._rms(x, weights[f"{block}.attention_norm.scale"]), block, 0))
        q, k, v = (torch.cat((p[:count], m[count:])) for p, m in zip(*parts, strict=True))
        mixed = self._attend(q, k, v, may_see)
        out = []
        for weights in (self.plain, self.merged):
            self.weights = weights
            y = x + mixed @ weights[f"{block}.out.weight"].T
            out.append(y + self._mlp(self._rms(y, weights[f"{block}.mlp_norm.scale"]), block))
        self.weights = self.plain
        return torch.cat((out[0][:count], out[1][count:]))


def load(demo_network, adapters, **options):
    model = make_model(demo_network, **options)
    for name in ("formal", "terse"):
        model.load_adapter(adapters[0] / name)
    return model


def test_the_script_is_worth_running(alone) -> None:
    """Texts end by themselves and by their limits, differ, and are far enough from ties."""
    assert {told.ended for told in alone.values()} == {True, False}
    assert len({tuple(told.tokens) for told in alone.values()}) == len(alone)
    assert min(told.gap for told in alone.values()) > 1e-3


@pytest.mark.parametrize(
    ("steps", "rows", "over_pool"),
    [(1, 32, False), (1, 32, True), (2, 3, False), (3, 7, True), (50, 5, False)],
)
def test_paused_mixed_and_resumed_texts_equal_full_recompute(
    demo_network, adapters, alone, steps: int, rows: int, over_pool: bool
) -> None:
    engine = Engine(load(demo_network, adapters, over_pool=over_pool), ROOMY)
    outcome = drive(engine, SCRIPT, Budget(steps=steps, rows=rows))
    assert len(outcome.texts) == len(alone)
    for text in outcome.texts.values():
        told = alone[text.stamp, text.kind]
        assert list(text.tokens) == told.tokens, f"{text.kind} of {text.stamp}"
        assert text.finish_reason == ("eos" if told.ended else "length")
    if steps == 1:
        assert max(text.tick_finished - text.tick_asked for text in outcome.texts.values()) >= 4, "no pause"


@pytest.mark.parametrize("tick", SCRIPT)
def test_actions_equal_full_recompute(demo_network, recompute, tick: int) -> None:
    """Every subset of cameras, with and without memory: engine chunk, back in normalized units."""
    model = make_model(demo_network)
    engine = Engine(model, ROOMY, seed=11)
    observation = SCRIPT[tick][0]
    inputs = model.process(observation)
    noise = torch.from_numpy(draw_noise(11, observation.stamp, (16, 7)))
    expected = recompute.actions(inputs, noise, [1.0, 0.8, 0.6, 0.4, 0.2])
    with engine.observe(observation) as encoded:
        chunk = engine.act(encoded)
        actions = model.denoise(encoded.slot, noise)
    torch.testing.assert_close(actions.double(), expected, atol=2e-5, rtol=2e-5)
    np.testing.assert_array_equal(chunk, model.unprocess(actions, observation))


@pytest.mark.parametrize("over_pool", [False, True], ids=["by_prefix", "over_pool"])
def test_logits_equal_full_recompute_however_rows_mix(demo_network, recompute, over_pool: bool) -> None:
    """One step holds a whole prompt, a part of one, and single tokens, of three prefixes."""
    model = make_model(demo_network, over_pool=over_pool)
    model.allocate(ROOMY)
    words = {0: [65, 70, 300, 9, 12], 1: [1, 2, 3], 2: [99, 98, 97, 96]}
    inputs = {slot: model.process(SCRIPT[slot + 1][0]) for slot in words}
    prefixes = {slot: model.encode(inputs[slot], slot) for slot in words}
    rows = Rows(32, model.device)
    # Request 0 goes through at once; 1 and 2 have their first tokens cached already.
    for slot, (first, last) in ((1, (0, 2)), (2, (0, 3))):
        lay_out(rows, [(slot, words[slot][first:last], first)], prefixes)
        model.extend(rows)
    lay_out(rows, [(0, words[0], 0), (1, words[1][2:], 2), (2, words[2][3:], 3)], prefixes)
    logits = model.extend(rows)
    expected = torch.cat(
        [recompute.logits(inputs[slot], words[slot])[n:] for slot, n in ((0, 0), (1, 2), (2, 3))]
    )
    torch.testing.assert_close(logits.double(), expected, atol=1e-4, rtol=1e-5)


def lay_out(rows: Rows, parts, prefixes) -> None:
    """Rows of (slot, tokens, first place); prefix and suffix slot are the same number here."""
    at = longest = 0
    spans = []
    for slot, tokens, first in parts:
        for place, token in enumerate(tokens, start=first):
            rows.token[at] = token
            rows.write_at[at] = place
            rows.position[at] = prefixes[slot].next_position + place
            rows.prefix_slot[at] = rows.suffix_slot[at] = slot
            rows.wants_logits[at] = at
            at += 1
            longest = max(longest, place + 1)
        spans.append((slot, at - len(tokens), at))
    rows.adapter.zero_()
    rows.count = rows.wanted = at
    rows.longest, rows.prefix_spans = longest, spans
