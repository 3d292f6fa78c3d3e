# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM end the process with 0 and without a traceback, in every state."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from node_lab import Robot

SIGNALS = {"int": signal.SIGINT, "term": signal.SIGTERM}
STATES = {
    "unconfigured": {"params": {"autostart": False}},
    "configuring": {"params": {}, "toy": {"load_seconds": 120}},
    "inactive": {"params": {"autostart": False}},
    "active": {"params": {}},
}
# Both signals take the same way; both are sent where there is most to end.
CASES = [
    ("unconfigured", "term"),
    ("configuring", "int"),
    ("configuring", "term"),
    ("inactive", "int"),
    ("active", "int"),
    ("active", "term"),
]


@pytest.fixture(scope="module")
def fleet(start_node: Callable[..., Any]) -> dict[tuple[str, str], Any]:
    """A node for each state and signal, all starting at once: importing torch takes its time."""
    nodes = {(state, word): start_node(name=f"{state}_{word}", **STATES[state]) for state, word in CASES}
    nodes["lost", ""] = start_node(name="lost", toy={"lost_ticks": [3]})
    nodes["ticking", ""] = start_node({"period": 0.5}, toy={"step_seconds": 0.03})
    return nodes


@pytest.mark.parametrize(("state", "word"), CASES)
def test_signals_end_it_cleanly(
    fleet: dict[tuple[str, str], Any], robot: Robot, state: str, word: str
) -> None:
    name = f"{state}_{word}"
    process = fleet[state, word]
    if state == "inactive":
        assert robot.change_state("configure", name)
    robot.wait_for_state(state, name)
    if state == "configuring":
        # The executor answers while the model loads, and refuses what does not fit.
        assert not robot.change_state("activate", name)
    process.stop(SIGNALS[word])


@pytest.mark.parametrize("word", SIGNALS)
def test_while_importing(start_node: Callable[..., Any], word: str) -> None:
    process = start_node(name=f"early_{word}")
    process.wait_until_signals_are_held()
    process.stop(SIGNALS[word])


def test_a_lost_device_ends_the_process_for_launch_to_restart(fleet: dict[tuple[str, str], Any]) -> None:
    process = fleet["lost", ""]
    assert process.wait(timeout=60) == 69
    assert "cpu computes no more: the device is lost" in process.output
    assert "Traceback" not in process.output


def test_a_file_that_is_no_yaml_is_said(start_node: Callable[..., Any], tmp_path: Path) -> None:
    broken = tmp_path / "broken.yaml"
    broken.write_text("oxygen: {ros__parameters: {period: [0.1}}")
    process = start_node(name="broken", more=["--params-file", str(broken)])
    assert process.wait(timeout=60) == 64
    assert "oxygen_node: cannot start" in process.output
    assert "Traceback" not in process.output


def test_in_the_middle_of_a_tick(fleet: dict[tuple[str, str], Any], robot: Robot) -> None:
    """The tick under way is finished, its texts end with a reason, nothing more is published."""
    process = fleet["ticking", ""]
    robot.wait_for("/oxygen/tick", lambda m: m.requests_live > 0, after=robot.now("/oxygen/tick"), timeout=60)
    process.stop(signal.SIGINT)
    robot.wait_for("/oxygen/text", lambda m: m.finish_reason == "deactivated")
