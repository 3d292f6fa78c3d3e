# SPDX-License-Identifier: Apache-2.0
"""Reads and checks what a lerobot policy folder declares about observations and actions.

Only steps and options with a known effect are served; a family adds the steps that make its prompt.
Facts from lerobot 0.6.1: policies/*/processor_*.py, processor/relative_action_processor.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oxygen_ros.models.errors import ModelError
from oxygen_ros.models.lerobot.normalization import Scale
from oxygen_ros.models.lerobot.pipeline import Options, Step, read_steps
from oxygen_ros.models.lerobot.robot import RobotNames, read_robot

STATE: Final = "observation.state"
ACTION: Final = "action"

_NORMALIZER: Final[Options] = {"eps": None, "features": None, "norm_map": None}
_BEFORE: Final[Mapping[str, Options]] = {
    "rename_observations_processor": {"rename_map": None},
    "relative_actions_processor": {"enabled": None, "exclude_joints": None, "action_names": None},
    "normalizer_processor": _NORMALIZER,
}
_AFTER: Final[Mapping[str, Options]] = {
    "unnormalizer_processor": _NORMALIZER,
    "absolute_actions_processor": {"enabled": None},
}
# Without an effect here: one observation is the batch, the node's device is the device.
_ANYWHERE: Final[Mapping[str, Options]] = {
    "to_batch_processor": {},
    "device_processor": {"device": None, "float_dtype": (None, "float32")},
}


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a lerobot checkpoint makes inputs of an observation, and actions of the network's outputs.

    cameras:   names of the cameras as the data set has them, in the model's order
    robot:     names of the state's numbers [J] and of the actions [A], and their time step
    state:     normalization of the state [J]
    actions:   normalization of the actions [A]
    relative:  bool [A]: actions that are offsets from the state's number at the same place
    prompt:    options of the steps that make the family's prompt
    """

    cameras: tuple[str, ...]
    robot: RobotNames
    state: Scale
    actions: Scale
    relative: NDArray[np.bool_]
    prompt: Mapping[str, Mapping[str, Any]]


def read_recipe(
    folder: Path, raw: Mapping[str, Any], prompt_steps: Mapping[str, Options], only: Mapping[str, Any]
) -> Recipe:
    """Read all but the weights. `raw` is the content of config.json, known to have its sizes.

    prompt_steps:  steps after the normalizer that the family needs, with the options it serves
    only:          entries of config.json with the one value that is served

    Raises ModelError that names the file, the step or entry, and the cure.
    """
    config = folder / "config.json"
    for entry, served in only.items():
        if raw.get(entry, served) != served:
            raise ModelError(f"{config}: {entry} {raw[entry]!r} is not served, only {served!r}")
    states = _read_size(config, raw, "input_features", STATE)
    actions = _read_size(config, raw, "output_features", ACTION)
    if actions > raw["max_action_dim"]:
        raise ModelError(f"{config}: {actions} actions do not fit max_action_dim {raw['max_action_dim']}")
    before = read_steps(folder / "policy_preprocessor.json", {**_BEFORE, **prompt_steps}, _ANYWHERE)
    after = read_steps(folder / "policy_postprocessor.json", _AFTER, _ANYWHERE)
    for file, steps, needed in (
        ("policy_preprocessor.json", before, [*list(_BEFORE)[2:], *prompt_steps]),
        ("policy_postprocessor.json", after, list(_AFTER)[:1]),
    ):
        missing = [name for name in needed if name not in steps]
        if missing:
            raise ModelError(f'{folder / file}: step "{missing[0]}" is missing')
    robot = read_robot(folder, states, actions, raw.get("action_feature_names"))
    return Recipe(
        cameras=_rename_cameras(before.get("rename_observations_processor"), raw),
        robot=robot,
        state=_read_scale(before["normalizer_processor"], STATE, "STATE", states),
        actions=_read_scale(after["unnormalizer_processor"], ACTION, "ACTION", actions),
        relative=_find_relative(before, after, robot),
        prompt={name: before[name].options for name in prompt_steps},
    )


def _read_size(config: Path, raw: Mapping[str, Any], part: str, key: str) -> int:
    """Numbers of a vector in config.json's features."""
    try:
        shape = raw[part][key]["shape"]
    except (KeyError, TypeError) as error:
        raise ModelError(f'{config}: {part} must have "{key}" with its shape ({error!r})') from None
    if not isinstance(shape, list) or len(shape) != 1 or not isinstance(shape[0], int) or shape[0] < 1:
        raise ModelError(f"{config}: {key} must be one row of numbers, got shape {shape}")
    return shape[0]


def _read_scale(step: Step, key: str, kind: str, size: int) -> Scale:
    options = step.options
    modes = options.get("norm_map", {})
    if not isinstance(modes, Mapping):
        raise ModelError(f'{step.file}: norm_map of step "{step.name}" must be an object, got {modes!r}')
    if modes.get("VISUAL", "IDENTITY") != "IDENTITY":
        raise ModelError(
            f'{step.file}: normalization "{modes["VISUAL"]}" of images is not served, only IDENTITY'
        )
    if key not in options.get("features", {}):
        raise ModelError(f'{step.file}: "{key}" is not among the features of step "{step.name}"')
    eps = options.get("eps", 1e-8)
    if not isinstance(eps, float) or not 0 < eps < 1:
        raise ModelError(f'{step.file}: eps of step "{step.name}" must be a small number, got {eps!r}')
    return Scale.read(step.file, step.state, key, size, modes.get(kind, "IDENTITY"), eps)


def camera_keys(raw: Mapping[str, Any]) -> list[str]:
    """Image features of lerobot's config.json in its order, less those that lerobot itself leaves empty."""
    empty = {f"observation.images.empty_camera_{i}" for i in range(raw.get("empty_cameras", 0))}
    features = raw["input_features"].items()
    return [key for key, feature in features if feature["type"] == "VISUAL" and key not in empty]


def name_camera(key: str) -> str:
    """The camera's name in a feature's key."""
    return key.removeprefix("observation.").removeprefix("images.")


def _rename_cameras(step: Step | None, raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Cameras by the names they have before lerobot renames them: those of its data set and robot."""
    keys = camera_keys(raw)
    if step is None or not step.options.get("rename_map"):
        return tuple(name_camera(key) for key in keys)
    renames: Mapping[str, str] = step.options["rename_map"]
    if not isinstance(renames, Mapping):
        raise ModelError(f"{step.file}: rename_map must be an object, got {renames!r}")
    for key in (*keys, STATE):
        if list(renames.values()).count(key) > 1:
            raise ModelError(f'{step.file}: rename_map has two names for "{key}"')
    before = {new: old for old, new in renames.items()}
    lost = [key for key in (*keys, STATE) if key in renames and key not in before]
    if lost:
        raise ModelError(f'{step.file}: rename_map takes "{lost[0]}" away from the model')
    return tuple(name_camera(before.get(key, key)) for key in keys)


def _find_relative(
    before: Mapping[str, Step], after: Mapping[str, Step], robot: RobotNames
) -> NDArray[np.bool_]:
    """Actions that lerobot makes absolute by adding the state: all but those with an excluded name."""
    there, back = before.get("relative_actions_processor"), after.get("absolute_actions_processor")
    is_on = there is not None and bool(there.options.get("enabled"))
    if is_on != (back is not None and bool(back.options.get("enabled"))):
        raise ModelError(
            "relative_actions_processor and absolute_actions_processor must both be enabled or neither: "
            f"{next(iter(before.values())).file} and {next(iter(after.values())).file} differ"
        )
    columns, state = robot.actions.columns, robot.joints
    relative = np.full(len(columns), is_on)
    if there is None or not is_on:
        return relative
    excluded = [str(name).lower() for name in there.options.get("exclude_joints") or () if name]
    names = [str(name).lower() for name in there.options.get("action_names") or ()]
    for i, name in enumerate(names[: len(relative)]):
        relative[i] = not any(part in name for part in excluded)
    strays = [i for i in np.flatnonzero(relative) if state[i : i + 1] != columns[i : i + 1]]
    if strays:
        i = int(strays[0])
        raise ModelError(
            f"{there.file}: action {i} is relative to number {i} of the state, but oxygen.json calls it "
            f'"{columns[i]}" and the number "{state[i] if i < len(state) else "not at all"}"'
        )
    return relative
