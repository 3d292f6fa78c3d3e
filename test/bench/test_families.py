# SPDX-License-Identifier: Apache-2.0
"""Another family is measured by one entry among the presets, without floors and ablation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

import pytest
import torch
from torch import nn

from oxygen_ros.bench import components, setup
from oxygen_ros.bench.families import PRESETS
from oxygen_ros.bench.main import main
from oxygen_ros.bench.options import parse
from oxygen_ros.bench.overhead import InstantModel
from oxygen_ros.bench.preset import BenchRobot, ModelPreset
from oxygen_ros.models.interface import Model
from oxygen_ros.observation import Observation


class ToyModel(InstantModel):
    """The next token follows from the last one and its position; rows of an incomplete prefix are refused."""

    def __init__(self) -> None:
        super().__init__(vocabulary=16, dtype=torch.float32)
        self.completed: set[int] = set()

    def encode(self, inputs, slot):
        self.completed.discard(slot)
        return super().encode(inputs, slot)

    def complete(self, slot: int) -> None:
        assert slot not in self.completed, "once for a prefix"
        self.completed.add(slot)

    def extend(self, rows):
        assert {slot for slot, _, _ in rows.prefix_spans} <= self.completed
        wanted = rows.wants_logits[: rows.wanted]
        following = (3 * rows.token[wanted] + rows.position[wanted]) % 15 + 1
        return nn.functional.one_hot(following, 16).float()

    def tokenize(self, template, words=None):
        return [1] * len(template.split())


class ToyPreset(ModelPreset):
    can_draft = False

    def __init__(self, robot: BenchRobot) -> None:
        self.robot, self.image_size, self.most_prompt = robot, (2, 2), 64

    @classmethod
    def make(cls, preset: str, robot: BenchRobot, *, horizon=None, denoise_steps=None) -> Self:
        return cls(robot)

    def draw_weights(self, seed: int, dtype: torch.dtype, device: torch.device) -> nn.Module:
        return nn.Linear(2, 2, dtype=dtype, device=device)

    def make_model(self, weights: nn.Module) -> Model:
        return ToyModel()

    def count_prompt(self, observation: Observation) -> int:
        return 1 + len(observation.instruction.split())

    def count_prefix(self, prompt_tokens: int) -> int:
        return prompt_tokens


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PRESETS, "toy", ToyPreset)
    assert setup.PRESETS is PRESETS


def test_a_family_is_measured_through_the_interface(
    toy: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "out.json"
    assert main(["--preset", "toy", "--n", "4", "--k", "2", "--ticks", "2", "--json", str(file)]) == 0
    document = json.loads(file.read_text())
    assert document["complete"]
    assert document["outputs_equal"]
    assert [run["mode"] for run in document["runs"]] == ["isolated", "shared", "batched", "oxygen"]
    assert all(run["counts_as_expected"] for run in document["runs"])
    (table,) = document["components"]
    assert table["prefill"]["ms"] > 0
    assert table["prefill"]["linear_layers_ms"] is None
    assert table["decode"]["64"]["over_linear_layers"] is None
    assert {"complete", "fork", "extend"} <= {name for name, _, _ in document["timeline"]["calls"]["oxygen"]}
    assert "components alone, float32, prefix of 40 tokens" in capsys.readouterr().out


def test_what_a_family_lacks_is_said(toy: None, capsys: pytest.CaptureFixture[str]) -> None:
    for words, said in ((["--ablate"], "has no ablation"), (["--speculate", "4"], "takes no drafts")):
        with pytest.raises(SystemExit):
            parse(["--preset", "toy", *words])
        assert f"preset toy: its family {said}" in capsys.readouterr().err


def test_rows_of_one_slot_stand_together() -> None:
    """A step of 5 rows, 3 texts of 2 prefixes: the newest text's prompt has 3 of them."""
    rows = components.Rows(8, torch.device("cpu"))
    texts = components.fill_steady_rows(rows, (5, 2), 10, texts=3, tokens=6)
    assert texts == [(0, 0), (0, 1), (1, 2)]
    assert rows.prefix_spans == [(0, 0, 2), (1, 2, 5)]
    assert rows.suffix_spans == [(0, 0, 1), (1, 1, 2), (2, 2, 5)]
    assert rows.write_at[:5].tolist() == [5, 4, 0, 1, 2]
    assert rows.position[:5].tolist() == [15, 14, 10, 11, 12]
    assert rows.wants_logits[: rows.wanted].tolist() == [0, 1, 4]
    assert rows.longest == 6
