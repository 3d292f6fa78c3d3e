# SPDX-License-Identifier: Apache-2.0
"""Text adapters from PEFT folders: what they add, what they leave unchanged, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from models_scene import (
    ALL_TARGETS,
    ROOMY,
    make_model,
    merge_adapter,
    observe,
    prefix_tokens,
    weight_name,
    write_adapter,
)
from safetensors.torch import load_file, save_file

from oxygen_ros.models import ModelError, Rows
from oxygen_ros.models.pi05.processor import Pi05Inputs

WORDS = [40, 300, 7, 91]


def rows_of(model, adapter_of_row: list[int]) -> Rows:
    """One token for each adapter id, each in its own suffix slot, all over prefix 0."""
    rows = Rows(ROOMY.max_rows, model.device)
    count = len(adapter_of_row)
    rows.token[:count] = torch.tensor((WORDS * count)[:count])
    rows.position[:count] = prefix_tokens(model, 0)
    rows.suffix_slot[:count] = torch.arange(count)
    rows.wants_logits[:count] = torch.arange(count)
    rows.adapter[:count] = torch.tensor(adapter_of_row)
    rows.count = rows.wanted = count
    rows.longest, rows.prefix_spans = 1, [(0, 0, count)]
    return rows


def ready(network, *folders: Path):
    model = make_model(network)
    for folder in folders:
        model.load_adapter(folder)
    model.allocate(ROOMY)
    model.encode(model.process(observe(1)), 0)
    return model


def copy_prefix(source, target) -> None:
    """Words behind the plain network's prefix, whatever the weights: adapters leave prefixes alone."""
    target.pool.keys.copy_(source.pool.keys)
    target.pool.values.copy_(source.pool.values)


@pytest.mark.parametrize(
    ("options", "gain"),
    [
        ({"rank": 4, "alpha": 8.0}, 2.0),
        ({"rank": 1, "alpha": 0.5}, 0.5),
        ({"rank": 9, "alpha": 6.0, "use_rslora": True}, 6.0 / math.sqrt(9)),
        ({"rank": 4, "alpha": 8.0, "targets": ("q_proj", "v_proj")}, 2.0),
        ({"rank": 2, "alpha": 3.0, "targets": ("k_proj", "up_proj", "o_proj")}, 1.5),
    ],
    ids=["all", "rank 1", "rslora", "q and v", "k, up and o"],
)
def test_an_adapter_equals_merged_weights(demo_network, tmp_path: Path, options, gain: float) -> None:
    write_adapter(tmp_path / "formal", demo_network, **options)
    plain = ready(demo_network, tmp_path / "formal")
    merged = ready(merge_adapter(tmp_path / "formal", demo_network, tmp_path / "merged", gain))
    copy_prefix(plain, merged)
    adapted = plain.extend(rows_of(plain, [1] * 4))
    torch.testing.assert_close(adapted, merged.extend(rows_of(merged, [0] * 4)), atol=1e-4, rtol=1e-4)
    untouched = plain.extend(rows_of(plain, [0] * 4))
    assert (adapted - untouched).abs().max() > 0.1, "the adapter does nothing: the test shows nothing"


def test_two_adapters_and_none_in_one_step(demo_network, tmp_path: Path) -> None:
    """Each row as in a step of its own kind alone; rows without adapter bitwise as without any loaded."""
    for seed, name in enumerate(("formal", "terse")):
        write_adapter(tmp_path / name, demo_network, seed=seed, targets=ALL_TARGETS[: 7 - 3 * seed])
    model = ready(demo_network, tmp_path / "formal", tmp_path / "terse")
    assert model.adapters == ("formal", "terse")
    mix = [0, 1, 2, 0]
    mixed = model.extend(rows_of(model, mix))
    each = [model.extend(rows_of(model, [i] * 4)) for i in range(3)]
    for row, adapter in enumerate(mix):
        torch.testing.assert_close(mixed[row], each[adapter][row], atol=1e-5, rtol=1e-5)
    assert not torch.allclose(each[1], each[2], atol=0.1)
    bare = ready(demo_network)
    assert torch.equal(mixed[[0, 3]], bare.extend(rows_of(bare, [0] * 4))[[0, 3]])


def test_actions_and_prefix_are_bitwise_the_same_with_adapters(demo_network, tmp_path: Path) -> None:
    write_adapter(tmp_path / "formal", demo_network)
    bare, model = ready(demo_network), ready(demo_network, tmp_path / "formal")
    noise = torch.randn(16, 7, generator=torch.Generator().manual_seed(5))
    model.extend(rows_of(model, [1, 0, 1, 1]))
    places = model.pool.prefix_places(0)
    assert torch.equal(model.pool.keys[:, :, places], bare.pool.keys[:, :, places])
    assert torch.equal(model.denoise(0, noise), bare.denoise(0, noise))


# -- what is refused -----------------------------------------------------------------------------


def change_config(folder: Path, **entries: object) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


def change_tensors(folder: Path, change) -> None:
    file = folder / "adapter_model.safetensors"
    tensors = load_file(file)
    save_file(change(tensors), file)


Q = f"base_model.model.{weight_name(1, 'q_proj')}"
EXPERT_Q = "base_model.model.paligemma_with_expert.gemma_expert.model.layers.0.self_attn.q_proj.lora_A.weight"
REFUSED = {
    "no config": (lambda f: (f / "adapter_config.json").unlink(), r"adapter_config\.json is missing"),
    "no weights": (
        lambda f: (f / "adapter_model.safetensors").unlink(),
        r"adapter_model\.safetensors is missing",
    ),
    "config no JSON": (
        lambda f: (f / "adapter_config.json").write_text("{"),
        r"adapter_config\.json is not JSON",
    ),
    "config a list": (lambda f: (f / "adapter_config.json").write_text("[]"), "peft_type"),
    "other rank": (
        lambda f: change_config(f, r=8),
        r"layer \d \w+ lora_A is \(4, \d+\).*rank 8 need \(8, \d+\)",
    ),
    "no rank": (lambda f: change_config(f, r=None), r'"r" must be a whole number.*None'),
    "rank 0": (lambda f: change_config(f, r=0), r'"r" must be a whole number.*0'),
    "no alpha": (lambda f: change_config(f, lora_alpha="x"), r"\"lora_alpha\" must be a number, got 'x'"),
    "other kind": (lambda f: change_config(f, peft_type="IA3"), 'peft_type must be "LORA"'),
    "DoRA": (lambda f: change_config(f, use_dora=True), "without DoRA"),
    "ranks by layer": (lambda f: change_config(f, rank_pattern={"q_proj": 2}), "rank_pattern is not read"),
    "alphas by layer": (lambda f: change_config(f, alpha_pattern={"q_proj": 2}), "alpha_pattern is not read"),
    "other width": (
        lambda f: change_tensors(f, lambda t: t | {f"{Q}.lora_B.weight": torch.zeros(64, 4)}),
        r"layer 1 q_proj lora_B is \(64, 4\).*\(128, 4\)",
    ),
    "half a pair": (
        lambda f: change_tensors(f, lambda t: {n: v for n, v in t.items() if n != f"{Q}.lora_B.weight"}),
        "layer 1 q_proj lora_B is missing",
    ),
    "a layer too many": (
        lambda f: change_tensors(
            f, lambda t: t | {Q.replace("s.1", "s.9") + ".lora_A.weight": torch.zeros(1)}
        ),
        r"layers\.9\.self_attn\.q_proj\.lora_A.*one of the 4 text layers",
    ),
    "the action expert": (
        lambda f: change_tensors(f, lambda t: t | {EXPERT_Q: torch.zeros(4, 96)}),
        r"gemma_expert.*is no q/k/v/o",
    ),
    "other target": (
        lambda f: change_tensors(
            f, lambda t: t | {Q.replace("q_proj", "x_proj") + ".lora_A.weight": torch.zeros(1)}
        ),
        "x_proj.lora_A",
    ),
    "not finite": (
        lambda f: change_tensors(f, lambda t: t | {f"{Q}.lora_A.weight": torch.full((4, 128), math.nan)}),
        "layer 1 q_proj lora_A holds numbers that are not finite",
    ),
    "nothing in it": (lambda f: change_tensors(f, lambda t: {}), "holds no tensor"),
    "cut off": (
        lambda f: (f / "adapter_model.safetensors").write_bytes(
            (f / "adapter_model.safetensors").read_bytes()[:-100]
        ),
        "cannot be read as safetensors",
    ),
}


@pytest.mark.parametrize("fault", REFUSED)
def test_a_faulty_folder_is_refused_by_name(demo_network, tmp_path: Path, fault: str) -> None:
    spoil, says = REFUSED[fault]
    folder = tmp_path / "formal"
    write_adapter(folder, demo_network)
    spoil(folder)
    model = make_model(demo_network)
    with pytest.raises(ModelError, match=says) as caught:
        model.load_adapter(folder)
    assert "formal" in str(caught.value)
    assert model.adapters == (), "a refused adapter left something behind"


def test_two_folders_of_one_name_are_refused(demo_network, tmp_path: Path) -> None:
    """A request names its adapter: the second of that name could never be asked for."""
    for parent in ("a", "b"):
        write_adapter(tmp_path / parent / "formal", demo_network)
    model = make_model(demo_network)
    model.load_adapter(tmp_path / "a" / "formal")
    with pytest.raises(ModelError, match=r'b/formal: an adapter "formal" is loaded already'):
        model.load_adapter(tmp_path / "b" / "formal")


def test_a_folder_given_as_dot_has_its_own_name(demo_network, tmp_path: Path, monkeypatch) -> None:
    write_adapter(tmp_path / "formal", demo_network)
    monkeypatch.chdir(tmp_path / "formal")
    model = make_model(demo_network)
    model.load_adapter(Path())
    assert model.adapters == ("formal",)


def test_inputs_are_left_alone(demo_network) -> None:
    """`encode` and `extend` do not write into what they are given."""
    model = ready(demo_network)
    inputs = model.process(observe(2))
    copy = Pi05Inputs(inputs.images.clone(), inputs.tokens.clone())
    model.encode(inputs, 1)
    assert torch.equal(inputs.images, copy.images)
    assert torch.equal(inputs.tokens, copy.tokens)
