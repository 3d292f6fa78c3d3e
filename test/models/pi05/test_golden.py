# SPDX-License-Identifier: Apache-2.0
"""pi0.5 against the public implementations' own outputs (openpi, lerobot), in float32.

Limits are the reference data's own (see test/golden/*/README.md), tightened to 1e-5 where the time
rule is the checkpoint's.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from oxygen_ros.models import Capacity, Guide, Rows
from oxygen_ros.models.pi05.config import from_dimensions
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.processor import Pi05Inputs
from oxygen_ros.models.pi05.weights import load_network

GOLDEN = Path(__file__).parents[2] / "golden"
CPU = torch.device("cpu")


@dataclass
class Golden:
    """One folder of reference data, and a model over its weights."""

    name: str

    def __post_init__(self) -> None:
        folder = GOLDEN / self.name
        dims = folder / "tiny_dims.json"
        raw = json.loads((dims if dims.exists() else folder / "config.json").read_text())
        if dims.exists():
            raw["time_rule"] = "exact"  # lerobot's
        self.config = from_dimensions(raw)
        self.network = load_network(folder, self.config, CPU, torch.float32)
        self.tensors = load_file(folder / "cases.safetensors")
        self.facts = json.loads((folder / "cases.json").read_text())

    def model(self, steps: int | None = None, over_pool: bool = False, prefixes: int = 3) -> Pi05:
        model = Pi05(self.network, None, denoise_steps=steps, over_pool=over_pool)
        model.allocate(Capacity(prefixes=prefixes, suffixes=4, suffix_tokens=24, max_rows=32))
        return model

    def of(self, case: str, name: str) -> torch.Tensor:
        return self.tensors[f"{case}.{name}"]

    def inputs(
        self, case: str, row: int, *, image: str = "input.image", mask: str = "input.image_mask"
    ) -> Pi05Inputs:
        """The packed inputs of one row: absent cameras and padding left out."""
        images = [
            self.of(case, f"{image}.{camera}")[row]
            for camera in self.config.cameras
            if bool(self.of(case, f"{mask}.{camera}")[row])
        ]
        tokens = self.of(case, "input.tokens")[row][self.of(case, "input.token_mask")[row]]
        return Pi05Inputs(torch.stack(images), tokens)


@pytest.fixture(scope="module")
def openpi() -> Golden:
    return Golden("pi05_openpi")


@pytest.fixture(scope="module")
def lerobot() -> Golden:
    return Golden("pi05_lerobot")


@pytest.fixture(scope="module")
def text() -> Golden:
    return Golden("pi05_text")


@pytest.fixture(scope="module")
def rtc() -> Golden:
    return Golden("pi05_rtc")


OPENPI_CASES = [f"c0{i}" for i in range(1, 9)]


@pytest.mark.parametrize("case", OPENPI_CASES)
def test_actions_match_openpi(openpi: Golden, case: str) -> None:
    facts = openpi.facts[case]
    model = openpi.model(facts["num_steps"])
    expected = openpi.of(case, "expected.actions")
    for row in range(facts["batch"]):
        model.encode(openpi.inputs(case, row), slot=1)
        actions = model.denoise(1, openpi.of(case, "input.noise")[row])
        torch.testing.assert_close(actions, expected[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", OPENPI_CASES)
def test_exact_time_rule_matches_lerobot(openpi: Golden, case: str) -> None:
    """The same weights under lerobot's rounding of the denoise times."""
    from dataclasses import replace

    facts = openpi.facts[case]
    network = openpi.network
    network.config = replace(openpi.config, time_rule="exact")
    try:
        model = openpi.model(facts["num_steps"])
    finally:
        network.config = openpi.config
    expected = openpi.of(case, "expected.actions_exact_time")
    for row in range(facts["batch"]):
        model.encode(openpi.inputs(case, row), slot=0)
        actions = model.denoise(0, openpi.of(case, "input.noise")[row])
        torch.testing.assert_close(actions, expected[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", OPENPI_CASES)
def test_prefix_hidden_states_and_positions(openpi: Golden, case: str) -> None:
    model = openpi.model()
    for row in range(openpi.facts[case]["batch"]):
        valid = openpi.of(case, "expected.prefix_mask")[row]
        hidden = model.encode_hidden(openpi.inputs(case, row), slot=0)
        torch.testing.assert_close(
            hidden, openpi.of(case, "expected.prefix_hidden")[row][valid], atol=1e-4, rtol=1e-4
        )
        positions = openpi.of(case, "expected.prefix_position_ids")[row][valid]
        assert positions.tolist() == list(range(hidden.shape[0])), (
            "a packed prefix takes positions 0, 1, 2, ..."
        )


def test_prefix_cache_and_image_tokens(openpi: Golden) -> None:
    model = openpi.model()
    inputs = openpi.inputs("c01", 0)
    prefix = model.encode(inputs, slot=2)
    assert prefix.tokens == prefix.next_position == 29
    valid = openpi.of("c01", "expected.prefix_mask")[0]
    places = model.pool.prefix_places(2)
    for layer in range(openpi.config.backbone.depth):
        for ours, name in ((model.pool.keys, "key"), (model.pool.values, "value")):
            expected = openpi.of("c01", f"expected.prefix_{name}.{layer}")[0][:, valid]
            torch.testing.assert_close(ours[layer, :, places], expected, atol=1e-5, rtol=1e-5)
    tokens = model.network.vision(inputs.images)
    for index, camera in enumerate(openpi.config.cameras):
        expected = openpi.of("c01", f"expected.image_tokens.{camera}")[0]
        torch.testing.assert_close(tokens[index], expected, atol=1e-5, rtol=1e-5)


def test_denoise_trajectory(openpi: Golden) -> None:
    """Every Euler step, not only the last one: times, conditions, states."""
    for case in ("c01", "c05"):
        steps = openpi.facts[case]["num_steps"]
        model = openpi.model(steps)
        times = torch.tensor(model.flow.times)
        torch.testing.assert_close(times, openpi.of(case, "expected.time"), atol=0, rtol=0)
        condition = openpi.network.expert.condition(times)
        torch.testing.assert_close(
            condition, openpi.of(case, "expected.adarms_cond")[:, 0], atol=1e-5, rtol=1e-5
        )


@pytest.mark.parametrize("case", [f"p0{i}" for i in range(1, 7)])
def test_actions_match_lerobot(lerobot: Golden, case: str) -> None:
    facts = lerobot.facts[case]
    model = lerobot.model(facts["num_steps"])
    expected = lerobot.of(case, "expected.actions_normalized")
    for row in range(expected.shape[0]):
        inputs = lerobot.inputs(case, row, image="expected.model_image", mask="expected.image_mask")
        model.encode(inputs, slot=0)
        actions = model.denoise(0, lerobot.of(case, "input.noise")[row])
        torch.testing.assert_close(actions[:, :7], expected[row], atol=1e-5, rtol=1e-5)


def fill(rows: Rows, tokens: list[int], first: int, frame: int, suffix: int, position: int) -> None:
    """Lay tokens of one request out as rows, logits of all wanted."""
    n = len(tokens)
    at = torch.arange(first, first + n)
    rows.token[:n] = torch.tensor(tokens)
    rows.write_at[:n] = at
    rows.position[:n] = position + at
    rows.prefix_slot[:n] = frame
    rows.suffix_slot[:n] = suffix
    rows.adapter[:n] = 0
    rows.wants_logits[:n] = torch.arange(n)
    rows.count = rows.wanted = n
    rows.longest = first + n
    rows.prefix_spans = [(frame, 0, n)]


@pytest.mark.parametrize("over_pool", [False, True], ids=["by_prefix", "over_pool"])
@pytest.mark.parametrize("case", ["t01", "t02", "t03", "t04"])
def test_greedy_text_matches_full_recompute(text: Golden, case: str, over_pool: bool) -> None:
    """Token for token and logit for logit what the references give by recomputing everything."""
    facts = text.facts[case]
    model = text.model(over_pool=over_pool)
    rows = Rows(32, CPU)
    for row in range(facts["batch"]):
        prefix = model.encode(text.inputs(case, row), slot=1)
        before = model.denoise(1, text.of(case, "input.noise")[row])
        suffix = text.of(case, "input.suffix_tokens")[row].tolist()
        fill(rows, suffix, 0, frame=1, suffix=2, position=prefix.next_position)
        logits = model.extend(rows)
        torch.testing.assert_close(logits, text.of(case, "expected.suffix_logits")[row], atol=1e-4, rtol=1e-4)
        tokens: list[int] = []
        while True:
            torch.testing.assert_close(
                logits[-1], text.of(case, "expected.logits")[row, len(tokens)], atol=1e-4, rtol=1e-4
            )
            tokens.append(int(logits[-1].argmax()))
            if len(tokens) == facts["num_generated"]:
                break
            fill(rows, tokens[-1:], len(suffix) + len(tokens) - 1, 1, 2, prefix.next_position)
            logits = model.extend(rows)
        assert tokens == text.of(case, "expected.tokens")[row].tolist()
        after = model.denoise(1, text.of(case, "input.noise")[row])
        assert torch.equal(before, after), "text changed the prefix that actions read"
        torch.testing.assert_close(after, text.of(case, "expected.actions")[row], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("case", [f"r{i:02d}" for i in range(1, 12)])
def test_guided_actions_match_lerobot(rtc: Golden, case: str) -> None:
    """Real-time-chunking guidance in the denoise loop, as lerobot 0.6.1 computes it."""
    facts = rtc.facts[case]
    model = rtc.model(facts["num_steps"])
    expected = rtc.of(case, "expected.actions_full_width")
    weights = rtc.tensors.get(f"{case}.expected.prefix_weights")
    previous = rtc.tensors.get(f"{case}.input.prev_chunk_left_over")
    for row in range(expected.shape[0]):
        guide = None
        if previous is not None:
            chunk = previous if previous.dim() == 2 else previous[row]
            padded = torch.zeros(rtc.config.horizon, rtc.config.action_dim)
            padded[: chunk.shape[0], : chunk.shape[1]] = chunk
            guide = Guide(padded, weights.reshape(-1, 1).expand_as(padded), facts["max_guidance_weight"])
        model.encode(rtc.inputs(case, row), slot=0)
        actions = model.denoise(0, rtc.of(case, "input.noise")[row], guide)
        torch.testing.assert_close(actions, expected[row], atol=2e-4, rtol=2e-4)
