# SPDX-License-Identifier: Apache-2.0
"""Policy folders of lerobot, from an observation to actions, against lerobot 0.6.1's own numbers.

Whole folders that are right; what is refused is in test_lerobot_folders.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from models_lerobot import (
    AFTER,
    BEFORE,
    GOLDEN,
    JOINTS,
    Cases,
    change,
    look,
    make_case_tokenizer,
    make_letter_tokenizer,
    shrink,
    write_folder,
)
from safetensors.torch import load_file, save_file

from oxygen_ros.engine import Budget, Engine, TextTask
from oxygen_ros.models import Capacity, ModelError, load_model
from oxygen_ros.models.images import resize_with_pad_torch
from oxygen_ros.models.pi05.lerobot import LerobotProcessor
from oxygen_ros.models.pi05.model import Pi05

CASES = Cases()
ROOM = Capacity(prefixes=2, suffixes=2, suffix_tokens=48, max_rows=16)


@pytest.fixture(autouse=True)
def tiny() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "policy", make_case_tokenizer(CASES))


@pytest.fixture
def letters(tmp_path: Path) -> Path:
    """A folder with a tokenizer like PaliGemma's."""
    folder = write_folder(tmp_path / "letters", make_letter_tokenizer())
    change(folder, BEFORE, "steps", "tokenizer_processor", "config", "max_length", to=120)
    return folder


def load(folder: Path, steps: int | None = None) -> Pi05:
    model = load_model(folder, denoise_steps=steps)
    assert isinstance(model, Pi05)
    model.allocate(ROOM)
    return model


def processor(folder: Path) -> LerobotProcessor:
    found = load(folder).processor
    assert isinstance(found, LerobotProcessor)
    return found


# -- golden --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("case", "row"), CASES.rows)
def test_actions_are_lerobot_s(folder: Path, case: str, row: int) -> None:
    """From the state, the task and the pictures to joint positions; absent cameras are left out."""
    fact = CASES.facts[case]
    model = load(folder, fact["num_steps"])
    observation = CASES.observe(case, row)
    inputs = model.process(observation)
    assert inputs.tokens.tolist() == CASES.tokens(case, row)
    # The reference's pictures are no whole 255ths: from here on the pictures themselves.
    present = [name for name in model.spec.cameras if name in fact["cameras_present"]]
    pictures = torch.stack(
        [resize_with_pad_torch(CASES.get(case, f"input.image.{name}", row), 28) for name in present]
    )
    expected = torch.stack([CASES.get(case, f"expected.model_image.{name}", row) for name in present])
    torch.testing.assert_close(pictures, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(inputs.images, expected, atol=1.01 / 255, rtol=0)
    model.encode(replace(inputs, images=pictures), slot=0)
    actions = model.denoise(0, CASES.get(case, "input.noise", row))
    normalized = CASES.get(case, "expected.actions_normalized", row)
    torch.testing.assert_close(actions[:, :7], normalized, atol=1e-5, rtol=0)
    chunk = model.unprocess(actions, observation)
    assert chunk.dtype == np.float64
    np.testing.assert_allclose(chunk, CASES.get(case, "expected.actions", row).numpy(), atol=2e-5)
    back = model.normalize(chunk, observation)
    torch.testing.assert_close(back[:, :7], actions[:, :7], atol=1e-5, rtol=0)
    assert not back[:, 7:].any()


@pytest.mark.parametrize(("case", "row"), CASES.rows)
def test_8_bit_pictures_move_the_actions_by_little(folder: Path, case: str, row: int) -> None:
    """What a camera's grid of 255ths is worth: less than a hundredth in the network's units."""
    model = load(folder, CASES.facts[case]["num_steps"])
    model.encode(model.process(CASES.observe(case, row)), slot=0)
    actions = model.denoise(0, CASES.get(case, "input.noise", row))
    torch.testing.assert_close(
        actions[:, :7], CASES.get(case, "expected.actions_normalized", row), atol=0.01, rtol=0
    )


def test_prompts_are_lerobot_s(folder: Path) -> None:
    """Every string, with states on the edges of bins and tasks with underscores and newlines."""
    read = processor(folder)
    prompts = json.loads((GOLDEN / "prompts.json").read_text())
    assert len(prompts) == 16
    for entry in prompts:
        assert read.write_prompt(look(entry["task"], entry["raw_state"])) == entry["prompt"]
    for case, row in CASES.rows:
        assert read.write_prompt(CASES.observe(case, row)) == CASES.facts[case]["prompts"][row]


def test_numbers_are_lerobot_s_to_the_last_bit(folder: Path) -> None:
    recipe = processor(folder)._recipe
    states = recipe.state.normalize(CASES.tensors["prompts.raw_state"].numpy())
    np.testing.assert_array_equal(states, CASES.tensors["prompts.normalized_state"].numpy())
    for case, row in CASES.rows:
        state = recipe.state.normalize(CASES.get(case, "input.state", row).numpy())
        np.testing.assert_array_equal(state, CASES.get(case, "expected.normalized_state", row).numpy())
    actions = recipe.actions.unnormalize(CASES.tensors["postprocess.input"].numpy())
    np.testing.assert_array_equal(actions, CASES.tensors["postprocess.expected"].numpy())


# -- through the node's preparation ----------------------------------------------------------------


def test_the_spec_says_what_oxygen_json_says(folder: Path) -> None:
    model = load(folder)
    spec = model.spec
    assert model.config.max_prefix == 3 * 4 + 48
    assert spec.joints == tuple(JOINTS)
    assert spec.experts[0].action_space.joints == tuple(JOINTS[:7])
    assert (spec.experts[0].step, spec.experts[0].horizon, spec.experts[0].denoise_steps) == (0.033, 10, 10)
    assert spec.cameras == ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
    assert spec.feedback == ()


def test_the_node_loads_and_warms_up_such_a_folder(folder: Path) -> None:
    preparation = pytest.importorskip("oxygen_ros.node.preparation")
    from oxygen_ros.node.layout import make_layout
    from oxygen_ros.node.settings import make_settings

    settings = make_settings(
        {
            "model": str(folder),
            "cameras.base_0_rgb.topic": "/base",
            "cameras.left_wrist_0_rgb.topic": "/left",
            "cameras.right_wrist_0_rgb.optional": True,
            "instruction": "open_the_drawer",
            "period": 0.05,
            "join.mode": "rtc",
            "text.memory.max_tokens": 4,
            "text.answer.max_tokens": 4,
            "budget.max_rows": 16,
        }
    )
    model, _ = preparation.load(settings, load_model, lambda: False)
    try:
        prepared = preparation.prepare(settings, model, make_layout(settings, model.spec), lambda: False)
    except preparation.PreparationError as error:
        # A busy machine may take longer than these ten actions last; nothing else may be wrong.
        assert "'period'" in str(error)  # noqa: PT017
    else:
        assert prepared.latency.chunk > 0
        prepared.engine.check_integrity()


def test_texts_go_on_from_the_prefix_and_do_not_enter_the_prompt(letters: Path) -> None:
    engine = Engine(load(letters), ROOM)
    told = look("pick it up")
    with engine.observe(told) as encoded:
        chunk = engine.act(encoded)
        engine.ask(encoded, TextTask(kind="answer", prompt="Question: what next? Answer: ", max_tokens=4))
    (text,) = engine.advance(Budget(steps=12, rows=16))
    assert text.finish_reason in ("eos", "length")
    assert len(text.tokens) == 4 or text.finish_reason == "eos"
    with engine.observe(replace(told, feedback={"memory": "done it", "subtask": "lift"})) as encoded:
        np.testing.assert_array_equal(engine.act(encoded), chunk)
    engine.check_integrity()


def test_cameras_bear_the_names_before_lerobot_renames_them(folder: Path) -> None:
    plain = processor(folder).process(CASES.observe("p01", 0), torch.device("cpu"), torch.float32).images
    names = {"base_0_rgb": "front", "left_wrist_0_rgb": "wrist"}
    renames = {f"observation.images.{new}": f"observation.images.{old}" for old, new in names.items()}
    renames |= {"observation.joint_positions": "observation.state", "observation.images.spare": "unused"}
    change(folder, BEFORE, "steps", "rename_observations_processor", "config", "rename_map", to=renames)
    read = processor(folder)
    assert read.config.cameras == ("front", "wrist", "right_wrist_0_rgb")
    observation = CASES.observe("p01", 0)
    observation = replace(
        observation, images={names.get(name, name): image for name, image in observation.images.items()}
    )
    assert torch.equal(read.process(observation, torch.device("cpu"), torch.float32).images, plain)


def test_cameras_that_lerobot_leaves_empty_need_no_topic(folder: Path) -> None:
    change(folder, "config.json", "empty_cameras", to=1)
    change(
        folder, "config.json", "input_features", "observation.images.empty_camera_0",
        to={"type": "VISUAL", "shape": [3, 28, 28]},
    )  # fmt: skip
    assert load(folder).spec.cameras == ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")


# -- pictures --------------------------------------------------------------------------------------


def test_cameras_of_different_sizes_stand_side_by_side(folder: Path) -> None:
    read, chance = processor(folder), np.random.default_rng(1)
    sizes = {"right_wrist_0_rgb": (28, 28), "base_0_rgb": (48, 64), "left_wrist_0_rgb": (40, 30)}
    images = {name: chance.integers(0, 256, (*size, 3), dtype=np.uint8) for name, size in sizes.items()}
    seen = read.process(replace(look("go"), images=images), torch.device("cpu"), torch.float32).images
    for picture, name in zip(seen, read.config.cameras, strict=True):
        alone = torch.from_numpy(images[name]).permute(2, 0, 1).float() / 255
        assert torch.equal(picture, resize_with_pad_torch(alone, 28))
        assert picture.min() >= -1
        assert picture.max() <= 1


def test_proportions_are_kept_and_the_odd_pixel_is_below_or_right() -> None:
    for shape, lit in (
        ((3, 14, 28), (slice(7, 21), slice(0, 28))),
        ((3, 28, 9), (slice(0, 28), slice(9, 18))),
    ):
        picture = resize_with_pad_torch(torch.ones(shape), 28)
        expected = torch.full((3, 28, 28), -1.0)
        expected[:, lit[0], lit[1]] = 1.0
        assert torch.equal(picture, expected)
    assert resize_with_pad_torch(torch.ones(3, 1, 500), 28).shape == (3, 28, 28)


def test_no_antialias_when_shrinking() -> None:
    """Stripes a pixel wide, four to a pixel of the result: samples between two are their middle."""
    stripes = torch.zeros(3, 112, 112)
    stripes[:, :, 1::4] = 1.0
    assert torch.equal(resize_with_pad_torch(stripes, 28), torch.zeros(3, 28, 28))


# -- words -----------------------------------------------------------------------------------------


def test_tokens_are_bos_and_the_prompt_as_the_tokenizer_itself_gives_them(letters: Path) -> None:
    """transformers lets the file put <bos> in front; nothing comes after the prompt."""
    read = processor(letters)
    ids = read.process(look(" put_it back\n"), torch.device("cpu"), torch.float32).tokens.tolist()
    prompt = read.write_prompt(look(" put_it back\n"))
    assert prompt.startswith("Task: put it back, State: ")
    assert ids == make_letter_tokenizer().encode(prompt).ids
    assert ids[0] == 2
    assert 2 not in ids[1:]


def test_the_file_s_truncation_and_padding_are_not_taken_over(letters: Path) -> None:
    tokenizer = make_letter_tokenizer()
    tokenizer.enable_truncation(20)
    tokenizer.enable_padding(length=120)
    tokenizer.save(str(letters / "tokenizer.json"))
    read = processor(letters)
    ids = read.process(look("go"), torch.device("cpu"), torch.float32).tokens.tolist()
    assert ids == make_letter_tokenizer().encode(read.write_prompt(look("go"))).ids


def test_special_tokens_are_letters_also_the_one_without_an_embedding(letters: Path) -> None:
    read = processor(letters)
    for said in ("<image>", "<eos> now", "<bos>"):
        assert max(read.tokenizer.encode(said)) < 512
        assert not {0, 1, 2} & set(read.tokenizer.encode(said))
    ids = read.process(look("<image><eos>"), torch.device("cpu"), torch.float32).tokens.tolist()
    assert max(ids) < 512
    assert ids.count(1) == 0


@pytest.mark.parametrize("state", [-9.0, 0.0, 9.0])
def test_an_instruction_at_the_limit_and_one_past_it_whatever_the_state(letters: Path, state: float) -> None:
    """lerobot would cut off the end of the prompt; here it is refused, at any state alike."""
    read = processor(letters)
    most = 120 - 1 - len("Task: , State: ;\nAction: ") - 8 * 3 - 7
    device = torch.device("cpu")
    read.process(look("x" * most, [state] * 8), device, torch.float32)
    with pytest.raises(ValueError, match=r'instruction "xxx.*up to 121 tokens.*trained with 120: shorten'):
        read.process(look("x" * (most + 1), [state] * 8), device, torch.float32)
    read.process(look("x" * most, [state] * 8), device, torch.float32)
    read.check_instruction("x" * most)
    with pytest.raises(ValueError, match=r"up to 121 tokens"):
        read.check_instruction("x" * (most + 1))


# -- other normalizations, relative actions ----------------------------------------------------------


@pytest.mark.parametrize("mode", ["QUANTILES", "QUANTILE10", "MIN_MAX", "MEAN_STD", "IDENTITY"])
def test_every_mode_is_lerobot_s_formula(folder: Path, mode: str) -> None:
    for file, step, kind in (
        (BEFORE, "normalizer_processor", "STATE"),
        (AFTER, "unnormalizer_processor", "ACTION"),
    ):
        change(folder, file, "steps", step, "config", "norm_map", kind, to=mode)
    recipe = processor(folder)._recipe
    stats = load_file(folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors")
    x, y = torch.linspace(-2, 2, 7), CASES.tensors["prompts.raw_state"]
    low, high = {
        "QUANTILES": ("q01", "q99"), "QUANTILE10": ("q10", "q90"), "MIN_MAX": ("min", "max"),
    }.get(mode, ("mean", "std"))  # fmt: skip

    def of(name: str, key: str = "action") -> torch.Tensor:
        return stats[f"{key}.{name}"]

    state = "observation.state"
    if mode == "IDENTITY":
        expected, normalized = x, y
    elif mode == "MEAN_STD":
        expected = x * of("std") + of("mean")
        normalized = (y - of("mean", state)) / (of("std", state) + 1e-8)
    else:
        expected = (x + 1) * (of(high) - of(low)) / 2 + of(low)
        span = of(high, state) - of(low, state)
        normalized = 2 * (y - of(low, state)) / torch.where(span == 0, 1e-8, span) - 1
    np.testing.assert_array_equal(recipe.actions.unnormalize(x.numpy()), expected.numpy())
    np.testing.assert_array_equal(recipe.state.normalize(y.numpy()), normalized.numpy())
    np.testing.assert_allclose(recipe.actions.normalize(expected.numpy()), x.numpy(), atol=1e-5)


def enable_relative(folder: Path, names: list[str] | None, excluded: list[str]) -> None:
    options = {"enabled": True, "exclude_joints": excluded, "action_names": names}
    change(folder, BEFORE, "steps", "relative_actions_processor", "config", to=options)
    change(folder, AFTER, "steps", "absolute_actions_processor", "config", to={"enabled": True})


@pytest.mark.parametrize(
    ("names", "excluded", "absolute"),
    [
        (None, ["gripper"], []),
        ([*JOINTS[:6], "main_Gripper.pos"], ["gripper"], [6]),
        (JOINTS[:7], ["joint1", "JOINT7", ""], [0, 6]),
        (["joint1"], ["joint1"], [0]),
        (JOINTS[:7], [], []),
    ],
)
def test_relative_actions_start_from_the_state(
    folder: Path, names: list[str] | None, excluded: list[str], absolute: list[int]
) -> None:
    """lerobot adds the state to all actions but those whose names hold an excluded one."""
    plain = processor(folder)
    enable_relative(folder, names, excluded)
    read = processor(folder)
    observation = look("go", np.linspace(-1, 1, 8))
    actions = np.random.default_rng(0).normal(size=(10, 32)).astype(np.float32)
    offsets = observation.joints[:7].copy()
    offsets[absolute] = 0
    chunk = read.unprocess(actions, observation)
    np.testing.assert_allclose(chunk, plain.unprocess(actions, observation) + offsets, atol=1e-6)
    np.testing.assert_allclose(read.normalize(chunk, observation), actions[:, :7], atol=1e-5)


def test_the_step_s_name_in_lerobot_0_5(folder: Path) -> None:
    enable_relative(folder, None, [])
    text = (folder / BEFORE).read_text()
    (folder / BEFORE).write_text(text.replace("relative_actions_processor", "delta_actions_processor"))
    assert processor(folder)._recipe.relative.all()


def test_relative_actions_of_other_joints_are_refused(folder: Path) -> None:
    enable_relative(folder, None, [])
    change(folder, "oxygen.json", "actions", "joints", to=JOINTS[1:])
    with pytest.raises(
        ModelError, match=r'action 0 is relative to number 0.*"joint2" and the number "joint1"'
    ):
        load_model(folder)


@pytest.mark.parametrize(("mode", "rest"), [("QUANTILES", -1.0), ("MEAN_STD", 0.0)])
def test_a_guide_for_what_never_moved_is_what_it_was_in_training(
    folder: Path, mode: str, rest: float
) -> None:
    """A thousandth of a radian there would be 200000 in the network's units."""
    file = folder / "policy_postprocessor_step_0_unnormalizer_processor.safetensors"
    stats = load_file(file)
    for name in ("q01", "q99", "mean"):
        stats[f"action.{name}"][2] = 0.5
    stats["action.std"][2] = 0.0
    save_file(stats, file)
    change(folder, AFTER, "steps", "unnormalizer_processor", "config", "norm_map", "ACTION", to=mode)
    read = processor(folder)
    chunk = read.unprocess(np.ones((10, 32), np.float32), look("go"))
    np.testing.assert_allclose(chunk[:, 2], 0.5, atol=1e-6)
    chunk[:, 2] += 0.001
    guide = read.normalize(chunk, look("go"))
    np.testing.assert_array_equal(guide[:, 2], np.full(10, rest, np.float32))
    np.testing.assert_allclose(np.delete(guide, 2, axis=1), 1.0, atol=1e-5)
