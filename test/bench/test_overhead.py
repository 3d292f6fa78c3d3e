# SPDX-License-Identifier: Apache-2.0
"""The measure of the engine's own time: the texts in flight, and the JSON."""

from __future__ import annotations

import json
import sys

import pytest
import torch

from oxygen_ros.bench import overhead


@pytest.mark.parametrize("draft", [0, 4])
def test_as_many_texts_are_in_flight_as_asked_for(draft: int) -> None:
    model = overhead.InstantModel(vocabulary=16, dtype=torch.bfloat16)
    samples = overhead.measure(model, requests=6, tokens=6, steps=2, draft=draft, ticks=5)
    assert len(samples) == 5
    assert all(0 <= seconds < 1 for seconds, _ in samples)
    if draft == 0:
        assert {live for _, live in samples} == {6}


def test_the_command_writes_what_it_found(tmp_path, monkeypatch, capsys) -> None:
    file = tmp_path / "figures.json"
    words = ["--requests", "4", "--tokens", "4", "--steps", "2", "--ticks", "3", "--vocabulary", "16"]
    monkeypatch.setattr(sys, "argv", ["overhead", *words, "--json", str(file)])
    assert overhead.main() in (0, 1)
    figures = json.loads(file.read_text())
    assert figures["live"] == figures["requests"] == 4
    assert "4 texts in flight, 2 steps a tick" in capsys.readouterr().out


def test_nothing_in_flight_is_refused(monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["overhead", "--requests", "0"])
    with pytest.raises(SystemExit):
        overhead.main()
    assert "--requests must be at least 1, got 0" in capsys.readouterr().err
