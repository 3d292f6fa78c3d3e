# SPDX-License-Identifier: Apache-2.0
"""Shards to tensors, in the served model's format.

Draws a batch: its frames, the memory in each prompt, the text asked. Everything follows from (seed, step), so
a stopped run continues unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.demo.sim import words
from oxygen_ros.demo.sim.geometry import COLORS
from oxygen_ros.demo.sim.task import Task
from oxygen_ros.demo.sim.words import Phase
from oxygen_ros.demo.training import labels
from oxygen_ros.demo.training.auxiliary_heads import Projector, target_of
from oxygen_ros.demo.training.checkpoints import Base
from oxygen_ros.demo.training.forward import Tensors
from oxygen_ros.demo.training.records import NOT_YET, PHASES, Shard, read_shards
from oxygen_ros.models.processing import bin_state
from oxygen_ros.observation import Observation

LAGS: Final = (4, 12)
"""Range of a memory's age in the prompt [steps]."""
SERVED_LAG: Final = 4
"""The demo's: asked in one tick, read in the next. Most are as old as that: the text has no age."""
CORRUPTED: Final = 0.13
"""Part of the memories that are wrong on purpose."""
KINDS: Final = ("memory", "narration", "answer")
_ODDS: Final = np.array([{"reach": 1.6, "grasp": 2.5, "drop": 2.0, "done": 0.6}.get(p, 0.9) for p in PHASES])
"""How often a frame of each phase is drawn: finding and grasping is hard, resting is not."""
UNTAUGHT: Final = 0.025
COVERED: Final = 0.025
"""Parts of the frames with an instruction never taught, with a covered camera: hold still and report it."""
_CPU: Final = torch.device("cpu")
_SHARES: Final = (0.5, 0.25, 0.25)


@dataclass(frozen=True, slots=True)
class Batch:
    """Tensors for `forward.run`, and their targets.

    actions:  [B, H, D] normalized; weights [B, H] of their errors
    spots:    [B, cameras, patches, colors, 5]
    target:   int64 [B, cameras], of `pointing_loss`
    """

    inputs: Tensors
    noise: torch.Tensor
    actions: torch.Tensor
    weights: torch.Tensor
    spots: torch.Tensor
    target: torch.Tensor


class Dataset:
    """All shards of a folder; `refresh` adds new ones."""

    def __init__(self, folder: Path, base: Base, match: str | tuple[str, ...] = "") -> None:
        """match: only shards whose names start so (or with one of these)."""
        self._folder, self._match = folder, match
        self._base = base
        self._config = config = base.config
        grid = config.vision.image_size // config.vision.patch_size
        self._projector = Projector(config.cameras, grid)
        self._shards: dict[str, Shard] = {}
        self._spots: dict[str, NDArray[np.float16]] = {}
        self._targets: dict[str, NDArray[np.int64]] = {}
        self._rows: NDArray[np.int64] = np.zeros((0, 2), np.int64)
        self._prompts: dict[tuple[str, str], NDArray[np.int64]] = {}
        self._known: dict[str, list[int]] = {}
        size = config.vision.image_size
        self._blank = np.zeros((size, size, 3), np.uint8)
        self.refresh()

    def __len__(self) -> int:
        return len(self._rows)

    def refresh(self) -> int:
        """Look for new shards; returns how many frames there are now."""
        for shard in read_shards(self._folder):
            if shard.name in self._shards or not shard.name.startswith(self._match):
                continue
            if shard.frames.shape[2] != self._config.vision.image_size:
                raise ValueError(
                    f"shard {shard.name} has pictures of {shard.frames.shape[2]} px, the model wants "
                    f"{self._config.vision.image_size}: collect it again"
                )
            spots = [
                self._projector.project(r["joints"].astype(float), r["blocks"].astype(float))
                for r in shard.records
            ]
            self._targets[shard.name] = np.stack([self._target(r) for r in shard.records])
            self._shards[shard.name] = shard
            self._spots[shard.name] = np.stack(spots).astype(np.float16)
        odds = [_ODDS[s.records["phase"]] * (s.records["valid"] > 0) for s in self._shards.values()]
        self._odds = np.cumsum(np.concatenate(odds)) if odds else np.zeros(0)
        self._rows = np.array(
            [(s, i) for s, shard in enumerate(self._shards.values()) for i in range(len(shard.records))],
            np.int64,
        ).reshape(-1, 2)
        return len(self._rows)

    def _target(self, record: np.void) -> NDArray[np.int64]:
        point = target_of(record)
        if point is None:
            return np.zeros(len(self._config.cameras), np.int64)
        return self._projector.locate(record["joints"].astype(float), point)

    def record(self, row: int) -> np.void:
        """The record of frame `row`."""
        shard, i = self._rows[row]
        record: np.void = list(self._shards.values())[shard].records[i]
        return record

    def changed(self, row: int, lag: int) -> bool:
        """Whether the memory of frame `row` is another one than `lag` frames earlier."""
        inside = self.record(row)["inside"]
        return int(inside[lag]) not in (int(inside[0]), NOT_YET)

    def draw(self, size: int, draws: int, rng: np.random.Generator, *, kind: str = "") -> Batch:
        """A random batch; `kind` of the text, "" for any."""
        rows = np.searchsorted(self._odds, rng.random(size) * self._odds[-1], side="right")
        return self.make(rows, draws, rng, kind or str(rng.choice(KINDS, p=_SHARES)), bad=1.0)

    def draw_views(self, size: int, rng: np.random.Generator) -> tuple[torch.Tensor, torch.Tensor]:
        """Pictures [B, cameras, 3, S, S] and their spots, as in `Batch`."""
        shards = list(self._shards.values())
        chosen = self._rows[rng.integers(len(self._rows), size=size)]
        where = [(shards[s], int(i)) for s, i in chosen]
        spots = np.stack([self._spots[shard.name][i] for shard, i in where])
        frames = np.stack([shard.frames[i] for shard, i in where])
        return to_images(frames, rng, soften=True), torch.from_numpy(spots).float()

    def make(
        self,
        rows: NDArray[np.int64],
        draws: int,
        rng: np.random.Generator,
        kind: str,
        corrupted: float = CORRUPTED,
        soften: bool = True,
        lag: int | None = None,
        bad: float = 0.0,
    ) -> Batch:
        """The batch of frames `rows`, with `draws` noises each and a text of `kind`.

        lag: age of the memories in the prompt [frames]; None draws it
        bad: as often as `UNTAUGHT` and `COVERED` say, times this
        """
        shards = list(self._shards.values())
        where = [(shards[s], int(i)) for s, i in self._rows[rows]]
        records = [shard.records[i] for shard, i in where]
        frames = np.stack([shard.frames[i] for shard, i in where])
        prompts, texts, starts, trusted = [], [], [], []
        still = np.zeros(len(rows), bool)
        for i, record in enumerate(records):
            instruction, memory, trust, said = self._situation(record, rng, corrupted, lag, bad)
            if said == words.BLIND:
                frames[i, rng.integers(frames.shape[1])] = rng.integers(0, 90) * (rng.random() < 0.5)
            still[i] = bool(said)
            prompts.append(self._prompt(record, instruction, memory))
            suffix, text = self._text(record, kind, rng, said)
            texts.append([*suffix, *text, self._config.eos_id])
            starts.append(len(suffix))
            trusted.append(trust)
        actions, weights = self._actions(records, np.array(trusted), still)
        noise = torch.from_numpy(rng.standard_normal((len(rows), draws, *actions.shape[1:]), np.float32))
        time = torch.from_numpy(rng.beta(1.5, 1.0, (len(rows), draws)).astype(np.float32)) * 0.999 + 0.001
        t = time[..., None, None]
        prompt, prompt_length = _pad(prompts, self._config.pad_id)
        text_tokens, text_length = _pad(texts, self._config.pad_id)
        inputs = Tensors(
            images=to_images(frames, rng, soften),
            prompt=prompt,
            prompt_length=prompt_length,
            text=text_tokens,
            text_length=text_length,
            text_prompt=torch.tensor(starts),
            noisy=t * noise + (1 - t) * actions[:, None],
            time=time,
        )
        spots = np.stack([self._spots[shard.name][i] for shard, i in where])
        target = np.stack([self._targets[shard.name][i] for shard, i in where])
        target[still] = 0
        truth = torch.from_numpy(spots).float(), torch.from_numpy(target)
        return Batch(inputs, noise, actions, weights, *truth)

    def _situation(
        self, record: np.void, rng: np.random.Generator, corrupted: float, lag: int | None, bad: float
    ) -> tuple[str, str, bool, str]:
        """Instruction, memory in the prompt, whether to act on it, and what is wrong ("" if nothing)."""
        memory, trust = _memory_in_prompt(record, rng, corrupted, lag)
        chance = rng.random() if bad else 1.0
        if chance < bad * UNTAUGHT:
            return (
                labels.untaught_instruction(rng),
                memory if rng.random() < 0.5 else "",
                True,
                words.UNTAUGHT,
            )
        wrong = words.BLIND if chance < bad * (UNTAUGHT + COVERED) else ""
        return task_of(record).instruction, memory, trust, wrong

    def _prompt(self, record: np.void, instruction: str, memory: str) -> list[int]:
        """The served prompt: tokenized once for each pair of texts, then with this record's state."""
        joints = record["joints"].astype(np.float64)
        said = (instruction, memory)
        if said not in self._prompts:
            views = {self._config.cameras[0]: self._blank}
            seen = Observation(0, views, joints, instruction, {"memory": memory} if memory else {})
            self._prompts[said] = self._base.processor.process(seen, _CPU, torch.float32).tokens.numpy()
        prompt = self._prompts[said].copy()
        first = self._base.raw["state_bin_base"]
        prompt[prompt >= first] = bin_state(self._base.state.normalize(joints)) + first
        tokens: list[int] = prompt.tolist()
        return tokens

    def _text(
        self, record: np.void, kind: str, rng: np.random.Generator, wrong: str
    ) -> tuple[list[int], list[int]]:
        """Tokens of the prompt suffix and of the true sentence: what is `wrong`, or "" for a memory of it."""
        suffix, sentence = sentence_of(record, kind, rng)
        if wrong == words.UNTAUGHT or (wrong and kind != "memory"):
            sentence = "" if kind == "memory" else wrong
        return self._tokens(suffix), self._tokens(sentence)

    def _tokens(self, text: str) -> list[int]:
        if text not in self._known:
            self._known[text] = self._base.processor.tokenizer.tokenize(text)
        return self._known[text]

    def _actions(
        self, records: Sequence[np.void], trusted: NDArray[np.bool_], still: NDArray[np.bool_]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Chunks and their weights; where the arm is to be `still`, it stays as it is."""
        targets = np.stack([r["targets"] for r in records]).astype(np.float64)
        joints = np.stack([r["joints"] for r in records]).astype(np.float64)
        targets[still, :, :6] = joints[still, None, :6]
        targets[still, :, 6] = targets[still, :1, 6]  # the fingers stay closed on what they hold
        actions = self._base.normalize_actions(targets, joints)
        valid = np.where(still, targets.shape[1], [r["valid"] for r in records])
        steps = np.arange(targets.shape[1])
        # What is executed before the next chunk comes counts most.
        weights = (steps < valid[:, None]) * np.where(steps < 8, 1.0, 0.4) * trusted[:, None]
        return torch.from_numpy(actions.astype(np.float32)), torch.from_numpy(weights.astype(np.float32))


def task_of(record: np.void) -> Task:
    return Task(COLORS[record["colour"]], int(record["count"]))


def sentence_of(record: np.void, kind: str, rng: np.random.Generator) -> tuple[str, str]:
    """Prompt suffix and true sentence of a record."""
    task, inside = task_of(record), int(record["inside"][0])
    phase, acted = Phase(PHASES[record["phase"]]), COLORS[record["acted"]]
    if kind == "memory":
        return labels.MEMORY_PROMPT, words.memory(task, inside)
    if kind == "narration":
        return labels.NARRATION_PROMPT, words.narration(phase, acted)
    question = str(rng.choice(labels.QUESTIONS))
    return (
        labels.ANSWER_PROMPT.replace("{question}", question),
        labels.answer(question, task, inside, phase, acted),
    )


def _memory_in_prompt(
    record: np.void, rng: np.random.Generator, corrupted: float, lag: int | None
) -> tuple[str, bool]:
    """The memory of a few steps ago, sometimes a wrong one; and whether to act on it.

    A wrong memory of whether the work is done would teach the arm to ignore right ones; it
    trains the text only, for which the picture has the truth.
    """
    task = task_of(record)
    if lag is None:
        lag = SERVED_LAG if rng.random() < 0.85 else int(rng.integers(*LAGS))
    inside = int(record["inside"][lag])
    if rng.random() < corrupted:
        truth = int(record["inside"][0])
        memory, claim = labels.wrong_memory(task, truth, rng)
        # A memory that lacks a block is acted on only while its fall is visible: else any empty hand
        # would mean that one was dropped.
        seen = int(record["inside"][LAGS[1]]) != truth
        if claim >= truth or seen:
            return memory, (claim >= task.count) == (truth >= task.count)
    return ("" if inside == NOT_YET else words.memory(task, inside)), True


def _pad(rows: Sequence[list[int]], pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    lengths = torch.tensor([len(row) for row in rows])
    out = torch.full((len(rows), int(lengths.max())), pad, dtype=torch.int64)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(row)
    return out, lengths


# -- pictures ------------------------------------------------------------------------------------


def to_images(frames: NDArray[np.uint8], rng: np.random.Generator, soften: bool) -> torch.Tensor:
    """uint8 [B, cameras, S, S, 3] to [B, cameras, 3, S, S] in -1..1.

    Some are softened: a camera's larger picture, made smaller, has no hard edges.
    """
    images = torch.from_numpy(frames).permute(0, 1, 4, 2, 3).float() / 127.5 - 1
    if not soften:
        return images
    size, channels = len(frames), images.shape[1] * 3
    flat = images.flatten(1, 2)
    kernel = torch.tensor([0.25, 0.5, 0.25])
    kernel = (kernel[:, None] * kernel).expand(channels, 1, 3, 3)
    soft = torch.nn.functional.conv2d(
        torch.nn.functional.pad(flat, (1, 1, 1, 1), mode="replicate"), kernel, groups=channels
    )
    share = torch.from_numpy(rng.uniform(-0.7, 1.0, size).clip(0).astype(np.float32))[:, None, None, None]
    bright = torch.from_numpy(rng.normal(0.0, 0.03, size).astype(np.float32))[:, None, None, None]
    return ((1 - share) * flat + share * soft + bright).view_as(images)
