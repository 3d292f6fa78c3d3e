# SPDX-License-Identifier: Apache-2.0
"""A policy folder of lerobot made whole, for the tests of its processor: golden data and what it lacks.

The reference data's tokenizer was a stub whose ids are in the data; here a real one
replaces it, with those ids for those prompts.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from tokenizers.processors import TemplateProcessing

from oxygen_ros.models.pi05 import config
from oxygen_ros.observation import Observation

GOLDEN = Path(__file__).parents[1] / "golden" / "pi05_lerobot"
JOINTS = [f"joint{i + 1}" for i in range(8)]
ROBOT = {"joints": JOINTS, "actions": {"joints": JOINTS[:7]}, "step": 0.033}
BEFORE, AFTER = "policy_preprocessor.json", "policy_postprocessor.json"
_SPECIAL = ("<pad>", "<eos>", "<bos>")


class Cases:
    """The golden cases by (case, row)."""

    def __init__(self) -> None:
        self.tensors = load_file(GOLDEN / "cases.safetensors")
        self.facts = json.loads((GOLDEN / "cases.json").read_text())
        self.rows = [(case, row) for case, fact in self.facts.items() for row in range(len(fact["prompts"]))]

    def get(self, case: str, name: str, row: int) -> torch.Tensor:
        tensor = self.tensors[f"{case}.{name}"]
        # One un-batched observation is the input of the cases with one row.
        is_row = tensor.dim() == (3 if ".image." in name else 1) and name.startswith("input.")
        return tensor if is_row else tensor[row]

    def tokens(self, case: str, row: int) -> list[int]:
        ids: list[int] = self.get(case, "input.tokens", row)[self.get(case, "input.token_mask", row)].tolist()
        return ids

    def observe(self, case: str, row: int) -> Observation:
        """The observation as a robot has it: pixels of 8 bits."""
        fact = self.facts[case]
        images = {
            name: (self.get(case, f"input.image.{name}", row).permute(1, 2, 0) * 255).round().byte().numpy()
            for name in fact["cameras_present"]
        }
        task = fact["task"] if isinstance(fact["task"], str) else fact["task"][row]
        return Observation(1, images, self.get(case, "input.state", row).double().numpy(), task)


def make_case_tokenizer(cases: Cases) -> Tokenizer:
    """Gives the ids of the cases for their prompts, and one id a word for all else."""
    words = {word: i for i, word in enumerate(_SPECIAL)} | {f"w{i}": i for i in range(3, 512)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w3"))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Replace(
                cases.facts[case]["prompts"][row], " ".join(f"w{i}" for i in cases.tokens(case, row)[1:])
            )
            for case, row in cases.rows
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in _SPECIAL])
    return tokenizer


def make_letter_tokenizer(ids: int = 512) -> Tokenizer:
    """As PaliGemma's: <bos> in front by itself, spaces as signs, a special "<image>" after `ids` others."""
    letters = [*_SPECIAL, "<unk>", "▁", "\n", *map(chr, range(33, 127))]
    letters += [f"<extra{i}>" for i in range(ids - len(letters))]
    tokenizer = Tokenizer(BPE({letter: i for i, letter in enumerate(letters)}, [], unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in (*_SPECIAL, "<image>")])
    tokenizer.post_processor = TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 2)])
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer, robot: Mapping[str, Any] | None = ROBOT) -> Path:
    """lerobot's files, a tokenizer.json and oxygen.json."""
    folder.mkdir()
    for file in (*GOLDEN.glob("policy_*"), GOLDEN / "config.json", GOLDEN / "model.safetensors"):
        shutil.copyfile(file, folder / file.name)
    tokenizer.save(str(folder / "tokenizer.json"))
    if robot is not None:
        (folder / "oxygen.json").write_text(json.dumps(robot))
    return folder


def change(folder: Path, file: str, *path: Any, to: Any) -> None:
    """Set content[path[0]][path[1]]... of a JSON file; a step is found by its name."""
    content = json.loads((folder / file).read_text())
    at = content
    for key in path[:-1]:
        at = next(s for s in at if s["registry_name"] == key) if isinstance(at, list) else at[key]
    at[path[-1]] = to
    (folder / file).write_text(json.dumps(content))


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make lerobot's names of sizes mean the reference data's: its config.json does not hold them."""
    tiny = config.from_dimensions(json.loads((GOLDEN / "tiny_dims.json").read_text()))
    patch.setitem(config.PRESETS, "pi05", tiny)  # type: ignore[call-overload]
    patch.setitem(config._GEMMA, "gemma_2b", tiny.backbone)
    patch.setitem(config._GEMMA, "gemma_300m", tiny.expert)


def look(instruction: str, state: Any = (0.1,) * 8, size: tuple[int, int] = (28, 28)) -> Observation:
    """An observation with one camera."""
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    return Observation(1, {"base_0_rgb": image}, np.asarray(state, np.float64), instruction)
