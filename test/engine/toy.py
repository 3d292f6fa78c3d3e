# SPDX-License-Identifier: Apache-2.0
"""A model with known results that detects every misuse of its slots.

The toy, its pure functions (`prefix_of`, `logits_of`, `actions_of`), the reference text made from them
without slots or engine (`recite`), and small builders. No test.

The slots are real memory: `encode` writes the prefix into one, `extend` writes each row's token at
`write_at` and reads everything it answers from back out of the pools. So a slot freed too early,
an overwritten prefix, a row too many or a place never written shows as an error or a wrong token.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from oxygen_ros.actions import joint_space
from oxygen_ros.engine import (
    Engine,
    FinishReason,
    Session,
    StartedTick,
    TextTask,
    TickReport,
    make_engine,
)
from oxygen_ros.engine.noise import draw_noise, draw_uniform
from oxygen_ros.engine.sampling import choose_sampled
from oxygen_ros.models.interface import Capacity, ExpertSpec, Guide, Model, ModelSpec, Prefix, Rows
from oxygen_ros.observation import Observation

EOS = 0
# Some pieces hold two letters, so that a stop text may begin inside a token and end in another.
PIECES = ("", "a", "b", "c", "d", "e", "f", "g", "h", "ab", "bc", "de", " ", ".", "!", "?")
ADAPTERS = ("plain", "terse")
UNWRITTEN = -1
POSITION_GAP = 3  # the first position after a prefix is not its length: engines must not assume it
_LOGITS = np.random.Generator(np.random.Philox(key=7)).standard_normal((4093, len(PIECES)), dtype=np.float32)
_LOGITS *= 2

EXPERT = ExpertSpec("arm", joint_space(("lift", "turn")), horizon=4, width=3, step=0.1, denoise_steps=2)
# A second one on the same prefix, on request.
BASE = ExpertSpec("base", joint_space(("turn",)), horizon=2, width=1, step=0.5, denoise_steps=1)
SPEC = ModelSpec(
    family="toy",
    cameras=("top",),
    image_size=(2, 2),
    joints=("lift", "turn"),
    experts=(EXPERT, BASE),
    eos_ids=(EOS,),
    feedback=("memory", "subtask"),
)
MAX_PREFIX = 8


class ToyError(AssertionError):
    """The engine used the toy against the interface."""


def prefix_of(observation: Observation) -> NDArray[np.int64]:
    """The prefix of an observation: 3..7 numbers from its content (never its stamp), a checksum last."""
    fed = observation.feedback
    words = f"{observation.instruction}|{fed.get('memory', '')}|{fed.get('subtask', '')}"
    seed = _hash(observation.images["top"].tobytes(), observation.joints.tobytes(), words.encode())
    body = [_hash(seed.to_bytes(4, "big"), bytes([i])) for i in range(2 + seed % 5)]
    return np.array([*body, _checksum(np.array(body, dtype=np.int64))], dtype=np.int64)


def _checksum(body: NDArray[np.int64]) -> int:
    return _hash(body.tobytes())


def _hash(*parts: bytes) -> int:
    """32 bits that depend on every byte."""
    return int.from_bytes(hashlib.blake2b(b"/".join(parts), digest_size=4).digest(), "big")


def logits_of(
    prefix: NDArray[np.int64], suffix: NDArray[np.int64], position: int, adapter: int
) -> NDArray[np.float32]:
    """Logits [vocabulary] after the last token of `suffix`, from all that may matter."""
    context = _hash(prefix.tobytes(), suffix.tobytes(), f"{position}/{adapter}".encode())
    chosen: NDArray[np.float32] = _LOGITS[context % len(_LOGITS)]
    return chosen


def actions_of(prefix: NDArray[np.int64], noise: torch.Tensor) -> torch.Tensor:
    """Actions [H, D] from a prefix and noise [H, D]."""
    return noise * 0.5 + float(prefix[-1] % 1000) / 1000


def tokens_of(text: str) -> list[int]:
    """One token a letter, any letter: ids 1..vocabulary-1."""
    return [1 + ord(letter) % (len(PIECES) - 1) for letter in text]


def text_of(ids: Sequence[int]) -> str:
    return "".join(PIECES[i] for i in ids)


def chunk_of(observation: Observation, seed: int = 0) -> NDArray[np.float64]:
    """The chunk [H, A] that `Engine.act` must give, bit for bit."""
    noise = torch.from_numpy(draw_noise(seed, observation.stamp, (EXPERT.horizon, EXPERT.width)))
    return actions_of(prefix_of(observation), noise)[:, :2].double().numpy() + observation.joints


class Recital(NamedTuple):
    """A text run alone to its own end; `text` is cut at a stop."""

    tokens: tuple[int, ...]
    reason: FinishReason
    text: str


def recite(observation: Observation, task: TextTask) -> Recital:
    """The text of a task by full recompute: no slot, no cache, no engine, one token after the other."""
    prefix = prefix_of(observation)
    adapter = ADAPTERS.index(task.adapter) + 1 if task.adapter else 0
    prompt, tokens = tokens_of(task.text), list[int]()
    while True:
        suffix = np.array(prompt + tokens, dtype=np.int64)
        logits = logits_of(prefix, suffix, len(prefix) + POSITION_GAP + len(suffix) - 1, adapter)
        token = int(logits.argmax())
        if not task.is_greedy:
            number = draw_uniform(task.seed, observation.stamp, task.kind, len(tokens))
            knobs = [torch.tensor([x]) for x in (task.temperature, task.top_p, number)]
            token = int(choose_sampled(torch.from_numpy(logits)[None], *knobs))
        if token == EOS:
            return Recital(tuple(tokens), FinishReason.EOS, text_of(tokens))
        tokens.append(token)
        text = text_of(tokens)
        places = [text.find(stop) for stop in task.stop if stop in text]
        if places:
            return Recital(tuple(tokens), FinishReason.STOP, text[: min(places)])
        if len(tokens) == task.max_tokens:
            return Recital(tuple(tokens), FinishReason.LENGTH, text)


# -- the model -----------------------------------------------------------------------------------


class ToyModel(Model):
    """The toy. `before[method]` is called first in each method; `calls` counts them."""

    def __init__(self) -> None:
        self.spec = SPEC
        self.device = torch.device("cpu")
        self.calls: Counter[str] = Counter()
        self.before: dict[str, Callable[[], None]] = {}
        self.steps: list[int] = []  # rows of every extend
        self.guides: list[Guide | None] = []  # of every denoise
        self._engine: Engine | None = None

    def watch(self, engine: Engine) -> None:
        """From now on a read of a slot that is not held is an error."""
        self._engine = engine

    def allocate(self, capacity: Capacity) -> None:
        self.capacity = capacity
        self.prefixes = np.full((capacity.prefixes, MAX_PREFIX), UNWRITTEN, dtype=np.int64)
        self.lengths = np.zeros(capacity.prefixes, dtype=np.int64)
        self._complete = [False] * capacity.prefixes
        self.suffixes = np.full((capacity.suffixes, capacity.suffix_tokens), UNWRITTEN, dtype=np.int64)
        self._parents: dict[int, bytes] = {}  # suffix slot -> the prefix it continues

    def process(self, observation: Observation) -> NDArray[np.int64]:
        self._enter("process")
        if "top" not in observation.images:
            raise ValueError('camera "top" is missing')
        return prefix_of(observation)

    def encode(self, inputs: Any, slot: int) -> Prefix:
        self._enter("encode")
        self._expect_held("prefix", slot)
        self._complete[slot] = False
        self.prefixes[slot] = UNWRITTEN
        self.prefixes[slot, : len(inputs)] = inputs
        self.lengths[slot] = len(inputs)
        return Prefix(len(inputs), len(inputs) + POSITION_GAP)

    def denoise(
        self, slot: int, noise: torch.Tensor, guide: Guide | None = None, expert: int = 0
    ) -> torch.Tensor:
        self._enter("denoise")
        self.guides.append(guide)
        shape = (self.spec.experts[expert].horizon, self.spec.experts[expert].width)
        if any(
            tensor.shape != shape for tensor in (noise, *([guide.previous, guide.weights] if guide else ()))
        ):
            raise ToyError(f"expert {expert} is given noise or a guide of another's shape")
        actions = actions_of(self._read_prefix(slot), noise)
        return actions if guide is None else actions + guide.weights * (guide.previous - actions)

    def complete(self, slot: int) -> None:
        self._enter("complete")
        self._read_prefix(slot)
        if self._complete[slot]:
            raise ToyError(f"prefix {slot} is completed twice")
        self._complete[slot] = True

    def fork(self, slot: int, suffix_slot: int) -> None:
        self._enter("fork")
        self._expect_held("suffix", suffix_slot)
        if not self._complete[slot]:
            raise ToyError(f"prefix {slot} is forked before it is complete")
        self._parents[suffix_slot] = self._read_prefix(slot).tobytes()
        self.suffixes[suffix_slot] = UNWRITTEN

    def extend(self, rows: Rows) -> torch.Tensor:
        self._enter("extend")
        self._check(rows)
        self.steps.append(rows.count)
        token, position, _, suffix, write_at, adapter, wants = rows.block.numpy()
        for row in range(rows.count):
            self.suffixes[suffix[row], write_at[row]] = token[row]
        logits = np.empty((rows.count, len(PIECES)), dtype=np.float32)
        for slot, first, last in rows.prefix_spans:
            prefix = self._read_prefix(slot)
            for row in range(first, last):
                if prefix.tobytes() != self._parents[suffix[row]]:
                    raise ToyError(f"prefix {slot} no longer holds what suffix {suffix[row]} continues")
                seen = self.suffixes[suffix[row], : write_at[row] + 1]
                if (seen == UNWRITTEN).any():
                    raise ToyError(f"row {row} reads places of suffix {suffix[row]} never written: {seen}")
                logits[row] = logits_of(prefix, seen, int(position[row]), int(adapter[row]))
        return torch.from_numpy(logits[wants[: rows.wanted]])

    def unprocess(
        self, actions: torch.Tensor, observation: Observation, expert: int = 0
    ) -> NDArray[np.float64]:
        if expert == 1:
            return actions.double().numpy() + observation.joints[1]
        return actions[:, :2].double().numpy() + observation.joints

    def normalize(
        self, actions: NDArray[np.float64], observation: Observation, expert: int = 0
    ) -> torch.Tensor:
        spec = self.spec.experts[expert]
        padded = torch.zeros(spec.horizon, spec.width)
        now = observation.joints if expert == 0 else observation.joints[1:]
        padded[:, : len(now)] = torch.from_numpy(actions - now)
        return padded

    def tokenize(self, template: str, words: Mapping[str, str] | None = None) -> list[int]:
        for name, said in (words or {}).items():
            template = template.replace(f"{{{name}}}", said)
        return tokens_of(template)

    def detokenize(self, ids: Sequence[int]) -> str:
        self._enter("detokenize")
        return text_of(ids)

    @property
    def adapters(self) -> tuple[str, ...]:
        return ADAPTERS

    def pool_bytes(self) -> int:
        return self.prefixes.nbytes + self.suffixes.nbytes

    def _enter(self, method: str) -> None:
        self.calls[method] += 1
        if method in self.before:
            self.before[method]()

    def _expect_held(self, pool: str, slot: int) -> None:
        slots = {"prefix": self.capacity.prefixes, "suffix": self.capacity.suffixes}[pool]
        if not 0 <= slot < slots:
            raise ToyError(f"{pool} {slot} is outside 0..{slots - 1}")
        if self._engine is not None:
            counts = {"prefix": self._engine.prefixes, "suffix": self._engine.suffixes}[pool]
            if counts.references(slot) < 1:
                raise ToyError(f"{pool} {slot} is used while free")

    def _read_prefix(self, slot: int) -> NDArray[np.int64]:
        self._expect_held("prefix", slot)
        prefix: NDArray[np.int64] = self.prefixes[slot, : self.lengths[slot]]
        if len(prefix) == 0 or prefix[-1] != _checksum(prefix[:-1]):
            raise ToyError(f"prefix {slot} holds no whole prefix")
        return prefix

    def _check(self, rows: Rows) -> None:
        if not 1 <= rows.count <= self.capacity.max_rows:
            raise ToyError(f"{rows.count} rows, capacity {self.capacity.max_rows}")
        token, _, prefix, suffix, write_at, adapter, wants = rows.block[:, : rows.count].tolist()
        spans, wanted = rows.prefix_spans, wants[: rows.wanted]
        faults = {
            "spans do not match prefix_slot": not _do_spans_match(spans, prefix),
            "spans do not match suffix_slot": not _do_spans_match(rows.suffix_spans, suffix),
            "rows of one prefix stand apart": len({slot for slot, _, _ in spans}) != len(spans),
            "rows of one suffix out of order": any(
                write_at[first:last] != list(range(write_at[first], write_at[first] + last - first))
                for _, first, last in rows.suffix_spans
            ),
            "write_at outside the slot": min(write_at) < 0 or max(write_at) >= self.capacity.suffix_tokens,
            "wrong longest": rows.longest != max(write_at) + 1,
            "two rows write one place": len({*zip(suffix, write_at, strict=True)}) != rows.count,
            "no such token": min(token) < 0 or max(token) >= len(PIECES),
            "no such adapter": min(adapter) < 0 or max(adapter) > len(ADAPTERS),
            "wrong wanted rows": rows.wanted > rows.count or sorted(set(wanted)) != wanted,
        }
        if any(faults.values()):
            found = ", ".join(words for words, is_wrong in faults.items() if is_wrong)
            raise ToyError(f"{found}: spans {spans}, longest {rows.longest}, wanted {wanted}, {rows.block}")
        for slot in suffix:
            self._expect_held("suffix", slot)


def _do_spans_match(spans: Sequence[tuple[int, int, int]], slots: list[int]) -> bool:
    ends = [0, *(last for _, _, last in spans)]
    named = [slot for slot, first, last in spans for _ in range(first, last)]
    return named == slots and [first for _, first, _ in spans] == ends[:-1]


class FakeClock:
    """Seconds that pass only on request."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def memory(**limits: Any) -> TextTask:
    return TextTask(kind="memory", prompt="Memory: ", **limits)


def narration(**limits: Any) -> TextTask:
    return TextTask(kind="narration", prompt="Narration: ", **limits)


def subtask(**limits: Any) -> TextTask:
    return TextTask(kind="subtask", prompt="Subtask: ", **limits)


def answer(question: str = "", template: str = "Question: {question} Answer: ", **limits: Any) -> TextTask:
    """An answer; without a question the task of its kind."""
    words = {"question": question} if question else {}
    return TextTask(kind="answer", prompt=template, words=words, priority=10, **limits)


def see(stamp: int, content: int = 0, instruction: str = "stack", memory: str = "") -> Observation:
    """An observation; equal `content` means equal prefixes whatever the stamp."""
    image = np.full((2, 2, 3), content, dtype=np.uint8)
    fed = {"memory": memory} if memory else {}
    return Observation(stamp, {"top": image}, np.array([0.25, -0.5]), instruction, fed)


def build(
    mode: str = "oxygen",
    *,
    prefixes: int = 8,
    suffixes: int = 8,
    suffix_tokens: int = 64,
    max_rows: int = 64,
    model: ToyModel | None = None,
    **options: Any,
) -> tuple[Engine, ToyModel]:
    """An engine over a fresh toy (or a given one) that watches it."""
    model = model or ToyModel()
    engine = make_engine(mode, model, Capacity(prefixes, suffixes, suffix_tokens, max_rows), **options)
    model.watch(engine)
    return engine, model


def run_tick(
    session: Session,
    observed: Observation,
    publish: Callable[[StartedTick], None] = lambda _: None,
    due: float | None = None,
    stamp: int | None = None,
) -> TickReport:
    """One tick over an observation's images and joints; the words are the session's."""
    at = observed.stamp if stamp is None else stamp
    started = session.begin(at, observed.images, observed.joints)
    publish(started)
    return session.finish(due)
