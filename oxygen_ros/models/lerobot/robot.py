# SPDX-License-Identifier: Apache-2.0
"""Reads `oxygen.json`, which adds to a lerobot policy folder what it lacks; written at bring-up.

    {"joints": [names of the state's numbers], "actions": {"joints": [names of the actions]}, "step": 0.033}

The time step is in seconds. Actions other than joint positions are described instead:

    "actions": {"components": [{"name": "hand", "kind": "cartesian_position", "unit": "m", "frame": "base"},
                               ...]}
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oxygen_ros.actions import ActionSpace, joint_space
from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.processing import read_action_space

FILE: Final = "oxygen.json"


@dataclass(frozen=True, slots=True)
class RobotNames:
    """joints: names of the state's numbers [J]; actions: what the actions are [A]; step: [s]"""

    joints: tuple[str, ...]
    actions: ActionSpace
    step: float


def read_robot(folder: Path, states: int, actions: int, action_names: Sequence[str] | None) -> RobotNames:
    """Read oxygen.json for `states` numbers of the state and `actions` of an action.

    action_names: lerobot's own, used where the file has no "actions". Without either, as many actions as
                  joints are the joints in their order

    Raises ModelError: a missing file with the content to write, a faulty one with the entry.
    """
    file = folder / FILE
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{file} is missing: lerobot does not save what the numbers are called and how far apart in time "
            f"actions are. Write it with your robot's names: {_draft(states, actions, action_names)} "
            f'("joints": the {states} numbers of the state in their order; "actions": which of them the '
            f"{actions} actions are for; step: 1 / fps of the data set)"
        ) from None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from None
    known = {"joints", "actions", "step"}
    if not isinstance(raw, dict) or not raw.keys() <= known or not isinstance(raw.get("actions", {}), dict):
        raise ModelError(f"{file} must hold an object of {_draft(states, actions, action_names)}")
    joints = _read_names(file, "joints", raw.get("joints"), states)
    step = raw.get("step")
    if isinstance(step, bool) or not isinstance(step, int | float) or not 0 < step < math.inf:
        raise ModelError(f"{file}: step must be the seconds between two actions, got {step!r}")
    if "components" in raw.get("actions", {}):
        space = read_action_space(str(file), raw["actions"]["components"], joints)
        if space.size != actions:
            raise ModelError(
                f"{file}: actions.components have {space.size} numbers, config.json says {actions}"
            )
        return RobotNames(joints, space, float(step))
    if "joints" in raw.get("actions", {}):
        moved = _read_names(file, "actions.joints", raw["actions"]["joints"], actions)
    elif action_names is not None:
        moved = _read_names(
            file.with_name("config.json"), "action_feature_names", list(action_names), actions
        )
    elif actions == states:
        moved = joints
    else:
        raise ModelError(
            f"{file}: {actions} actions for {states} joints: "
            'name theirs in {"actions": {"joints": [...]}}'
        )
    unknown = [name for name in moved if name not in joints]
    if unknown:
        raise ModelError(
            f'{file}: action joint "{unknown[0]}" is not among {list(joints)}; '
            '{"actions": {"joints": [...]}} says which of them the actions are for, {"actions": '
            '{"components": [...]}} what they are where they are no joints'
        )
    return RobotNames(joints, joint_space(moved), float(step))


def _read_names(file: Path, entry: str, names: Any, count: int) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) and name for name in names):
        raise ModelError(f"{file}: {entry} must be a list of {count} names, got {names!r}")
    if len(names) != count:
        raise ModelError(
            f"{file}: {entry} must be {count} names as in config.json, got {len(names)}: {names}"
        )
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise ModelError(f'{file}: {entry} names "{twice[0]}" twice')
    return tuple(names)


def _draft(states: int, actions: int, action_names: Sequence[str] | None) -> str:
    """Content of the file, as far as lerobot's files have it."""
    joints = [f"joint{i + 1}" for i in range(states)]
    if action_names is not None and len(action_names) == states == actions:
        joints = list(action_names)
    return json.dumps({"joints": joints, "actions": {"joints": joints[:actions]}, "step": 0.033})
