# SPDX-License-Identifier: Apache-2.0
"""What each lossless speed-up is worth: the same computation without it and with it, in turn in one process.

    the action path   from `plain` to the served one, one switch after the other
    a decode step     frames read in their pools against keys gathered for every row; all texts in one step
                      against one after the other
    a tick's text     greedy steps fed on the device; drafts from the last text of a kind
    device programs   recorded (CUDA graphs) against launched kernel by kernel: on GPUs

Beside each component stands the time of its linear layers alone. That all ways give one result is the tests'.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from oxygen_ros.bench.floor import decode_products, denoise_products, make_run, prefill_products
from oxygen_ros.bench.plain import Plain, Ways
from oxygen_ros.bench.race import Race
from oxygen_ros.bench.robots import suffix_of
from oxygen_ros.bench.setup import Shared
from oxygen_ros.bench.texts import GatheringPool, TextLane, one_row_each, steady_rows
from oxygen_ros.models.interface import Capacity
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import random_network

ROWS = (1, 6, 30)
TOKENS, STEPS, DRAFT = 30, 5, 8
Beat = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Gain:
    """One speed-up. before, after [ms]; ratio: median over the rounds of after / before."""

    name: str
    of: str
    before: float
    after: float
    ratio: float


def ablate(
    shared: Shared, dtype: str, *, rounds: int, found: list[dict[str, Any]], beat: Beat = lambda _: None
) -> None:
    """Append the JSON's `ablation` entry of one dtype to `found`: speed-ups, components against their floors,
    speculation. Interrupted, it is made of the rounds that were complete."""
    model = shared.model(dtype)
    model.allocate(_capacity(ROWS[-1]))
    race = Race(shared.device)
    ladder = _add_action_path(race, shared, dtype, model)
    _add_floors(race, shared, dtype)
    _add_decode(race, shared, model)
    _add_device_programs(race, shared, dtype)
    texts: _Texts | None = None
    try:
        race.run(rounds, beat)
        texts = _Texts(shared, dtype)
        texts.run(rounds, beat)
    finally:
        if race.rounds:
            gains = _gains(race, ladder, shared.device) + (texts.gains() if texts else [])
            found.append(
                {
                    "dtype": dtype,
                    "clock": race.clock,
                    "rounds": race.rounds,
                    "gains": [asdict(gain) for gain in gains],
                    "floors": _floors(race),
                    "speculation": texts.speculation() if texts else None,
                }
            )


def _gains(race: Race, ladder: list[str], device: torch.device) -> list[Gain]:
    for rung in (*ladder, "served"):
        race.sums({f"chunk, {rung}": (f"prefill, {rung}", f"denoise, {rung}")})
    gains = [
        _gain(race, after, "action chunk", f"chunk, {before}", f"chunk, {after}")
        for before, after in zip(ladder, [*ladder[1:], "served"], strict=True)
    ]
    gains[-1] = replace(gains[-1], name="pools, heads that share keys read them once, norms in fewer passes")
    gains.append(_gain(race, "all of them", "action chunk", f"chunk, {ladder[0]}", "chunk, served"))
    most = ROWS[-1]
    gains.append(_gain(race, "pools without gathering", f"decode of {most}", "gathered", f"decode {most}"))
    gains.append(_gain(race, "one step for all texts", f"decode of {most}", "one by one", f"decode {most}"))
    if device.type == "cuda":
        for what in ("prefill", "denoise", f"decode {most}"):
            gains.append(_gain(race, "device programs", what, f"{what}, launched", f"{what}, recorded"))
    return gains


def show(entry: dict[str, Any]) -> str:
    """An entry as text."""
    lines = [f"{entry['dtype']}, {entry['rounds']} rounds, medians of {entry['clock']} time"]
    lines.append(f"  {'speed-up':68s} {'of':14s} {'before':>9s} {'after':>9s} {'ratio':>6s}")
    lines += [
        f"  {g['name']:68s} {g['of']:14s} {g['before']:6.1f} ms {g['after']:6.1f} ms {g['ratio']:6.3f}"
        for g in entry["gains"]
    ]
    lines.append(f"  {'component':20s} {'ms':>8s} {'linear layers alone':>20s} {'ratio':>6s}")
    lines += [
        f"  {f['name']:20s} {f['ms']:8.1f} {f['floor_ms']:20.1f} {f['ratio']:6.2f}" for f in entry["floors"]
    ]
    if s := entry["speculation"]:
        lines.append(
            f"  speculation, texts that repeat: {s['tokens_per_step']:.2f} tokens per request and decode "
            f"step (without: {s['tokens_per_step_without']:.2f}), texts the same: {s['same_texts']}"
        )
    return "\n".join(lines)


# -- single calls --------------------------------------------------------------------------------


def _capacity(texts: int) -> Capacity:
    return Capacity(frames=texts + 1, suffixes=texts, suffix_tokens=TOKENS + 2 + DRAFT, max_rows=64)


def _gain(race: Race, name: str, of: str, before: str, after: str) -> Gain:
    return Gain(name, of, race.ms(before), race.ms(after), race.ratio(after, before))


def _add_action_path(race: Race, shared: Shared, dtype: str, model: Pi05) -> list[str]:
    """Every rung of the ladder from plain to served; returns the rungs below the served one."""
    served = shared.networks[dtype]
    # As a checkpoint has it. A second copy only where the served one is packed.
    network = served
    if served.is_packed:
        network = random_network(served.config, shared.setup.seed, served.embedding.dtype, shared.device)
    inputs = model.process(shared.scene.at(0))
    shape = (network.config.horizon, network.config.action_dim)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(shared.device)
    ways = Ways()
    rungs = ["plain"]
    plains = [Plain(network, ways)]
    for switch, name in (
        ("packed", "packed prefix: no padding, no masked cameras"),
        ("one_vision_batch", "one vision batch"),
        ("short_last_block", "the last block stops at its keys and values"),
        ("fused", "fused weights"),
        ("modulation_once", "modulation computed once"),
        ("static_cache", "denoise without growing or copying a cache"),
    ):
        ways = replace(ways, **{switch: True})
        rungs.append(name)
        plains.append(Plain(network, ways))
    rungs.append("weights laid out once, GELU inside the product")
    plains.append(Plain(served, ways))
    for rung, plain in zip(rungs, plains, strict=True):
        ready = plain.prefill(inputs)
        race.add(f"prefill, {rung}", lambda plain=plain: plain.prefill(inputs))
        race.add(f"denoise, {rung}", lambda plain=plain, ready=ready: plain.denoise(ready, noise))
    race.add("prefill, served", lambda: model.encode(inputs, 0))
    race.add("denoise, served", lambda: model.denoise(0, noise))
    return rungs


def _add_floors(race: Race, shared: Shared, dtype: str) -> None:
    network = shared.networks[dtype]
    cameras = len(shared.robot.cameras)
    race.add("prefill, floor", make_run(prefill_products(network, cameras, shared.scene.prefix_tokens)))
    race.add("denoise, floor", make_run(denoise_products(network, network.config.denoise_steps)))
    for rows in ROWS:
        race.add(f"decode {rows}, floor", make_run(decode_products(network, rows)))


def _add_decode(race: Race, shared: Shared, model: Pi05) -> None:
    observation = shared.scene.at(0)
    most = ROWS[-1]
    for slot in range(most):
        prefix = model.encode(model.process(observation), slot)
    for count in ROWS:
        rows = steady_rows(count, prefix.next_position, TOKENS, shared.device)
        race.add(f"decode {count}", lambda rows=rows: model.extend(rows))
    rows = steady_rows(most, prefix.next_position, TOKENS, shared.device)
    gathering = GatheringPool.passes_of(model)
    race.add("gathered", lambda: gathering.extend(rows))
    singles = one_row_each(rows, shared.device)
    race.add("one by one", lambda: [model.extend(single) for single in singles])


def _add_device_programs(race: Race, shared: Shared, dtype: str) -> None:
    if shared.device.type != "cuda":
        return
    most = ROWS[-1]
    for name, is_recorded in (("launched", False), ("recorded", True)):
        model = shared.model(dtype)
        model.allocate(_capacity(most))
        inputs = model.process(shared.scene.at(0))
        if is_recorded and (reason := model.record(inputs)):
            raise RuntimeError(reason)
        for slot in range(most):
            prefix = model.encode(inputs, slot)
        c = model.config
        noise = torch.randn(c.horizon, c.action_dim, device=shared.device)
        rows = steady_rows(most, prefix.next_position, TOKENS, shared.device)
        race.add(f"prefill, {name}", lambda model=model, inputs=inputs: model.encode(inputs, 0))
        race.add(f"denoise, {name}", lambda model=model, noise=noise: model.denoise(0, noise))
        race.add(f"decode {most}, {name}", lambda model=model, rows=rows: model.extend(rows))


def _floors(race: Race) -> list[dict[str, Any]]:
    pairs = [("prefill, served", "prefill, floor"), ("denoise, served", "denoise, floor")]
    pairs += [(f"decode {rows}", f"decode {rows}, floor") for rows in ROWS]
    return [
        {
            "name": name.removesuffix(", served"),
            "ms": race.ms(name),
            "floor_ms": race.ms(floor),
            "ratio": race.ratio(name, floor),
        }
        for name, floor in pairs
    ]


# -- whole texts ---------------------------------------------------------------------------------


class _Texts:
    """Ticks with one text each over a scene that stands still, so that texts repeat."""

    def __init__(self, shared: Shared, dtype: str) -> None:
        self._frames = -(-TOKENS // STEPS) + 2
        capacity = Capacity(self._frames, self._frames, TOKENS + 2 + DRAFT, 64)

        def lane(**options: Any) -> TextLane:
            model = shared.model(dtype)
            return TextLane(model, capacity, shared.still_scene, suffix_of(2), TOKENS, STEPS, **options)

        self._lanes = {
            "host": lane(repeat=False),
            "device": lane(repeat=True),
            "drafts": lane(repeat=False, draft=DRAFT),
        }
        self._race = Race(shared.device)

    def run(self, rounds: int, beat: Beat) -> None:
        """Fill every lane with as many texts as will be under way, then let them tick in turn."""
        for name, ready in self._lanes.items():
            for _ in range(self._frames):
                ready.tick()
            ready.finished.clear()
            ready.texts.clear()
            self._race.add(name, ready.tick)
        self._race.run(max(rounds, self._frames), beat)

    def gains(self) -> list[Gain]:
        """None before the first complete round."""
        if not self._race.rounds:
            return []
        return [
            _gain(self._race, "greedy steps fed on the device", "tick with text", "host", "device"),
            _gain(self._race, "drafts from the last text of the kind", "tick with text", "host", "drafts"),
        ]

    def speculation(self) -> dict[str, Any] | None:
        """What drafts save; None before the first complete round."""
        if not self._race.rounds:
            return None
        drafts, host = self._lanes["drafts"], self._lanes["host"]
        return {
            "draft": DRAFT,
            "tokens_per_step": drafts.tokens_per_step(),
            "tokens_per_step_without": host.tokens_per_step(),
            "same_texts": set(drafts.texts) == set(host.texts) == set(self._lanes["device"].texts),
        }
