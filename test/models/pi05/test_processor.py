# SPDX-License-Identifier: Apache-2.0
"""Observations to prompts and pixels, actions back to the robot, for our own checkpoint format.

Text alone is tested in test_tokenizer.
"""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models_scene import (
    BIN_BASE,
    BOS,
    DELTA,
    HIGH,
    LOW,
    demo_config,
    make_processor,
    make_raw,
    make_stats,
    make_tokenizer,
    observe,
)

from oxygen_ros.models import ModelError
from oxygen_ros.models.pi05.processor import PlainProcessor
from oxygen_ros.models.processing import Quantiles, bin_state

CONFIG = demo_config()
CPU = torch.device("cpu")
LOWS, HIGHS = np.asarray(LOW), np.asarray(HIGH)


@pytest.fixture(scope="module")
def processor() -> PlainProcessor:
    return make_processor(CONFIG)


PROCESSOR = make_processor(CONFIG)


def spell(text: str) -> list[int]:
    """Ids of a text by this tokenizer: one for each byte."""
    return make_tokenizer().encode(text, add_special_tokens=False).ids


def tokens(observation, processor=PROCESSOR) -> list[int]:
    return processor.process(observation, CPU, torch.float32).tokens.tolist()


# -- the prompt ----------------------------------------------------------------------------------


def test_prompt_layout() -> None:
    middle = (LOWS + HIGHS) / 2
    observation = replace(observe(1, instruction="go"), joints=middle)
    state = [*spell(" State: "), *[BIN_BASE + 128] * 7, *spell(" Action: ")]
    assert tokens(observation) == [BOS, *spell("Task: go."), *state]
    with_memory = replace(observation, feedback={"memory": "one"})
    assert tokens(with_memory) == [BOS, *spell("Task: go. Memory: one"), *state]
    with_both = replace(with_memory, feedback={"subtask": "up", "memory": "one"})
    assert tokens(with_both) == [BOS, *spell("Task: go. Subtask: up. Memory: one"), *state]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (-1.0, 0),
        (1.0, 255),
        (-1.0001, 0),
        (-50.0, 0),
        (50.0, 255),
        (-np.inf, 0),
        (np.inf, 255),
        (0.0, 128),
        (-1e-9, 127),
        (-1 + 2 / 256, 1),
        (np.nextafter(-1 + 2 / 256, -2), 0),
        (1 - 2 / 256, 255),
        (np.nextafter(1 - 2 / 256, 0), 254),
    ],
)
def test_bins_at_their_edges(value: float, expected: int) -> None:
    assert bin_state(np.array([value])).tolist() == [expected]


@given(st.floats(-1, 1, exclude_max=True))
def test_a_value_lies_in_its_bin(value: float) -> None:
    """Bin b is -1 + 2 b / 256 <= value < -1 + 2 (b + 1) / 256."""
    found = int(bin_state(np.array([value]))[0])
    assert -1 + 2 * found / 256 <= value < -1 + 2 * (found + 1) / 256


def test_joints_at_the_quantiles_take_the_outer_bins() -> None:
    for joints, expected in ((LOWS, 0), (HIGHS, 255), (LOWS - 5, 0), (HIGHS + 5, 255)):
        ids = tokens(replace(observe(1), joints=joints))
        assert [i for i in ids if i >= BIN_BASE] == [BIN_BASE + expected] * 7


def test_the_memory_gives_way_when_the_prompt_is_full() -> None:
    """Never the instruction, never the state; what is left of the memory is its beginning."""
    observation = observe(1, instruction="pick", memory="abcdefghijklmnopqrstuvwxyz" * 4)
    ids = tokens(observation)
    assert len(ids) == CONFIG.max_prompt
    words = [BOS, *spell("Task: pick.")]
    room = CONFIG.max_prompt - len(words) - len(spell(" State:  Action: ")) - 7
    assert ids[: len(words) + room] == words + spell(" Memory: " + observation.feedback["memory"])[:room]
    assert ids[len(words) + room :] == tokens(replace(observation, feedback={}))[len(words) :]


def test_the_subtask_stands_before_the_memory_that_gives_way() -> None:
    observation = observe(1, instruction="pick", memory="abcdefghijklm" * 8, subtask="go on")
    ids = tokens(observation)
    assert len(ids) == CONFIG.max_prompt
    words = [BOS, *spell("Task: pick. Subtask: go on.")]
    assert ids[: len(words)] == words


def test_an_instruction_at_the_limit_and_one_past_it() -> None:
    most = CONFIG.max_prompt - len(spell("Task: . State:  Action: ")) - 7 - 1
    full = tokens(observe(1, instruction="x" * most, memory="no room for me"))
    assert len(full) == CONFIG.max_prompt
    assert full == tokens(observe(1, instruction="x" * most))
    with pytest.raises(
        ValueError, match=rf"instruction \"x.*has {most + 9} tokens.*room for {most + 8}.*shorten"
    ):
        tokens(observe(1, instruction="x" * (most + 1)))


def test_an_instruction_is_checked_as_the_prompt_checks_it_whatever_the_joints() -> None:
    """The state takes as many tokens at any joints."""
    most = CONFIG.max_prompt - len(spell("Task: . State:  Action: ")) - 7 - 1
    PROCESSOR.check_instruction("x" * most)
    with pytest.raises(ValueError, match=rf"has {most + 9} tokens.*room for {most + 8}.*shorten"):
        PROCESSOR.check_instruction("x" * (most + 1))
    for joints in (LOWS, HIGHS, LOWS - 5):
        assert len(tokens(replace(observe(1, instruction="x" * most), joints=joints))) == CONFIG.max_prompt


def test_fed_back_texts_are_data_of_the_checkpoint() -> None:
    """Kinds, their order and their words come from config.json; the last is cut first."""
    raw = make_raw(CONFIG) | {"feedback": {"hazard": " Beware: {text}!", "plan": " Next {text}"}}
    processor = PlainProcessor(CONFIG, make_tokenizer(), raw, make_stats())
    assert processor.feedback == ("hazard", "plan")
    assert PROCESSOR.feedback == ("subtask", "memory")
    said = {"plan": "turn", "memory": "not of this checkpoint", "hazard": "{text}"}
    ids = tokens(observe(1, instruction="go", **said), processor)
    words = [BOS, *spell("Task: go. Beware: {text}! Next turn")]
    assert ids[: len(words)] == words
    assert ids[len(words) :][: len(spell(" State: "))] == spell(" State: ")
    full = tokens(observe(1, instruction="go", hazard="h", plan="p" * 99), processor)
    assert len(full) == CONFIG.max_prompt
    assert full[: len(words)] == [BOS, *spell("Task: go. Beware: h! Next " + "p" * 99)][: len(words)]


@pytest.mark.parametrize("feedback", [[], {"memory": "Memory"}, {"memory": "{text}{text}"}, {"memory": 1}])
def test_feedback_that_is_no_template_is_refused_by_name(feedback: object) -> None:
    raw = make_raw(CONFIG) | {"feedback": feedback}
    with pytest.raises(ModelError, match=r"config\.json: .*feedback.*template"):
        PlainProcessor(CONFIG, make_tokenizer(), raw, make_stats())


@pytest.mark.parametrize("instruction", ["", "pünktlich 日本 🤖", "a\nb\tc", "\x00", "'\"\\{}"])
def test_any_instruction_is_a_prompt(instruction: str) -> None:
    ids = tokens(observe(1, instruction=instruction))
    assert ids[1 : 1 + len(spell(f"Task: {instruction}."))] == spell(f"Task: {instruction}.")


# -- numbers -------------------------------------------------------------------------------------

numbers = st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3)


@given(numbers, numbers, numbers)
def test_normalization_goes_there_and_back(a, b, x) -> None:
    q01, q99 = np.minimum(a, b), np.maximum(a, b)
    q = Quantiles(q01, q99)
    back = q.unnormalize(q.normalize(np.asarray(x)))
    # The map is steep where the span is small; the error is of its size in the middle of the two.
    np.testing.assert_allclose(back, x, rtol=1e-9, atol=1e-6)


def test_quantiles_map_to_one() -> None:
    q = Quantiles(np.array([-2.0, 5.0]), np.array([4.0, 5.0]))
    np.testing.assert_allclose(q.normalize(np.array([-2.0, 5.0])), [-1, -1])
    np.testing.assert_allclose(q.normalize(np.array([4.0, 5.0])), [1, -1])
    np.testing.assert_allclose(q.normalize(np.array([7.0, 5.0 + 1e-8])), [2, 1], rtol=1e-6)
    np.testing.assert_allclose(q.unnormalize(np.array([0.0, 0.3])), [1.0, 5.0])


def test_a_delta_joint_moves_from_where_it_was_seen(processor) -> None:
    """Zero in the middle: an absolute joint goes to the middle of its quantiles, a delta by that much."""
    observation = observe(4)
    chunk = processor.unprocess(np.zeros((16, 7), dtype=np.float32), observation)
    middle = (LOWS + HIGHS) / 2
    is_delta = [name in DELTA for name in CONFIG.joints]
    expected = np.where(is_delta, observation.joints + middle, middle)
    assert chunk.dtype == np.float64
    np.testing.assert_allclose(chunk, np.tile(expected, (16, 1)), atol=1e-12)


def test_actions_of_fewer_joints_in_another_order() -> None:
    raw = make_raw(CONFIG) | {"actions": {"joints": ["gripper", "joint2"], "delta": ["joint2"]}}
    stats = make_stats() | {"actions": {"q01": [0.0, -0.1], "q99": [0.04, 0.1]}}
    processor = PlainProcessor(CONFIG, make_tokenizer(), raw, stats)
    observation = observe(2)
    actions = np.zeros((16, 7), dtype=np.float32)
    actions[:, 0], actions[:, 1] = 1.0, -1.0
    actions[:, 2:] = 99.0  # padding of the width: not read
    chunk = processor.unprocess(actions, observation)
    assert processor.action_space.joints == ("gripper", "joint2")
    np.testing.assert_allclose(chunk, np.tile([0.04, observation.joints[1] - 0.1], (16, 1)), atol=1e-8)


def test_actions_that_are_no_joints_are_described_by_the_checkpoint() -> None:
    """A delta joint between numbers that no joint stands behind: only it moves from where it was seen."""
    hand = {"name": "hand", "kind": "cartesian_position", "unit": "m", "frame": "base"}
    joint = {"name": "joint2", "kind": "joint_position", "unit": "rad"}
    claw = {"name": "claw", "kind": "gripper", "unit": "1"}
    raw = make_raw(CONFIG) | {"actions": {"components": [hand, joint, claw], "delta": ["joint2"]}}
    stats = make_stats() | {"actions": {"q01": [-1.0] * 5, "q99": [1.0] * 5}}
    processor = PlainProcessor(CONFIG, make_tokenizer(), raw, stats)
    observation = observe(2)
    chunk = processor.unprocess(np.full((16, 7), 0.5, dtype=np.float32), observation)
    assert processor.action_space.columns == ("hand.x", "hand.y", "hand.z", "joint2", "claw")
    np.testing.assert_allclose(chunk[0], [0.5, 0.5, 0.5, 0.5 + observation.joints[1], 0.5], atol=1e-8)
    np.testing.assert_allclose(processor.normalize(chunk, observation), 0.5, atol=1e-6)
    with pytest.raises(ModelError, match='delta joint "claw" is not among'):
        PlainProcessor(
            CONFIG, make_tokenizer(), raw | {"actions": {"components": [claw], "delta": ["claw"]}}, stats
        )


# -- pixels --------------------------------------------------------------------------------------


def test_pixels_are_scaled_and_cameras_stand_in_the_model_s_order(processor) -> None:
    observation = observe(1)
    reversed_order = replace(observation, images=dict(reversed(observation.images.items())))
    images = processor.process(reversed_order, CPU, torch.float32).images
    assert images.shape == (2, 3, 80, 80)
    for index, name in enumerate(("top", "wrist")):
        expected = observation.images[name].transpose(2, 0, 1) / 127.5 - 1
        np.testing.assert_allclose(images[index].numpy(), expected, atol=1e-6)


def test_an_absent_camera_is_left_out(processor) -> None:
    observation = observe(1)
    both = processor.process(observation, CPU, torch.float32).images
    for index, name in enumerate(("top", "wrist")):
        one = replace(observation, images={name: observation.images[name]})
        images = processor.process(one, CPU, torch.float32).images
        assert torch.equal(images, both[index : index + 1])


@pytest.mark.parametrize(("shape", "black"), [((40, 80), "rows"), ((60, 20), "columns"), ((1, 200), "rows")])
def test_proportions_are_kept_and_the_rest_is_black(processor, shape, black: str) -> None:
    observation = replace(observe(1), images={"top": np.full((*shape, 3), 255, dtype=np.uint8)})
    image = processor.process(observation, CPU, torch.float32).images[0]
    lit = (image == 1).all(0)
    assert ((image == 1) | (image == -1)).all()
    height, width = (int(lit.any(axis).sum()) for axis in (1, 0))
    scale = 80 / max(shape)
    assert (height, width) == (max(int(shape[0] * scale), 1), max(int(shape[1] * scale), 1))
    assert (height == 80) == (black == "columns")
    top, left = (80 - height) // 2, (80 - width) // 2
    assert lit[top : top + height, left : left + width].all()


BAD = {
    "unknown camera": (
        lambda o: replace(o, images=o.images | {"side": o.images["top"]}),
        r'camera "side" is not one',
    ),
    "no camera": (lambda o: replace(o, images={}), r"no camera image.*top, wrist"),
    "float image": (
        lambda o: replace(o, images={"top": o.images["top"].astype(np.float32)}),
        r'camera "top".*uint8.*float32',
    ),
    "gray image": (
        lambda o: replace(o, images={"wrist": o.images["top"][..., 0]}),
        r'camera "wrist".*\(80, 80\)',
    ),
    "rgba image": (
        lambda o: replace(o, images={"top": np.zeros((8, 8, 4), np.uint8)}),
        r'camera "top".*\(8, 8, 4\)',
    ),
    "NaN joint": (lambda o: replace(o, joints=at(o.joints, 2, np.nan)), r'joint "joint3" is not finite'),
    "infinite joint": (
        lambda o: replace(o, joints=at(o.joints, 6, -np.inf)),
        r'joint "gripper" is not finite',
    ),
    "six joints": (lambda o: replace(o, joints=o.joints[:6]), r"must have 7 joints, got shape \(6,\)"),
    "joints twice": (
        lambda o: replace(o, joints=np.tile(o.joints, (2, 1))),
        r"must have 7 joints, got shape \(2, 7\)",
    ),
    "empty image": (
        lambda o: replace(o, images={"top": np.zeros((0, 8, 3), np.uint8)}),
        r'camera "top".*\(0, 8, 3\)',
    ),
}


def at(joints, index: int, value: float):
    changed = joints.copy()
    changed[index] = value
    return changed


@pytest.mark.parametrize("fault", BAD)
def test_a_bad_observation_is_refused_by_name(processor, fault: str) -> None:
    spoil, says = BAD[fault]
    with pytest.raises(ValueError, match=says):
        processor.process(spoil(observe(1)), CPU, torch.float32)


def test_the_statistics_are_read_from_their_file(checkpoint) -> None:
    """The folder gives the processor that was written into it."""
    raw = json.loads((checkpoint / "config.json").read_text())
    loaded = PlainProcessor.load(checkpoint, CONFIG, raw)
    assert tokens(observe(7), loaded) == tokens(observe(7))
    actions = np.random.default_rng(0).normal(size=(16, 7)).astype(np.float32)
    np.testing.assert_array_equal(
        loaded.unprocess(actions, observe(7)), PROCESSOR.unprocess(actions, observe(7))
    )
