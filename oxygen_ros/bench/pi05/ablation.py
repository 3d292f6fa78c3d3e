# SPDX-License-Identifier: Apache-2.0
"""What each lossless speed-up of pi0.5 saves: the same computation without it and with it, in turn.

    the action path   from `plain` to the served one, one switch after the other
    a decode step     prefixes read in their pools against keys gathered for every row; all texts in one step
                      against one after the other
    a tick's text     greedy steps fed on the device; drafts from the last text of a kind
    device programs   captured (CUDA graphs) against launched kernel by kernel: on GPUs

Beside each component is the time of its linear layers alone. The tests show that all of them give one result.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch

from oxygen_ros.bench.components import fill_rows, fill_steady_rows
from oxygen_ros.bench.engine_run import EngineRun, tokens_per_step
from oxygen_ros.bench.floors import make_run
from oxygen_ros.bench.pi05.plain import Improvements, PlainActionPath
from oxygen_ros.bench.setup import BenchShared
from oxygen_ros.bench.timing import InterleavedTimer, Progress
from oxygen_ros.engine import Budget
from oxygen_ros.models.interface import Capacity, Rows
from oxygen_ros.models.layers import Rotary
from oxygen_ros.models.lora import TextAdapters
from oxygen_ros.models.pi05.model import Pi05
from oxygen_ros.models.pi05.network import Network, random_network
from oxygen_ros.models.pi05.passes import Passes
from oxygen_ros.models.pool import KvPool, RowView

ROWS = (1, 6, 30)
TOKENS, STEPS, DRAFT = 30, 5, 8
# Improvement of the plain action path -> its name in the table, in the order they are switched on.
LADDER = {
    "packed": "packed prefix: no padding, no masked cameras",
    "one_vision_batch": "one vision batch",
    "short_last_block": "the last block stops at its keys and values",
    "fused": "fused weights",
    "modulation_once": "modulation computed once",
    "static_cache": "denoise without growing or copying a cache",
}
LAID_OUT = "weights laid out once, GELU inside the product"
POOLS = "pools, heads that share keys read them once, norms in fewer passes"


@dataclass(frozen=True, slots=True)
class Gain:
    """One speed-up. before, after [ms]; ratio: median over the rounds of after / before."""

    name: str
    of: str
    before: float
    after: float
    ratio: float

    @classmethod
    def of_timer(cls, timer: InterleavedTimer, name: str, of: str, before: str, after: str) -> Gain:
        return cls(name, of, timer.ms(before), timer.ms(after), timer.ratio(after, before))


def ablate(
    shared: BenchShared,
    dtype: str,
    *,
    rounds: int,
    found: list[dict[str, Any]],
    progress: Progress = lambda _: None,
) -> None:
    """Append the JSON's `ablation` entry of one dtype to `found`: speed-ups, components against their floors,
    speculation. Interrupted, it has the complete rounds."""
    timer = InterleavedTimer(shared.device)
    model, network = shared.model(dtype), shared.weights[dtype]
    assert isinstance(model, Pi05)
    assert isinstance(network, Network)
    model.allocate(_capacity(ROWS[-1]))
    ladder = _add_action_path(timer, shared, network, model)
    floors = shared.preset.floors(network, shared.scene.prefix_tokens)
    assert floors is not None
    timer.add("prefill, floor", make_run(floors.prefill))
    timer.add("denoise, floor", make_run(floors.denoise))
    for rows in ROWS:
        timer.add(f"decode {rows}, floor", make_run(floors.decode(rows)))
    _add_decode(timer, shared, model)
    _add_device_programs(timer, shared, dtype)
    texts: TextSpeedUps | None = None
    try:
        timer.run(rounds, progress)
        texts = TextSpeedUps(shared, dtype)
        texts.run(rounds, progress)
    finally:
        if timer.rounds:
            gains = _gains(timer, ladder, shared.device) + (texts.gains() if texts else [])
            found.append(
                {
                    "dtype": dtype,
                    "clock": timer.clock,
                    "rounds": timer.rounds,
                    "gains": [asdict(gain) for gain in gains],
                    "floors": _compare_floors(timer),
                    "speculation": texts.speculation() if texts else None,
                }
            )


# -- single calls --------------------------------------------------------------------------------


def _capacity(texts: int) -> Capacity:
    return Capacity(prefixes=texts + 1, suffixes=texts, suffix_tokens=TOKENS + 2 + DRAFT, max_rows=64)


def _gains(timer: InterleavedTimer, ladder: list[str], device: torch.device) -> list[Gain]:
    for rung in (*ladder, "served"):
        timer.sum(f"chunk, {rung}", f"prefill, {rung}", f"denoise, {rung}")
    steps = [*zip(ladder, [*ladder[1:], "served"], [*ladder[1:], POOLS], strict=True)]
    steps.append((ladder[0], "served", "all of them"))
    compared = [(name, "action chunk", f"chunk, {old}", f"chunk, {new}") for old, new, name in steps]
    most = f"decode {ROWS[-1]}"
    compared.append(("pools without gathering", f"decode of {ROWS[-1]}", "gathered", most))
    compared.append(("one step for all texts", f"decode of {ROWS[-1]}", "one by one", most))
    if device.type == "cuda":
        for what in ("prefill", "denoise", most):
            compared.append(("device programs", what, f"{what}, launched", f"{what}, captured"))
    return [Gain.of_timer(timer, *names) for names in compared]


def _compare_floors(timer: InterleavedTimer) -> list[dict[str, Any]]:
    works = {"prefill": "prefill, served", "denoise": "denoise, served"}
    works |= {f"decode {rows}": f"decode {rows}" for rows in ROWS}
    return [
        {
            "name": name,
            "ms": timer.ms(work),
            "floor_ms": timer.ms(f"{name}, floor"),
            "ratio": timer.ratio(work, f"{name}, floor"),
        }
        for name, work in works.items()
    ]


def _add_action_path(timer: InterleavedTimer, shared: BenchShared, served: Network, model: Pi05) -> list[str]:
    """Every stage from plain to served; returns the stages before the served one."""
    # As in a checkpoint. A second copy only where the served one is packed.
    network = served
    if served.is_packed:
        network = random_network(served.config, shared.setup.seed, served.embedding.dtype, shared.device)
    inputs = model.process(shared.scene.at(0))
    shape = (network.config.horizon, network.config.action_dim)
    noise = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(shared.device)
    on = Improvements()
    rungs = {"plain": PlainActionPath(network, on)}
    for switch, name in LADDER.items():
        on = replace(on, **{switch: True})
        rungs[name] = PlainActionPath(network, on)
    rungs[LAID_OUT] = PlainActionPath(served, on)
    for rung, path in rungs.items():
        ready = path.prefill(inputs)
        timer.add(f"prefill, {rung}", partial(path.prefill, inputs))
        timer.add(f"denoise, {rung}", partial(path.denoise, ready, noise))
    timer.add("prefill, served", partial(model.encode, inputs, 0))
    timer.add("denoise, served", partial(model.denoise, 0, noise))
    return list(rungs)


def _add_decode(timer: InterleavedTimer, shared: BenchShared, model: Pi05) -> None:
    most, inputs = ROWS[-1], model.process(shared.scene.at(0))
    for slot in range(most):
        prefix = model.encode(inputs, slot)
    for count in ROWS:
        rows = steady_rows(count, prefix.next_position, shared.device)
        timer.add(f"decode {count}", partial(model.extend, rows))
    timer.add("gathered", partial(GatheringPool.passes_of(model).extend, rows))
    singles = one_row_each(rows)
    timer.add("one by one", lambda: [model.extend(single) for single in singles])


def _add_device_programs(timer: InterleavedTimer, shared: BenchShared, dtype: str) -> None:
    if shared.device.type != "cuda":
        return
    most = ROWS[-1]
    for name, is_captured in (("launched", False), ("captured", True)):
        model = shared.model(dtype)
        model.allocate(_capacity(most))
        inputs = model.process(shared.scene.at(0))
        if is_captured and (reason := model.prepare(inputs)):
            raise RuntimeError(reason)
        for slot in range(most):
            prefix = model.encode(inputs, slot)
        expert = model.spec.experts[0]
        noise = torch.randn(expert.horizon, expert.width, device=shared.device)
        rows = steady_rows(most, prefix.next_position, shared.device)
        timer.add(f"prefill, {name}", partial(model.encode, inputs, 0))
        timer.add(f"denoise, {name}", partial(model.denoise, 0, noise))
        timer.add(f"decode {most}, {name}", partial(model.extend, rows))


def steady_rows(count: int, position: int, device: torch.device) -> Rows:
    """One row each of `count` texts, each of a prefix of its own, at ages spread over TOKENS."""
    rows = Rows(count, device)
    fill_steady_rows(rows, (count, count), position, texts=count, tokens=TOKENS)
    return rows


def one_row_each(rows: Rows) -> list[Rows]:
    """The same rows as steps of one row."""
    singles = []
    for column in rows.block[:5, : rows.count].T.tolist():
        singles.append(Rows(1, rows.block.device))
        fill_rows(singles[-1], [tuple(column)])
    return singles


class GatheringPool(KvPool):
    """Attention without `KvPool`'s: every row's keys are gathered, padded to the longest."""

    @classmethod
    def passes_of(cls, model: Pi05) -> Passes:
        """A model's text passes over such a pool, filled as the model's own is."""
        network, pool, c, b = model.network, model.pool, model.config, model.config.backbone
        times = [1.0, 0.1]
        own = cls(
            model.capacity, layers=b.depth, heads=b.heads, kv_heads=b.kv_heads, head_dim=b.head_dim,
            max_prefix=c.max_prefix, workspace=c.horizon, device=model.device, dtype=model.dtype,
        )  # fmt: skip
        own.keys.copy_(pool.keys)
        own.values.copy_(pool.values)
        for slot in range(model.capacity.prefixes):
            held = pool.prefix_places(slot)
            own.open_prefix(slot, held.stop - held.start)
        last = c.max_prefix + model.capacity.suffix_tokens
        rotary = Rotary(b.head_dim, c.rope_base, last, model.device, model.dtype)
        with torch.inference_mode():
            modulation = network.expert.modulate(torch.tensor(times, device=model.device))
        return Passes(network, modulation, TextAdapters(), own, rotary)

    def view(self, rows: Rows) -> RowView:
        live = slice(0, rows.count)
        start = self.suffix_base + rows.suffix_slot[live] * self.suffix_tokens
        base = rows.prefix_slot[live] * self.prefix_stride
        longest = max(
            self.prefix_places(slot).stop - slot * self.prefix_stride for slot, _, _ in rows.prefix_spans
        )
        length = self._lengths_on_device[rows.prefix_slot[live]]
        prefix = torch.arange(longest, device=start.device)
        suffix = torch.arange(rows.longest, device=start.device)
        return RowView(
            place=start + rows.write_at[live],
            runs=[],
            suffix=torch.cat((base[:, None] + prefix, start[:, None] + suffix), dim=1),
            unseen=torch.cat((prefix >= length[:, None], suffix > rows.write_at[live, None]), dim=1),
        )

    def attend_rows(self, layer: int, q: torch.Tensor, view: RowView) -> torch.Tensor:
        assert view.suffix is not None
        assert view.unseen is not None
        keys, values = self.keys[layer][:, view.suffix], self.values[layer][:, view.suffix]
        count, heads, dim = q.shape
        grouped = (q * dim**-0.5).view(count, keys.shape[0], -1, dim).transpose(0, 1)
        scores = (grouped @ keys.mT).masked_fill_(view.unseen[None, :, None], float("-inf"))
        out: torch.Tensor = scores.softmax(dim=-1) @ values
        return out.transpose(0, 1).reshape(count, heads * dim)


# -- whole texts ---------------------------------------------------------------------------------


class TextSpeedUps:
    """Ticks with one text each over a static scene, so that texts repeat; no actions."""

    def __init__(self, shared: BenchShared, dtype: str) -> None:
        self._slots = -(-TOKENS // STEPS) + 2
        capacity = Capacity(self._slots, self._slots, TOKENS + 2 + DRAFT, 64)
        self.runs = {
            name: EngineRun(
                shared, dtype, "oxygen", capacity, Budget(steps=STEPS), scene=shared.still_scene,
                prepared=False, acts=False, repeat_on_device=repeats, draft=draft,
            )
            for name, repeats, draft in (("host", False, 0), ("device", True, 0), ("drafts", False, DRAFT))
        }  # fmt: skip
        self._timer = InterleavedTimer(shared.device)

    def tick(self, name: str) -> None:
        self.runs[name].tick(0, [TOKENS])

    def run(self, rounds: int, progress: Progress) -> None:
        """Fill every run with as many texts as will be under way, then let them tick in turn."""
        for name, run in self.runs.items():
            for _ in range(self._slots):
                self.tick(name)
            run.finished.clear()
            self._timer.add(name, partial(self.tick, name))
        self._timer.run(max(rounds, self._slots), progress)

    def gains(self) -> list[Gain]:
        """None before the first complete round."""
        if not self._timer.rounds:
            return []
        return [
            Gain.of_timer(self._timer, name, "tick with text", "host", after)
            for name, after in (
                ("greedy steps fed on the device", "device"),
                ("drafts from the last text of the kind", "drafts"),
            )
        ]

    def speculation(self) -> dict[str, Any] | None:
        """What drafts save; None before the first complete round."""
        if not self._timer.rounds:
            return None
        texts = {name: run.finished for name, run in self.runs.items()}
        return {
            "draft": DRAFT,
            "tokens_per_step": tokens_per_step(texts["drafts"]) or 0.0,
            "tokens_per_step_without": tokens_per_step(texts["host"]) or 0.0,
            "same_texts": len({frozenset(text.tokens for text in own) for own in texts.values()}) == 1,
        }
