# SPDX-License-Identifier: Apache-2.0
"""SIGINT and SIGTERM end the process with 0 and without a traceback, in every state."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
from node_lab import Robot

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.mark.parametrize("number", SIGNALS)
def test_while_importing(start_node: Callable[..., Any], number: signal.Signals) -> None:
    process = start_node(name=f"early_{number.name.lower()}")
    time.sleep(0.3)  # not for something to happen: to land in the imports
    process.stop(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_unconfigured(start_node: Callable[..., Any], robot: Robot, number: signal.Signals) -> None:
    name = f"idle_{number.name.lower()}"
    process = start_node({"autostart": False}, name=name)
    robot.wait_for_state("unconfigured", name)
    process.stop(number)


@pytest.mark.parametrize("number", SIGNALS)
def test_while_loading(start_node: Callable[..., Any], robot: Robot, number: signal.Signals) -> None:
    """The executor answers meanwhile, and loading does not hold up the end."""
    name = f"loading_{number.name.lower()}"
    process = start_node(name=name, toy={"load_seconds": 60})
    robot.wait_for_state("configuring", name)
    assert not robot.change_state("activate", name)
    started = time.monotonic()
    process.stop(number)
    assert time.monotonic() - started < 5.0


@pytest.mark.parametrize("number", SIGNALS)
def test_inactive_and_active(start_node: Callable[..., Any], robot: Robot, number: signal.Signals) -> None:
    name = f"ready_{number.name.lower()}"
    process = start_node({"autostart": number == signal.SIGTERM}, name=name)
    if number == signal.SIGINT:
        assert robot.change_state("configure", name)
        robot.wait_for_state("inactive", name)
    else:
        robot.wait_for_state("active", name)
    process.stop(number)


def test_in_the_middle_of_a_tick(start_node: Callable[..., Any], robot: Robot) -> None:
    """The tick under way is finished, its texts end with a reason, nothing more is published."""
    process = start_node({"period": 0.2}, toy={"step_seconds": 0.03})
    robot.wait_for("/oxygen/tick", lambda m: m.requests_live > 0)
    process.stop(signal.SIGINT)
    robot.wait_for("/oxygen/text", lambda m: m.finish_reason == "deactivated")
