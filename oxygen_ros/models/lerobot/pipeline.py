# SPDX-License-Identifier: Apache-2.0
"""One processor pipeline as lerobot saves it: a JSON list of named steps, their options and state files.

An unknown step or option is refused: it would change numbers silently. The format is that of lerobot 0.6.1's
processor/pipeline.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import SafetensorError
from safetensors.torch import load_file

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.lerobot.normalization import Vector

# Option -> the values that can be served; None: any.
Options = Mapping[str, tuple[Any, ...] | None]
# lerobot 0.5.1's name of the same step.
_FORMER: Final = {"delta_actions_processor": "relative_actions_processor"}


@dataclass(frozen=True, slots=True)
class Step:
    """file: the pipeline's; options: as saved; state: the state file's tensors by their names."""

    file: Path
    name: str
    options: Mapping[str, Any]
    state: Mapping[str, Vector]


def read_steps(
    file: Path, ordered: Mapping[str, Options], anywhere: Mapping[str, Options]
) -> Mapping[str, Step]:
    """Steps by their names.

    ordered:   steps that may be there, at most once and in this order
    anywhere:  steps that may stand in any place, any number of times; they are left out of the result

    Raises ModelError naming what is missing, unknown or out of order.
    """
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelError(
            f"{file} is missing: lerobot saves it beside the weights, copy it with its step files (lerobot "
            "before 0.4 made none: convert such a folder with its migrate_policy_normalization)"
        ) from None
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{file} cannot be read as JSON: {error}") from None
    try:
        entries = [
            (
                entry.get("registry_name") or entry.get("class"),
                entry.get("config", {}),
                entry.get("state_file"),
            )
            for entry in raw["steps"]
        ]
        entries = [(_FORMER.get(name, name), options, state) for name, options, state in entries]
        steps: dict[str, Step] = {}
        for name, options, state in entries:
            _check_options(file, name, options, {**ordered, **anywhere})
            if name in anywhere:
                continue
            if name in steps:
                raise ModelError(f'{file}: step "{name}" stands there twice')
            steps[name] = Step(file, name, options, _read_state(file, name, state))
    except (KeyError, TypeError, AttributeError) as error:
        raise ModelError(
            f'{file} must hold {{"steps": [{{"registry_name": ...}}, ...]}}: {error!r}'
        ) from None
    right = [name for name in ordered if name in steps]
    if list(steps) != right:
        raise ModelError(
            f"{file}: steps in the order {', '.join(steps)} are not served, only {', '.join(right)}"
        )
    return steps


def _check_options(file: Path, name: str, options: Mapping[str, Any], known: Mapping[str, Options]) -> None:
    if name not in known:
        raise ModelError(f'{file}: step "{name}" is not served; served are {", ".join(known)}')
    for option, value in options.items():
        if option not in known[name]:
            raise ModelError(f'{file}: option "{option}" of step "{name}" is not served')
        served = known[name][option]
        if served is not None and value not in served:
            raise ModelError(
                f'{file}: step "{name}": {option} {value!r} is not served, only '
                f"{' or '.join(map(repr, served))}"
            )


def _read_state(file: Path, name: str, state: str | None) -> Mapping[str, Vector]:
    if state is None:
        return {}
    at = file.with_name(Path(state).name)
    try:
        tensors = load_file(at)
    except (SafetensorError, OSError) as error:
        raise ModelError(
            f'{at}, of step "{name}", cannot be read: {error}; copy it from the checkpoint'
        ) from None
    return {key: np.asarray(tensor.float().numpy()) for key, tensor in tensors.items()}
