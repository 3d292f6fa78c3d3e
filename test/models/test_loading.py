# SPDX-License-Identifier: Apache-2.0
"""`load_model` on folders that are not right: a ModelError that names the thing, the value and the cure."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from oxygen_ros.models import ModelError, load_model
from oxygen_ros.models.loading import check_device


def rewrite(folder: Path, file: str, edit) -> None:
    content = json.loads((folder / file).read_text())
    edited = edit(content)
    (folder / file).write_text(json.dumps(content if edited is None else edited))


def setting(file: str, *path: str, value: object):
    """An edit that sets content[path[0]][path[1]]... to `value`."""

    def edit(folder: Path) -> None:
        def change(content):
            at = content
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = value

        rewrite(folder, file, change)

    return edit


def without(file: str, *path: str):
    def edit(folder: Path) -> None:
        def change(content):
            at = content
            for key in path[:-1]:
                at = at[key]
            del at[path[-1]]

        rewrite(folder, file, change)

    return edit


CONFIG, STATS = "config.json", "norm_stats.json"
FAULTS = {
    "no config": (lambda f: (f / CONFIG).unlink(), r"config\.json is missing"),
    "config a folder": (
        lambda f: ((f / CONFIG).unlink(), (f / CONFIG).mkdir()),
        r"config\.json cannot be read",
    ),
    "config not JSON": (lambda f: (f / CONFIG).write_text("model_type: pi05"), r"config\.json is not JSON"),
    "config not text": (lambda f: (f / CONFIG).write_bytes(b"\xff\xfe\x00"), r"config\.json is not JSON"),
    "config a list": (
        lambda f: (f / CONFIG).write_text("[1]"),
        r"config\.json must hold a JSON object, got list",
    ),
    "other family": (setting(CONFIG, "model_type", value="pi9"), r'family "pi9" is not known; known: pi05'),
    "no family": (without(CONFIG, "model_type"), r'family "None" is not known'),
    "no vision": (without(CONFIG, "vision"), r"config\.json: entry 'vision' is missing"),
    "vision a number": (setting(CONFIG, "vision", value=3), r"config\.json: "),
    "no joints": (setting(CONFIG, "joints", value=[]), r'"joints" must name the joints'),
    "a joint twice": (
        setting(CONFIG, "joints", value=["j1", "j2", "j1"]),
        r'config\.json: joint "j1" is named twice',
    ),
    "a camera twice": (
        setting(CONFIG, "cameras_in_order", value=["top", "top"]),
        r'config\.json: camera "top" is named twice',
    ),
    "action joint unknown": (
        setting(CONFIG, "actions", "joints", value=["jiont1"]),
        r'action joint "jiont1" is not among',
    ),
    "delta joint unknown": (
        setting(CONFIG, "actions", "delta", value=["jiont1"]),
        r'delta joint "jiont1" is not among',
    ),
    "too many actions": (
        setting(CONFIG, "action_dim", value=6),
        r"7 actions do not fit action_dim 6",
    ),
    "horizon 0": (setting(CONFIG, "action_horizon", value=0), r"horizon must be a whole number.*got 0"),
    "steps 0": (setting(CONFIG, "default_num_steps", value=0), r"denoise_steps must be a whole number"),
    "width in words": (
        setting(CONFIG, "prefix_llm", "width", value="128"),
        r"backbone\.width must be a whole number.*'128'",
    ),
    "step 0": (setting(CONFIG, "step", value=0), r"step must be a positive number, got 0"),
    "time rule": (setting(CONFIG, "time_rule", value="sloppy"), r'time_rule must be .* got "sloppy"'),
    "heads do not divide": (
        setting(CONFIG, "vision", "num_attention_heads", value=7),
        r"width 96 of heads 7",
    ),
    "streams differ": (
        setting(CONFIG, "action_expert", "head_dim", value=16),
        r"must be equal, got \(4, 4, 1, 32\)",
    ),
    "eos outside": (
        setting(CONFIG, "special_ids", "eos", value=768),
        r"eos_id 768 is no id of a vocabulary of 768",
    ),
    "bins outside": (
        setting(CONFIG, "state_bin_base", value=600),
        r"state_bin_base must leave room.*got 600",
    ),
    "bins below": (setting(CONFIG, "state_bin_base", value=-1), r"state_bin_base must leave room.*got -1"),
    "small vocabulary": (
        setting(CONFIG, "prefix_llm", "vocab_size", value=258),
        r"eos_id|bos_id 258 is no id",
    ),
    "no tokenizer": (lambda f: (f / "tokenizer.json").unlink(), r"tokenizer\.json is missing"),
    "broken tokenizer": (
        lambda f: (f / "tokenizer.json").write_text("{}"),
        r"tokenizer\.json cannot be read",
    ),
    "no statistics": (lambda f: (f / STATS).unlink(), r"norm_stats\.json is missing"),
    "statistics not JSON": (lambda f: (f / STATS).write_text("x"), r"norm_stats\.json must hold"),
    "statistics a list": (lambda f: (f / STATS).write_text("[]"), r"norm_stats\.json must hold"),
    "no actions": (without(STATS, "norm_stats", "actions"), r'no "actions" \(it has: state\)'),
    "no q99": (without(STATS, "norm_stats", "state", "q99"), r"state q99 must be 7 finite numbers"),
    "q01 short": (
        setting(STATS, "norm_stats", "state", "q01", value=[0.0] * 6),
        r"state q01 must be 7 finite",
    ),
    "q01 ragged": (setting(STATS, "norm_stats", "state", "q01", value=[[1], [1, 2]]), r"state q01 must be 7"),
    "q01 in words": (setting(STATS, "norm_stats", "state", "q01", value=["a"] * 7), r"state q01 must be 7"),
    "q01 NaN": (
        setting(STATS, "norm_stats", "state", "q01", value=[float("nan")] * 7),
        r"q01 must be 7 finite",
    ),
    "upside down": (
        setting(STATS, "norm_stats", "actions", "q01", value=[9.0] * 7),
        r"actions q01 must not exceed q99, entry 0",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_refused_by_name(checkpoint: Path, fault: str) -> None:
    spoil, says = FAULTS[fault]
    spoil(checkpoint)
    with pytest.raises(ModelError, match=says):
        load_model(checkpoint)


def test_a_tokenizer_of_another_checkpoint(checkpoint: Path) -> None:
    """More ids than the network has embeddings: an index error in the middle of a run, if let in."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    tokenizer.add_tokens([f"<loc{i}>" for i in range(600)])
    tokenizer.save(str(checkpoint / "tokenizer.json"))
    with pytest.raises(ModelError, match=r"tokenizer\.json has 859 ids, the network's vocabulary only 768"):
        load_model(checkpoint)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"dtype": "float16"}, r'dtype must be one of float32, bfloat16, got "float16"'),
        ({"device": "tpu"}, r'device "tpu"'),
        ({"device": "meta"}, r'device must be "cpu" or "cuda", got "meta"'),
        ({"device": ""}, r'device ""'),
        ({"denoise_steps": 0}, r"denoise_steps must be at least 1, got 0"),
        ({"denoise_steps": -2}, r"denoise_steps must be at least 1, got -2"),
    ],
)
def test_an_option_that_cannot_be(checkpoint: Path, options, says: str) -> None:
    with pytest.raises(ModelError, match=says):
        load_model(checkpoint, **options)


@pytest.mark.parametrize("make", [lambda p: None, lambda p: p.write_text("")], ids=["nothing", "a file"])
def test_no_folder(tmp_path: Path, make) -> None:
    make(tmp_path / "model")
    with pytest.raises(ModelError, match=r'model folder ".*model" does not exist'):
        load_model(tmp_path / "model")


def test_home_is_expanded(checkpoint: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(checkpoint.parent))
    assert load_model("~/checkpoint").spec.family == "pi05"


def test_cuda_where_there_is_none(monkeypatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(
        ModelError, match=r'device "cuda:1": this torch .* sees no CUDA devices; check.*use "cpu"'
    ):
        check_device("cuda:1")


@pytest.mark.parametrize(
    ("built", "capability", "runs"),
    [
        ("sm_90", (9, 0), True),
        ("sm_86", (8, 9), True),
        ("sm_90", (8, 9), False),
        ("sm_90", (10, 0), False),
        ("sm_110a", (11, 0), True),
        ("compute_90", (11, 0), True),
        ("compute_120", (11, 0), False),
        ("gfx90a", (9, 0), False),
    ],
)
def test_a_gpu_needs_code_that_runs_on_it(
    monkeypatch, built: str, capability: tuple[int, int], runs: bool
) -> None:
    for name, answer in (
        ("is_available", True),
        ("device_count", 1),
        ("get_device_capability", capability),
        ("get_arch_list", [built]),
        ("get_device_name", "some GPU"),
    ):
        monkeypatch.setattr(f"torch.cuda.{name}", lambda *_, answer=answer: answer)
    if runs:
        assert check_device("cuda:0") == torch.device("cuda", 0)
        return
    with pytest.raises(
        ModelError, match=rf"\(some GPU\) is sm_\d+, this torch \(.*\) is built for {built}: install"
    ):
        check_device("cuda:0")
