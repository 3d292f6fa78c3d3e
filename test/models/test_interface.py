# SPDX-License-Identifier: Apache-2.0
"""What every family promises the engine: shapes, dtypes, bounds, independence of slots.

Here lives no family. A new one is a line in FAMILIES; these tests are then its first.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from models_scene import make_model, make_network, write_adapter

from oxygen_ros.models import Capacity, Guide, Model, Prefix, Rows
from oxygen_ros.observation import Observation

CAPACITY = Capacity(frames=3, suffixes=4, suffix_tokens=20, max_rows=16)


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
}


@pytest.fixture(params=FAMILIES)
def model(request, tmp_path) -> Model:
    made = FAMILIES[request.param](tmp_path)
    made.allocate(CAPACITY)
    return made


def observation(model: Model, seed: int, *, cameras: int | None = None) -> Observation:
    """Random pixels of any size, joints near zero, for whatever the spec asks."""
    chance = np.random.default_rng(seed)
    names = model.spec.cameras[:cameras]
    images = {name: chance.integers(0, 256, (48, 64, 3), dtype=np.uint8) for name in names}
    joints = chance.normal(scale=0.1, size=len(model.spec.joints))
    return Observation(seed, images, joints, "stack the blocks")


def encode(model: Model, seed: int, slot: int, **options) -> Prefix:
    return model.encode(model.process(observation(model, seed, **options)), slot)


def noise(model: Model, seed: int = 0) -> torch.Tensor:
    shape = (model.spec.horizon, model.spec.action_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(model.device)


def rows(model: Model, prefix: Prefix, frame: int, suffix: int, tokens: list[int], first: int = 0) -> Rows:
    """Tokens of one request; logits of the last wanted."""
    made = Rows(CAPACITY.max_rows, model.device)
    count = len(tokens)
    made.token[:count] = torch.tensor(tokens)
    made.write_at[:count] = torch.arange(first, first + count)
    made.position[:count] = prefix.next_position + made.write_at[:count]
    made.frame_slot[:count], made.suffix_slot[:count] = frame, suffix
    made.wants_logits[0] = count - 1
    made.count, made.wanted, made.longest = count, 1, first + count
    made.frame_spans = [(frame, 0, count)]
    return made


def near(logits: torch.Tensor) -> dict[str, float]:
    """How close logits of the same words in other rows or slots must be."""
    tolerance = 1e-4 if logits.dtype == torch.float32 else 0.1
    return {"atol": tolerance, "rtol": tolerance}


def test_the_spec_is_complete_and_coherent(model: Model) -> None:
    spec = model.spec
    assert spec.family
    assert spec.cameras
    assert len(set(spec.cameras)) == len(spec.cameras)
    assert set(spec.action_joints) <= set(spec.joints)
    assert len(spec.action_joints) <= spec.action_dim
    assert spec.representation in ("position", "velocity")
    assert min(spec.horizon, spec.step, spec.denoise_steps, spec.max_prefix, *spec.image_size) > 0
    assert all(0 <= i < spec.vocabulary for i in spec.eos_ids)
    assert spec.cache_bytes_per_token > 0
    assert isinstance(hash(spec), int), "a spec is a value"


def test_allocate_takes_the_capacity_and_pool_bytes_follow_it(model: Model) -> None:
    assert model.capacity == CAPACITY
    small = model.pool_bytes()
    assert small >= CAPACITY.suffixes * CAPACITY.suffix_tokens * model.spec.cache_bytes_per_token
    model.allocate(Capacity(frames=6, suffixes=8, suffix_tokens=20, max_rows=16))
    # Twice all slots; a few places belong to no slot.
    assert abs(model.pool_bytes() - 2 * small) <= 16 * model.spec.cache_bytes_per_token


def test_encode_reports_its_prefix(model: Model) -> None:
    full, part = encode(model, 1, 0), encode(model, 1, 1, cameras=1)
    for prefix in (full, part):
        assert 0 < prefix.tokens <= model.spec.max_prefix
        assert prefix.next_position >= 1
    assert part.tokens < full.tokens, "a masked camera is not computed"


def test_denoise_gives_a_chunk_and_the_same_one_again(model: Model) -> None:
    encode(model, 1, 2)
    given = noise(model)
    kept = given.clone()
    actions = model.denoise(2, given)
    assert actions.shape == (model.spec.horizon, model.spec.action_dim)
    assert actions.dtype == torch.float32
    assert actions.isfinite().all()
    assert torch.equal(given, kept), "the noise is the caller's"
    assert torch.equal(model.denoise(2, given), actions)
    assert not torch.equal(model.denoise(2, noise(model, 1)), actions)


def test_a_guide_of_zero_weights_is_none_and_ones_pull(model: Model) -> None:
    encode(model, 1, 0)
    plain = model.denoise(0, noise(model))
    previous = torch.full_like(plain, 0.25)
    zero = model.denoise(0, noise(model), Guide(previous, torch.zeros_like(plain)))
    torch.testing.assert_close(zero, plain, atol=1e-6, rtol=0)
    first_half = torch.zeros_like(plain)
    first_half[: len(plain) // 2] = 1.0
    pulled = model.denoise(0, noise(model), Guide(previous, first_half))
    half = len(plain) // 2
    assert (pulled[:half] - previous[:half]).abs().mean() < 0.5 * (
        plain[:half] - previous[:half]
    ).abs().mean()


def test_unprocess_gives_robot_units(model: Model) -> None:
    seen = observation(model, 1)
    encode(model, 1, 0)
    chunk = model.unprocess(model.denoise(0, noise(model)), seen)
    assert chunk.shape == (model.spec.horizon, len(model.spec.action_joints))
    assert chunk.dtype == np.float64
    assert np.isfinite(chunk).all()


def test_extend_gives_the_wanted_logits_only(model: Model) -> None:
    prefix = encode(model, 1, 1)
    words = model.tokenize("what is left?")[:5]
    step = rows(model, prefix, 1, 3, words)
    block = step.block.clone()
    logits = model.extend(step)
    assert logits.shape == (1, model.spec.vocabulary)
    assert logits.isfinite().all()
    assert torch.equal(step.block, block), "rows are read, never written"
    step.wants_logits[:2] = torch.tensor([1, 4])
    step.wanted = 2
    both = model.extend(step)
    assert both.shape == (2, model.spec.vocabulary)
    torch.testing.assert_close(both[1], logits[0], **near(logits))
    step.wanted = 0
    assert model.extend(step).shape == (0, model.spec.vocabulary)


def test_words_one_by_one_equal_words_at_once(model: Model) -> None:
    prefix = encode(model, 1, 1)
    words = model.tokenize("what is left?")[:6]
    at_once = model.extend(rows(model, prefix, 1, 0, words))
    for place, word in enumerate(words):
        one_by_one = model.extend(rows(model, prefix, 1, 2, [word], place))
    torch.testing.assert_close(one_by_one, at_once, **near(at_once))


def test_slots_do_not_know_of_each_other(model: Model) -> None:
    """Frames and suffixes written in between change nothing in the others."""
    prefix = encode(model, 1, 0)
    words = model.tokenize("abcdef")
    expected = model.extend(rows(model, prefix, 0, 1, words)), model.denoise(0, noise(model))
    model.extend(rows(model, prefix, 0, 1, words[:5]))
    for slot in (1, 2):
        other = encode(model, slot + 5, slot)
        model.denoise(slot, noise(model, slot))
        for suffix in (0, 2, 3):
            model.extend(rows(model, other, slot, suffix, words[::-1]))
    assert torch.equal(model.denoise(0, noise(model)), expected[1])
    resumed = model.extend(rows(model, prefix, 0, 1, words[5:], 5))
    torch.testing.assert_close(resumed, expected[0], **near(resumed))


def test_fork_prepares_a_suffix_slot_and_touches_no_other(model: Model) -> None:
    prefix = encode(model, 1, 0)
    words = model.tokenize("abcd")
    model.extend(rows(model, prefix, 0, 1, words))
    expected = model.extend(rows(model, prefix, 0, 1, [65], 4))
    model.fork(0, 2)
    assert torch.equal(model.extend(rows(model, prefix, 0, 1, [65], 4)), expected)
    fresh = model.extend(rows(model, prefix, 0, 2, words))
    model.fork(0, 3)
    torch.testing.assert_close(model.extend(rows(model, prefix, 0, 3, words)), fresh, **near(fresh))


def test_words_and_ids(model: Model) -> None:
    ids = model.tokenize("two red blocks")
    assert all(isinstance(i, int) and 0 <= i < model.spec.vocabulary for i in ids)
    assert not set(ids) & set(model.spec.eos_ids)
    assert model.detokenize(ids) == "two red blocks"
    assert model.detokenize([*ids, *model.spec.eos_ids]) == "two red blocks"
    assert model.tokenize("") == []
    assert model.detokenize(()) == ""


def test_adapters_have_names(model: Model) -> None:
    assert isinstance(model.adapters, tuple)
    assert all(isinstance(name, str) and name for name in model.adapters)


def test_a_foreign_camera_is_refused_by_name(model: Model) -> None:
    seen = observation(model, 1)
    images = {**seen.images, "rear_mirror": seen.images[model.spec.cameras[0]]}
    with pytest.raises(ValueError, match="rear_mirror"):
        model.process(Observation(1, images, seen.joints, ""))


def test_a_model_lacks_nothing_abstract() -> None:
    """Half an implementation cannot be made."""

    class Half(Model):
        def allocate(self, capacity: Capacity) -> None: ...

    with pytest.raises(TypeError, match="abstract"):
        Half()  # type: ignore[abstract]
