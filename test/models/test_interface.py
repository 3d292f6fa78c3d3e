# SPDX-License-Identifier: Apache-2.0
"""The contract of every family with the engine: shapes, dtypes, bounds, independence of slots.

A new family is a line in FAMILIES; these tests are then its first. They presume no K/V cache: a suffix slot
is forked before it is used, and no row is written over unless the spec says that it may be.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
import torch
from models_families import Chat, LateText, OwnPool, Recurrent, ToyFamily, TwoExperts
from models_scene import make_model, make_network, write_adapter

from oxygen_ros.models import Capacity, Guide, Model, Prefix, Rows
from oxygen_ros.observation import Observation

CAPACITY = Capacity(prefixes=3, suffixes=4, suffix_tokens=20, max_rows=16)


def pi05_demo(tmp_path) -> Model:
    network = make_network()
    model = make_model(network)
    write_adapter(tmp_path / "formal", network)
    model.load_adapter(tmp_path / "formal")
    return model


def pi05_demo_over_pool(tmp_path) -> Model:
    return make_model(make_network(), over_pool=True)


def pi05_demo_bfloat16(tmp_path) -> Model:
    return make_model(make_network().to(torch.bfloat16))


FAMILIES: dict[str, Callable[..., Model]] = {
    "pi05": pi05_demo,
    "pi05 over the pool": pi05_demo_over_pool,
    "pi05 bfloat16": pi05_demo_bfloat16,
    "toy": lambda _: ToyFamily(),
    "late text": lambda _: LateText(),
    "two experts": lambda _: TwoExperts(),
    "recurrent": lambda _: Recurrent(),
    "own pool": lambda _: OwnPool(),
    "chat": lambda _: Chat(),
}


# Families whose experts ignore the noise (one pass over gathered states).
WITHOUT_NOISE: tuple[str, ...] = ()


@pytest.fixture(params=FAMILIES)
def model(request, tmp_path) -> Model:
    made = FAMILIES[request.param](tmp_path)
    made.allocate(CAPACITY)
    return made


def observation(model: Model, seed: int, *, cameras: int | None = None, **words: str) -> Observation:
    """Random pixels of any size, joints near zero, for whatever the spec asks."""
    chance = np.random.default_rng(seed)
    names = model.spec.cameras[:cameras]
    images = {name: chance.integers(0, 256, (48, 64, 3), dtype=np.uint8) for name in names}
    joints = chance.normal(scale=0.1, size=len(model.spec.joints))
    return Observation(seed, images, joints, **{"instruction": "stack the blocks", **words})


def encode(model: Model, seed: int, slot: int, **options) -> Prefix:
    return model.encode(model.process(observation(model, seed, **options)), slot)


def encode_for_text(model: Model, seed: int, slot: int) -> Prefix:
    prefix = encode(model, seed, slot)
    model.complete(slot)
    return prefix


def noise(model: Model, seed: int = 0, expert: int = 0) -> torch.Tensor:
    shape = (model.spec.experts[expert].horizon, model.spec.experts[expert].width)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(model.device)


def experts(model: Model) -> range:
    return range(len(model.spec.experts))


def lay_out(model: Model, *parts: tuple[Prefix, int, int, list[int], int]) -> Rows:
    """Tokens of requests: (prefix, its slot, suffix slot, tokens, first place); logits of each last one."""
    made = Rows(CAPACITY.max_rows, model.device)
    at, prefix_spans, suffix_spans = 0, [], []
    for number, (prefix, slot, suffix, tokens, first) in enumerate(parts):
        rows = slice(at, at + len(tokens))
        made.token[rows] = torch.tensor(tokens)
        made.write_at[rows] = torch.arange(first, first + len(tokens))
        made.position[rows] = prefix.next_position + made.write_at[rows]
        made.prefix_slot[rows], made.suffix_slot[rows] = slot, suffix
        made.wants_logits[number] = rows.stop - 1
        begin = prefix_spans.pop()[1] if prefix_spans and prefix_spans[-1][0] == slot else at
        prefix_spans.append((slot, begin, rows.stop))
        suffix_spans.append((suffix, at, rows.stop))
        made.longest = max(made.longest, first + len(tokens))
        at = rows.stop
    made.count, made.wanted = at, len(parts)
    made.prefix_spans, made.suffix_spans = prefix_spans, suffix_spans
    return made


def rows(model: Model, prefix: Prefix, slot: int, suffix: int, tokens: list[int], first: int = 0) -> Rows:
    """Tokens of one request; logits of the last wanted."""
    return lay_out(model, (prefix, slot, suffix, tokens, first))


def tell(
    model: Model, prefix: Prefix, slot: int, suffix: int, tokens: list[int], first: int = 0
) -> torch.Tensor:
    """Logits [1, vocabulary] after a request's tokens; from the first place on in a fresh suffix slot."""
    if first == 0:
        model.fork(slot, suffix)
    return model.extend(rows(model, prefix, slot, suffix, tokens, first)).clone()


def near(logits: torch.Tensor) -> dict[str, float]:
    """How close logits of the same words in other rows or slots must be."""
    tolerance = 1e-4 if logits.dtype == torch.float32 else 0.1
    return {"atol": tolerance, "rtol": tolerance}


# -- the spec ------------------------------------------------------------------------------------


def test_the_spec_is_complete_and_coherent(model: Model) -> None:
    spec = model.spec
    assert spec.family
    assert spec.cameras
    assert len(set(spec.cameras)) == len(spec.cameras)
    assert min(spec.image_size) > 0
    assert spec.eos_ids
    assert all(kind.isidentifier() for kind in spec.feedback)
    names = [expert.name for expert in spec.experts]
    assert names
    assert len(set(names)) == len(names)
    for expert in spec.experts:
        assert set(expert.action_space.joints) <= set(spec.joints)
        assert expert.action_space.size <= expert.width
        assert min(expert.horizon, expert.step, expert.denoise_steps) > 0
    assert isinstance(hash(spec), int), "a spec is a value"


def test_allocate_takes_the_capacity_and_pool_bytes_follow_it(model: Model) -> None:
    assert model.capacity == CAPACITY
    small = model.pool_bytes()
    assert small > 0
    # Room for the sixteens that places are counted in.
    for factor in (2, 4):
        model.allocate(Capacity(3 * factor, 4 * factor, suffix_tokens=20, max_rows=16))
        assert 0.9 * factor * small <= model.pool_bytes() <= 1.1 * factor * small


# -- a tick --------------------------------------------------------------------------------------


def test_encode_reports_its_prefix(model: Model) -> None:
    full, part = encode(model, 1, 0), encode(model, 1, 1, cameras=1)
    for prefix in (full, part):
        assert prefix.tokens > 0
        assert prefix.next_position >= 1
    assert part.tokens < full.tokens, "a masked camera is not computed"


def test_denoise_gives_a_chunk_and_the_same_one_again(model: Model) -> None:
    encode(model, 1, 2)
    for expert in experts(model):
        given = noise(model, expert=expert)
        kept = given.clone()
        actions = model.denoise(2, given, expert=expert)
        assert actions.shape == given.shape
        assert actions.dtype == torch.float32
        assert actions.isfinite().all()
        assert torch.equal(given, kept), "the noise is the caller's"
        assert torch.equal(model.denoise(2, given, expert=expert), actions)
        if model.spec.family not in WITHOUT_NOISE:
            other = model.denoise(2, noise(model, 1, expert), expert=expert)
            assert not torch.equal(other, actions), "another noise gives another chunk"


def test_experts_and_text_leave_the_prefix_as_it_was(model: Model) -> None:
    """Every chunk is the same before and after all other readers, and before and after `complete`."""
    prefix = encode(model, 1, 0)
    before = [model.denoise(0, noise(model, expert=e), expert=e) for e in experts(model)]
    model.complete(0)
    tell(model, prefix, 0, 1, model.tokenize("abc"))
    after = [model.denoise(0, noise(model, expert=e), expert=e) for e in reversed(experts(model))]
    for one, other in zip(before, reversed(after), strict=True):
        assert torch.equal(one, other)


def test_a_guide_of_zero_weights_is_none_and_ones_pull(model: Model) -> None:
    encode(model, 1, 0)
    for expert in experts(model):
        plain = model.denoise(0, noise(model, expert=expert), expert=expert)
        previous = torch.full_like(plain, 0.25)
        guide = Guide(previous, torch.zeros_like(plain))
        zero = model.denoise(0, noise(model, expert=expert), guide, expert)
        torch.testing.assert_close(zero, plain, atol=1e-6, rtol=0)
        half = len(plain) // 2
        first_half = torch.zeros_like(plain)
        first_half[:half] = 1.0
        pulled = model.denoise(0, noise(model, expert=expert), Guide(previous, first_half), expert)
        away, free = (pulled[:half] - previous[:half]).abs(), (plain[:half] - previous[:half]).abs()
        assert away.mean() < 0.5 * free.mean()


def test_unprocess_gives_robot_units_and_normalize_undoes_it(model: Model) -> None:
    seen = observation(model, 1)
    encode(model, 1, 0)
    for expert in experts(model):
        spec = model.spec.experts[expert]
        chunk = model.unprocess(model.denoise(0, noise(model, expert=expert), expert=expert), seen, expert)
        assert chunk.shape == (spec.horizon, spec.action_space.size)
        assert chunk.dtype == np.float64
        assert np.isfinite(chunk).all()
        again = model.normalize(chunk, seen, expert)
        assert again.shape == (spec.horizon, spec.width)
        assert again.dtype == torch.float32
        assert not again[:, spec.action_space.size :].any()
        np.testing.assert_allclose(model.unprocess(again, seen, expert), chunk, atol=1e-4)


def test_a_foreign_camera_is_refused_by_name(model: Model) -> None:
    seen = observation(model, 1)
    images = {**seen.images, "rear_mirror": seen.images[model.spec.cameras[0]]}
    with pytest.raises(ValueError, match="rear_mirror"):
        model.process(Observation(1, images, seen.joints, ""))


@pytest.mark.parametrize("words", ["", "go", "x" * 40, "x y " * 500])
def test_an_instruction_is_judged_without_joints_and_as_process_does(model: Model, words: str) -> None:
    seen = [observation(model, seed, instruction=words) for seed in (1, 2, 3)]
    refusals = []
    for judge in (lambda: model.check_instruction(words), *(partial(model.process, one) for one in seen)):
        try:
            judge()
        except ValueError as error:
            refusals.append(str(error))
    assert refusals in ([], [refusals[0]] * (1 + len(seen)) if refusals else [])


def test_texts_of_the_kinds_that_are_fed_back_change_the_prefix(model: Model) -> None:
    for kind in model.spec.feedback:
        chunks = []
        for feedback in ({}, {kind: "two of them are in"}):
            seen = observation(model, 1)
            seen = Observation(1, seen.images, seen.joints, seen.instruction, feedback)
            model.encode(model.process(seen), 0)
            chunks.append(model.denoise(0, noise(model)))
        assert not torch.equal(*chunks), kind


# -- text ----------------------------------------------------------------------------------------


def test_extend_gives_the_wanted_logits_only(model: Model) -> None:
    prefix = encode_for_text(model, 1, 1)
    words = model.tokenize("what is left?")[:5]
    steps = []
    for suffix in (3, 2, 0):
        model.fork(1, suffix)
        steps.append(rows(model, prefix, 1, suffix, words))
    block = steps[0].block.clone()
    logits = model.extend(steps[0]).clone()
    vocabulary = logits.shape[1]
    assert logits.shape == (1, vocabulary)
    assert vocabulary > max(*words, *model.spec.eos_ids)
    assert logits.isfinite().all()
    assert torch.equal(steps[0].block, block), "rows are read, never written"
    steps[1].wants_logits[:2] = torch.tensor([1, 4])
    steps[1].wanted = 2
    both = model.extend(steps[1])
    assert both.shape == (2, vocabulary)
    torch.testing.assert_close(both[1], logits[0], **near(logits))
    steps[2].wanted = 0
    assert model.extend(steps[2]).shape == (0, vocabulary)


def test_words_one_by_one_equal_words_at_once(model: Model) -> None:
    prefix = encode_for_text(model, 1, 1)
    words = model.tokenize("what is left?")[:6]
    at_once = tell(model, prefix, 1, 0, words)
    for place, word in enumerate(words):
        one_by_one = tell(model, prefix, 1, 2, [word], place)
    torch.testing.assert_close(one_by_one, at_once, **near(at_once))


def test_requests_in_one_step_are_as_each_alone(model: Model) -> None:
    """Two texts of one prefix and one of another, at different places of their suffixes."""
    first, second = encode_for_text(model, 1, 0), encode_for_text(model, 2, 2)
    a, b, c = (model.tokenize(words) for words in ("abcd", "xyz", "what"))
    alone = [tell(model, first, 0, 0, a), tell(model, first, 0, 1, b), tell(model, second, 2, 3, c)]
    for slot, suffix in ((0, 0), (0, 1), (2, 3)):
        model.fork(slot, suffix)
    model.extend(rows(model, first, 0, 0, a[:2]))
    model.extend(rows(model, second, 2, 3, c[:3]))
    step = lay_out(model, (first, 0, 0, a[2:], 2), (first, 0, 1, b, 0), (second, 2, 3, c[3:], 3))
    together = model.extend(step)
    torch.testing.assert_close(together, torch.cat(alone), **near(together))


def test_slots_do_not_know_of_each_other(model: Model) -> None:
    """Prefixes and suffixes written in between change nothing in the others."""
    prefix = encode_for_text(model, 1, 0)
    words = model.tokenize("abcdef")
    expected = tell(model, prefix, 0, 1, words), model.denoise(0, noise(model))
    tell(model, prefix, 0, 1, words[:5])
    for slot in (1, 2):
        other = encode_for_text(model, slot + 5, slot)
        model.denoise(slot, noise(model, slot))
        for suffix in (0, 2, 3):
            tell(model, other, slot, suffix, words[::-1])
    assert torch.equal(model.denoise(0, noise(model)), expected[1])
    resumed = tell(model, prefix, 0, 1, words[5:], 5)
    torch.testing.assert_close(resumed, expected[0], **near(resumed))


def test_fork_prepares_a_suffix_slot_and_touches_no_other(model: Model) -> None:
    prefix = encode_for_text(model, 1, 0)
    words = model.tokenize("abcd")
    for suffix in (1, 3):
        tell(model, prefix, 0, suffix, words)
    expected = tell(model, prefix, 0, 1, [65], 4)
    model.fork(0, 2)
    torch.testing.assert_close(tell(model, prefix, 0, 3, [65], 4), expected, **near(expected))
    if model.spec.can_rewind:
        assert torch.equal(tell(model, prefix, 0, 1, [65], 4), expected)
    fresh = model.extend(rows(model, prefix, 0, 2, words)).clone()
    torch.testing.assert_close(tell(model, prefix, 0, 3, words), fresh, **near(fresh))


def test_rows_are_written_over_where_the_spec_says_so(model: Model) -> None:
    """A draft that was wrong is taken back by writing the right token to its place."""
    prefix = encode_for_text(model, 1, 0)
    words = model.tokenize("abcdef")
    expected = tell(model, prefix, 0, 0, words)
    tell(model, prefix, 0, 1, [*words[:4], 90, 91])
    rewritten = tell(model, prefix, 0, 1, words[4:], 4)
    is_same = torch.allclose(rewritten, expected, **near(expected))
    assert is_same == model.spec.can_rewind


def test_words_and_ids(model: Model) -> None:
    ids = model.tokenize("two red blocks")
    assert all(isinstance(i, int) and i >= 0 for i in ids)
    assert not set(ids) & set(model.spec.eos_ids)
    assert model.detokenize(ids) == "two red blocks"
    assert model.detokenize([*ids, *model.spec.eos_ids]) == "two red blocks"
    assert model.tokenize("") == []
    assert model.detokenize(()) == ""


def test_words_fill_a_template_and_are_not_filled_again(model: Model) -> None:
    filled = model.tokenize("Say {word}, {other}!", {"word": "{other}", "other": "b"})
    assert filled == model.tokenize("Say {other}, b!")
    assert model.tokenize("{word}") == model.tokenize("{said}", {"said": "{word}"})


def test_adapters_have_names(model: Model) -> None:
    assert isinstance(model.adapters, tuple)
    assert all(isinstance(name, str) and name for name in model.adapters)


def test_a_model_lacks_nothing_abstract() -> None:
    """Half an implementation cannot be made."""

    class Half(Model):
        def allocate(self, capacity: Capacity) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]
