# SPDX-License-Identifier: Apache-2.0
"""Checkpoint folders in and out: both layouts, shards, round trips, and every fault by its name."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from models_scene import make_network, write_adapter, write_checkpoint
from safetensors.torch import load_file, save_file

from oxygen_ros.models import LoadInterrupted, ModelError, load_model
from oxygen_ros.models.pi05.weights import load_network, save_network

CPU = torch.device("cpu")
TABLE = "paligemma_with_expert.paligemma.model.language_model.embed_tokens.weight"
HEAD = "paligemma_with_expert.paligemma.lm_head.weight"
Q = "paligemma_with_expert.paligemma.model.language_model.layers.2.self_attn.q_proj.weight"
K = Q.replace("q_proj", "k_proj")
PATCH = "paligemma_with_expert.paligemma.model.vision_tower.vision_model.embeddings.patch_embedding.weight"


def assert_equal(network, other) -> None:
    assert network.state_dict().keys() == other.state_dict().keys()
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, other.state_dict()[name]), name


def load(folder: Path, network, dtype=torch.float32):
    return load_network(folder, network.config, CPU, dtype)


def change(folder: Path, edit) -> None:
    file = folder / "model.safetensors"
    tensors = edit(load_file(file))
    save_file(tensors, file)


def test_save_and_load_give_the_same_bits(demo_network, tmp_path: Path) -> None:
    """Norm scales too, though they are stored as offsets from one."""
    # An offset from one in float32 may round; a network that came from a file is at its fixed point.
    save_network(demo_network, tmp_path / "model.safetensors", torch.float32)
    first = load(tmp_path, demo_network)
    save_network(first, tmp_path / "model.safetensors", torch.float32)
    assert_equal(load(tmp_path, demo_network), first)
    for name, tensor in demo_network.state_dict().items():
        if not name.endswith(".scale"):
            assert torch.equal(tensor, first.state_dict()[name]), name
        torch.testing.assert_close(tensor, first.state_dict()[name], atol=1e-7, rtol=1e-6)


def test_bfloat16_is_the_rounded_float32(demo_network, checkpoint: Path) -> None:
    rounded = load(checkpoint, demo_network, torch.bfloat16).state_dict()
    for name, tensor in load(checkpoint, demo_network).state_dict().items():
        assert torch.equal(rounded[name], tensor.bfloat16()), name


@pytest.mark.parametrize("layout", ["lerobot", "head only", "table and head", "unused ones"])
def test_layouts_give_the_same_network(demo_network, checkpoint: Path, layout: str) -> None:
    expected = load(checkpoint, demo_network)

    def edit(t):
        if layout == "lerobot":
            return {f"model.{name}": tensor for name, tensor in t.items()} | {
                f"model.{HEAD}": t[TABLE].clone()
            }
        if layout == "head only":
            return {HEAD if name == TABLE else name: tensor for name, tensor in t.items()}
        if layout == "table and head":
            return t | {HEAD: t[TABLE].clone()}
        extra = {
            "paligemma_with_expert.gemma_expert.lm_head.weight": torch.zeros(3, 3),
            "paligemma_with_expert.gemma_expert.model.embed_tokens.weight": torch.zeros(3, 3),
            PATCH.replace("patch_embedding.weight", "position_ids"): torch.arange(25)[None],
        }
        return t | extra

    change(checkpoint, edit)
    assert_equal(load(checkpoint, demo_network), expected)


def test_shards_load_as_one(demo_network, checkpoint: Path) -> None:
    expected = load(checkpoint, demo_network)
    tensors = load_file(checkpoint / "model.safetensors")
    (checkpoint / "model.safetensors").unlink()
    names = sorted(tensors)
    for i in range(2):
        shard = {name: tensors[name] for name in names[i::2]}
        save_file(shard, checkpoint / f"model-0000{i + 1}-of-00002.safetensors")
    index = {
        "weight_map": {name: f"model-0000{1 + names.index(name) % 2}-of-00002.safetensors" for name in names}
    }
    (checkpoint / "model.safetensors.index.json").write_text(json.dumps(index))
    assert_equal(load(checkpoint, demo_network), expected)
    (checkpoint / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match=r"tensor \S+ is missing"):
        load(checkpoint, demo_network)


FAULTS = {
    "missing": (lambda t: {n: v for n, v in t.items() if n != Q}, rf"tensor {Q} is missing"),
    "unknown": (lambda t: t | {"surprise.weight": torch.zeros(2)}, r"tensor surprise\.weight is no part"),
    "a layer more": (lambda t: t | {Q.replace(".2.", ".4."): t[Q].clone()}, r"layers\.4\.self_attn\.q_proj"),
    "other shape": (
        lambda t: t | {Q: torch.zeros(64, 128)},
        rf"{Q} has shape \[64, 128\].*needs \[128, 128\]",
    ),
    "q and k exchanged": (
        lambda t: t | {Q: t[K].clone(), K: t[Q].clone()},
        rf"{Q} has shape \[32, 128\].*needs \[128, 128\]",
    ),
    "a scalar": (lambda t: t | {Q: torch.tensor(1.0)}, rf"{Q} has shape \[\].*needs \[128, 128\]"),
    "patch kernel flat": (
        lambda t: t | {PATCH: t[PATCH].flatten(1).contiguous()},
        r"patch_embedding\.weight has shape \[96, 768\].*needs \[96, 3, 16, 16\]",
    ),
    "patch kernel turned": (
        lambda t: t | {PATCH: t[PATCH].permute(0, 2, 3, 1).contiguous()},
        r"patch_embedding\.weight has shape \[96, 16, 16, 3\].*needs \[96, 3, 16, 16\]",
    ),
    "whole numbers": (lambda t: t | {Q: torch.zeros(128, 128, dtype=torch.int8)}, rf"{Q} is torch\.int8"),
    "not finite": (
        lambda t: t | {Q: t[Q].clone().index_fill_(0, torch.tensor([3]), math.inf)},
        rf"{Q} holds numbers that are not finite",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_tensor_is_named_with_what_is_needed(demo_network, checkpoint: Path, fault: str) -> None:
    edit, says = FAULTS[fault]
    change(checkpoint, edit)
    with pytest.raises(ModelError, match=says) as caught:
        load(checkpoint, demo_network)
    assert str(checkpoint) in str(caught.value)


def test_a_tensor_in_two_files_is_refused(demo_network, checkpoint: Path) -> None:
    """No guess which one would be right."""
    save_file({f"model.{Q}": torch.zeros(128, 128)}, checkpoint / "model_ema.safetensors")
    with pytest.raises(ModelError, match=rf"{Q} stands in model\.safetensors and again in model_ema\.safe"):
        load(checkpoint, demo_network)


@pytest.mark.parametrize("keep", [0, 4, 500, -1])
def test_a_file_cut_off_is_named(demo_network, checkpoint: Path, keep: int) -> None:
    file = checkpoint / "model.safetensors"
    file.write_bytes(file.read_bytes()[:keep])
    with pytest.raises(ModelError, match=r"model\.safetensors cannot be read as safetensors.*again"):
        load(checkpoint, demo_network)


def test_no_weights_at_all(demo_network, checkpoint: Path) -> None:
    (checkpoint / "model.safetensors").rename(checkpoint / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"no model\.safetensors"):
        load(checkpoint, demo_network)


@pytest.mark.parametrize("after", [0, 1, 40])
def test_should_stop_interrupts(checkpoint: Path, after: int) -> None:
    asked = []

    def should_stop() -> bool:
        asked.append(True)
        return len(asked) > after

    with pytest.raises(LoadInterrupted, match="was stopped"):
        load_model(checkpoint, should_stop=should_stop)
    assert len(asked) == after + 1, "it went on after it was stopped"


def test_the_loaded_model_is_what_was_saved(demo_network, checkpoint: Path, tmp_path: Path) -> None:
    write_adapter(tmp_path / "formal", demo_network)
    model = load_model(checkpoint, adapters=[tmp_path / "formal"], denoise_steps=3)
    config = demo_network.config
    assert model.config == config
    assert (model.spec.experts[0].denoise_steps, model.spec.joints, model.adapters) == (
        3,
        config.joints,
        ("formal",),
    )
    assert load_model(checkpoint).spec.experts[0].denoise_steps == config.denoise_steps == 5


def test_a_bfloat16_checkpoint_loads_in_float32(tmp_path: Path) -> None:
    network = make_network(1)
    folder = write_checkpoint(tmp_path / "half", network, torch.bfloat16)
    model = load_model(folder, dtype="float32")
    assert model.dtype == torch.float32
    torch.testing.assert_close(model.network.embedding, network.embedding, atol=0.02, rtol=2**-8)
