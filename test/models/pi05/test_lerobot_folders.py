# SPDX-License-Identifier: Apache-2.0
"""Policy folders of lerobot that are not right or not served: a ModelError that names thing and cure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from models_lerobot import (
    AFTER,
    BEFORE,
    JOINTS,
    ROBOT,
    Cases,
    change,
    make_case_tokenizer,
    make_letter_tokenizer,
    shrink,
    write_folder,
)
from safetensors.torch import load_file, save_file

from oxygen_ros.models import ModelError, load_model

CASES = Cases()
STATS = "policy_preprocessor_step_3_normalizer_processor.safetensors"
FIRST = "rename_observations_processor"
Edit = Callable[[Path], None]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "policy", make_case_tokenizer(CASES))


def to(value: Any, file: str, *path: str) -> Edit:
    return lambda folder: change(folder, file, *path, to=value)


def option(step: str, name: str, value: Any, file: str = BEFORE) -> Edit:
    return to(value, file, "steps", step, "config", name)


def steps(edit: Callable[[list[Any]], Any], file: str = BEFORE) -> Edit:
    """An edit of the list of steps, in place."""

    def rewrite(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        edit(content["steps"])
        (folder / file).write_text(json.dumps(content))

    return rewrite


def statistics(edit: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    def rewrite(folder: Path) -> None:
        tensors = load_file(folder / STATS)
        edit(tensors)
        save_file(tensors, folder / STATS)

    return rewrite


def robot(**changes: Any) -> Edit:
    return lambda folder: (folder / "oxygen.json").write_text(json.dumps(ROBOT | changes))


def remove(file: str) -> Edit:
    return lambda folder: (folder / file).unlink()


def write(file: str, text: str) -> Edit:
    return lambda folder: (folder / file).write_text(text)


HAND: list[dict[str, str]] = [
    {"name": "hand", "kind": "cartesian_position", "unit": "m", "frame": "base"},
    {"name": "hand", "kind": "rotation", "unit": "rad", "frame": "base", "rotation": "axis_angle"},
    {"name": "claw", "kind": "gripper", "unit": "1"},
]
MODES = ("steps", "normalizer_processor", "config", "norm_map")
FAULTS: dict[str, tuple[Edit, str]] = {
    # oxygen.json
    "oxygen.json not JSON": (write("oxygen.json", "joints:"), r"oxygen\.json cannot be read as JSON"),
    "oxygen.json a list": (write("oxygen.json", "[]"), r"oxygen\.json must hold an object of \{\"joints\""),
    "oxygen.json with a stranger": (robot(setp=0.1), r"oxygen\.json must hold an object of"),
    "actions a list": (robot(actions=[]), r"oxygen\.json must hold an object of"),
    "no joints": (robot(joints=None), r"oxygen\.json: joints must be a list of 8 names, got None"),
    "joints no names": (robot(joints=[1] * 8), r"joints must be a list of 8 names"),
    "7 joints": (robot(joints=JOINTS[:7]), r"joints must be 8 names as in config\.json, got 7"),
    "a joint twice": (robot(joints=[*JOINTS[:7], "joint1"]), r'joints names "joint1" twice'),
    "6 actions": (robot(actions={"joints": JOINTS[:6]}), r"actions\.joints must be 7 names .* got 6"),
    "an action twice": (
        robot(actions={"joints": [*JOINTS[:6], "joint1"]}),
        r'actions\.joints names "joint1" twice',
    ),
    "action joint unknown": (
        robot(actions={"joints": [*JOINTS[:6], "claw"]}),
        r'action joint "claw" is not among .*"actions"',
    ),
    "actions unnamed": (robot(actions={}), r'7 actions for 8 joints: name theirs in \{"actions"'),
    "components no list": (
        robot(actions={"components": 3}),
        r"actions\.components must be a list of objects",
    ),
    "a component without a frame": (
        robot(actions={"components": [{"name": "hand", "kind": "cartesian_position", "unit": "m"}]}),
        r"oxygen\.json: actions\.components .*'hand': cartesian_position with frame ''",
    ),
    "a component of no kind": (
        robot(actions={"components": [{"name": "hand", "kind": "wave", "unit": "m"}]}),
        r"kind \(joint_position, joint_velocity, .*'wave' is not a valid ComponentKind",
    ),
    "too few components": (
        robot(actions={"components": HAND[:2]}),
        r"actions\.components have 6 numbers, config\.json says 7",
    ),
    "a component of a joint unknown": (
        robot(actions={"components": [*HAND[:2], {**HAND[2], "kind": "joint_position"}]}),
        r'action joint "claw" is not among',
    ),
    "no step": (robot(step=None), r"step must be the seconds between two actions, got None"),
    "step 0": (robot(step=0), r"step must be the seconds.*got 0"),
    "step true": (robot(step=True), r"step must be the seconds.*got True"),
    # config.json
    "no state": (
        to({}, "config.json", "input_features"),
        r'input_features must have "observation\.state" with its shape',
    ),
    "no action": (to({}, "config.json", "output_features"), r'output_features must have "action"'),
    "state a picture": (
        to([3, 8], "config.json", "input_features", "observation.state", "shape"),
        r"observation\.state must be one row of numbers, got shape \[3, 8\]",
    ),
    "more actions than the network's": (
        to(6, "config.json", "max_action_dim"),
        r"7 actions do not fit max_action_dim 6",
    ),
    "more actions than joints": (
        to([9], "config.json", "output_features", "action", "shape"),
        r"actions\.joints must be 9 names as in config\.json, got 7",
    ),
    "two observations": (to(2, "config.json", "n_obs_steps"), r"n_obs_steps 2 is not served, only 1"),
    "memory of pictures": (
        to(True, "config.json", "use_visual_memory"),
        r"use_visual_memory True is not served, only False",
    ),
    "other Gemma": (to("gemma_9b", "config.json", "paligemma_variant"), r"paligemma_variant must be one of"),
    # pipelines
    "no preprocessor": (remove(BEFORE), r"policy_preprocessor\.json is missing.*copy it"),
    "no postprocessor": (remove(AFTER), r"policy_postprocessor\.json is missing.*copy it"),
    "preprocessor not JSON": (write(BEFORE, "x"), r"policy_preprocessor\.json cannot be read as JSON"),
    "preprocessor a list": (write(BEFORE, "[]"), r"policy_preprocessor\.json must hold"),
    "a step of words": (steps(lambda s: s.append("x")), r"policy_preprocessor\.json must hold"),
    "unknown step": (
        steps(lambda s: s.insert(2, {"registry_name": "action_tokenizer_processor", "config": {}})),
        r'step "action_tokenizer_processor" is not served; served are rename_observations',
    ),
    "a step of its own code": (
        steps(lambda s: s.append({"class": "my.module.Step", "config": {}})),
        r'step "my\.module\.Step" is not served',
    ),
    "unknown option": (
        option("normalizer_processor", "normalize_observation_keys", []),
        r'option "normalize_observation_keys" of step "normalizer_processor" is not served',
    ),
    "prompt without the state": (
        option("pi05_prepare_state_tokenizer_processor_step", "include_state_in_prompt", False),
        r"include_state_in_prompt False is not served, only True",
    ),
    "other task": (
        option("tokenizer_processor", "task_key", "subtask"),
        r"task_key 'subtask' is not served, only 'task'",
    ),
    "half precision": (
        option("device_processor", "float_dtype", "float16"),
        r'step "device_processor": float_dtype \'float16\' is not served, only None or \'float32\'',
    ),
    "a step twice": (steps(lambda s: s.append(s[0])), rf'step "{FIRST}" stands there twice'),
    "other order": (steps(lambda s: s.append(s.pop(3))), r"steps in the order .* are not served, only"),
    "no tokenizer step": (
        steps(lambda s: s.pop(5)),
        r'policy_preprocessor\.json: step "tokenizer_processor" is missing',
    ),
    "no unnormalizer": (
        steps(lambda s: s.pop(0), AFTER),
        r'policy_postprocessor\.json: step "unnormalizer_processor" is missing',
    ),
    "relative one way": (
        option("relative_actions_processor", "enabled", True),
        r"must both be enabled or neither: .*policy_preprocessor\.json and .*policy_postprocessor\.json",
    ),
    "a camera from two": (
        option(FIRST, "rename_map", dict.fromkeys(("a", "b"), "observation.images.base_0_rgb")),
        r'rename_map has two names for "observation\.images\.base_0_rgb"',
    ),
    "the state renamed away": (
        option(FIRST, "rename_map", {"observation.state": "observation.joints"}),
        r'rename_map takes "observation\.state" away',
    ),
    "renames a list": (option(FIRST, "rename_map", ["a"]), r"rename_map must be an object"),
    "no room": (option("tokenizer_processor", "max_length", 0), r"max_prompt must be a whole number"),
    # normalization
    "unknown mode": (
        to("LOG", BEFORE, *MODES, "STATE"),
        r'normalization "LOG" of observation\.state is not one of QUANTILES, QUANTILE10, MIN_MAX, MEAN_STD',
    ),
    "pictures normalized": (
        to("MEAN_STD", BEFORE, *MODES, "VISUAL"),
        r'normalization "MEAN_STD" of images is not served, only IDENTITY',
    ),
    "modes a list": (to([], BEFORE, *MODES), r"norm_map of step .* must be an object"),
    "state not normalized": (
        option("normalizer_processor", "features", {}),
        r'"observation\.state" is not among the features',
    ),
    "eps 0": (option("normalizer_processor", "eps", 0.0), r"eps of step .* must be a small number, got 0\.0"),
    "no statistics": (
        remove(STATS),
        rf"{re.escape(STATS)}, of step \"normalizer_processor\", cannot be read",
    ),
    "statistics broken": (write(STATS, "x"), r"of step \"normalizer_processor\", cannot be read"),
    "no state file": (
        steps(lambda s: s[3].pop("state_file")),
        r"observation\.state\.q01 is missing, QUANTILES needs it",
    ),
    "no quantiles": (
        statistics(lambda t: t.pop("observation.state.q99")),
        r"observation\.state\.q99 is missing, QUANTILES needs it",
    ),
    "other size": (
        statistics(lambda t: t.update({"observation.state.q01": torch.zeros(7)})),
        r"observation\.state\.q01 must be 8 finite numbers.*\(7,\)",
    ),
    "not finite": (
        statistics(lambda t: t["observation.state.q01"].fill_(torch.nan)),
        r"q01 must be 8 finite numbers",
    ),
    "upside down": (
        statistics(lambda t: t["observation.state.q01"].fill_(99.0)),
        r"observation\.state\.q01 and observation\.state\.q99 cannot be 99\.0 and .*entry 0",
    ),
    # tokenizer
    "no tokenizer": (
        remove("tokenizer.json"),
        r'tokenizer\.json is missing.*"google/paligemma-3b-pt-224"; copy its tokenizer\.json into the folder',
    ),
    "tokenizer broken": (write("tokenizer.json", "{}"), r"tokenizer\.json cannot be read"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_faulty_folder_is_refused_by_name(folder: Path, fault: str) -> None:
    spoil, says = FAULTS[fault]
    spoil(folder)
    with pytest.raises(ModelError, match=says):
        load_model(folder)


def test_a_missing_oxygen_json_is_shown_and_what_is_shown_will_do(folder: Path) -> None:
    (folder / "oxygen.json").unlink()
    with pytest.raises(ModelError, match=r"oxygen\.json is missing.*the 8 numbers.*the 7 actions") as caught:
        load_model(folder)
    shown = re.search(r"\{.*\}\}?, \"step\": 0\.033\}", str(caught.value))
    assert shown is not None
    assert json.loads(shown[0]) == ROBOT
    (folder / "oxygen.json").write_text(shown[0])
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        assert load_model(folder).spec.joints == tuple(JOINTS)


def test_lerobot_s_own_names_are_shown_and_taken_for_the_actions(folder: Path) -> None:
    names = [f"{name}.pos" for name in JOINTS]
    to(names[:7], "config.json", "action_feature_names")(folder)
    robot(joints=names, actions={})(folder)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        assert load_model(folder).spec.experts[0].action_space.joints == tuple(names[:7])
    robot(actions={})(folder)
    with pytest.raises(ModelError, match=r'action joint "joint1\.pos" is not among .*"actions"'):
        load_model(folder)
    to([8], "config.json", "output_features", "action", "shape")(folder)
    to(names, "config.json", "action_feature_names")(folder)
    (folder / "oxygen.json").unlink()
    with pytest.raises(ModelError, match=r'"joints": \["joint1\.pos"'):
        load_model(folder)


def test_an_end_effector_policy_says_what_its_actions_are(folder: Path) -> None:
    """Seven numbers of a hand and its gripper, for a robot whose eight joints are observed."""
    robot(actions={"components": HAND})(folder)
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        space = load_model(folder).spec.experts[0].action_space
    assert space.columns == ("hand.x", "hand.y", "hand.z", "hand.rx", "hand.ry", "hand.rz", "claw")
    assert [component.kind for component in space.components] == [entry["kind"] for entry in HAND]
    assert space.joints == ()


def test_a_tokenizer_of_another_model(folder: Path) -> None:
    """More ids than embeddings, or another <bos>: words would be other words."""
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        make_letter_tokenizer(600).save(str(folder / "tokenizer.json"))
        with pytest.raises(
            ModelError, match=r"tokenizer\.json has 600 ids, the network's vocabulary only 512"
        ):
            load_model(folder)
        text = make_letter_tokenizer().to_str().replace("<bos>", "<s>")
        (folder / "tokenizer.json").write_text(text)
        with pytest.raises(ModelError, match=r'"<bos>" has id None.*trained with 2.*google/paligemma'):
            load_model(folder)
