# SPDX-License-Identifier: Apache-2.0
"""The table of the node's parameters, and the check of one value against it. No ROS.

It is the only manual: `ros2 param describe` and `oxygen_node --help` are made from it. declarations.py
declares its rows on a node; settings.py makes typed settings of the values.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from oxygen_ros.engine import MODES, QUESTION, STANDARD_KINDS
from oxygen_ros.robot import joining


class ParameterProblem(ValueError):
    """A parameter that is wrong, missing or unknown; names it, its value and what is allowed."""


@dataclass(frozen=True, slots=True)
class Row:
    """One parameter.

    name:      `<camera>` and `<joint>` stand for the model's camera and joint names, `<kind>` for a text kind
    type:      "bool" | "int" | "double" | "string" | "strings"
    low, high: bounds included, of numbers
    choices:   the allowed strings; () for any
    live:      may be changed while the node runs; all others are read at configure
    read_only: read once, when the node is made
    """

    name: str
    type: str
    default: Any
    description: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    live: bool = False
    read_only: bool = False
    required: bool = False

    @property
    def allowed(self) -> str:
        """What values are allowed, in words."""
        kind = {"int": "an integer", "double": "a number", "bool": "true or false"}.get(self.type)
        if self.choices:
            return "one of " + ", ".join(self.choices)
        if kind is None:
            return "a list of strings" if self.type == "strings" else "a string"
        if self.low is not None and self.high is not None:
            return f"{kind} in {self.low:g} .. {self.high:g}"
        return f"{kind} of {self.low:g} or more" if self.low is not None else kind

    def check(self, value: Any) -> Any:
        """The value in this row's type; an exact integer is accepted for a double.

        Raises ParameterProblem for another type, a value out of range or not among the choices.
        """
        checked = self._convert(value)
        if checked is None:
            raise self._problem(value, f" ({_name_type(value)})")
        if self.type in ("int", "double"):
            low = -math.inf if self.low is None else self.low
            if not low <= checked <= (math.inf if self.high is None else self.high):
                raise self._problem(value)
        if self.choices and checked not in self.choices:
            raise self._problem(value)
        return checked

    def _problem(self, value: Any, note: str = "") -> ParameterProblem:
        return ParameterProblem(f"parameter '{self.name}' is {value!r}{note}; it must be {self.allowed}")

    def _convert(self, value: Any) -> Any:
        if self.type == "double" and type(value) is int and int(float(value)) == value:
            return float(value)
        if self.type == "strings":
            # An empty YAML list arrives without a type.
            items = [] if value is None else value
            is_list = isinstance(items, list | tuple) and all(isinstance(item, str) for item in items)
            return list(items) if is_list else None
        expected = {"bool": bool, "int": int, "double": float, "string": str}[self.type]
        return value if type(value) is expected else None


def _name_type(value: Any) -> str:
    names = {bool: "a bool", int: "an integer", float: "a number", str: "a string", type(None): "no value"}
    return names.get(type(value), "a list")


_GENERAL = (
    Row("model", "string", "", "Folder of the model; package://<package>/<folder> works too.",
        required=True),
    Row("autostart", "bool", True, "Walk to active by itself at start.", read_only=True),
    Row("device", "string", "cpu", 'Torch device the model runs on, such as "cpu" or "cuda:0".'),
    Row("dtype", "string", "float32", "Number format of the weights and caches.",
        choices=("float32", "bfloat16")),
    Row("denoise_steps", "int", 0, "Euler steps of one chunk; 0: what the model was made with.", 0, 1000),
    Row("adapters", "strings", [], "Folders of text adapters (LoRA) to load; named by their folder."),
    Row("expert", "string", "", "Action expert whose chunks are on ~/action_chunk and may be commanded; "
        "empty: the model's first."),
    Row("other_experts", "strings", [], "Action experts that act besides, after the commanding one's chunk "
        "has left; on ~/action_chunk/<name>."),
    Row("torch_threads", "int", 1, "CPU threads of torch. More than free cores is slower, by far.", 1, 256),
    Row("seed", "int", 0, "With the observation's stamp the only source of randomness.", 0, 2**31 - 1),
    Row("mode", "string", "oxygen", "How text shares work: all but `oxygen` are baselines for comparison.",
        choices=MODES),
    Row("when_full", "string", "reject_new", "What gives way when no slot is left for a text.",
        choices=("reject_new", "drop_oldest")),
    Row("draft_tokens", "int", 0, "Longest draft checked in one decode step; 0: no speculation.", 0, 63),
    Row("debug", "bool", False, "Check the engine's slot accounting whenever no text is under way."),
    Row("warmup_ticks", "int", 6, "Full ticks run in configure before latency is judged.", 2, 1000),
    # When a tick comes.
    Row("trigger", "string", "period", "What starts a tick: a period; each new set of images; or the end "
        "of the chunk being executed.", choices=("period", "images", "chunk_end")),
    Row("period", "double", 0.1, "Seconds between ticks (trigger `period`); the expected time between image "
        "sets (trigger `images`); the retry time (trigger `chunk_end`). Sim time under use_sim_time.",
        0.001, 60.0),
    # What a tick sees.
    Row("instruction", "string", "", "What the robot is told to do; ~/instruction replaces it.", live=True),
    Row("max_skew", "double", 0.03, "Largest time between the images of one observation [s].", 0.0, 10.0),
    Row("max_age", "double", 0.3, "Oldest image or joint reading that is acted on [s].", 0.001, 60.0),
    Row("joints.range_margin", "double", 0.1, "How far beyond its limits a joint may read before the reading "
        "counts as failed [rad or m].", 0.0, 10.0),
    # Text.
    Row("budget.mode", "string", "fixed", "fixed: at most budget.steps decode steps a tick. deadline: "
        "besides, only steps predicted to end before the next tick.", choices=("fixed", "deadline")),
    Row("budget.steps", "int", 4, "Most decode steps of one tick.", 0, 1024),
    Row("budget.max_rows", "int", 64, "Most rows (tokens) of one decode step.", 1, 64),
    Row("budget.margin", "double", 0.005, "Seconds kept free before the next tick (mode deadline).",
        0.0, 10.0),
    Row("question_max_chars", "int", 200, "A question is cut to this many characters.", 1, 10000),
    # What is watched, on the steady clock.
    Row("watchdog.silence", "double", 1.0, "Nothing received on an input for this long (or max_age, if that "
        "is longer) is reported, whatever its stamps say [s].", 0.01, 600.0),
    Row("watchdog.late", "double", 0.0, "A tick that starts so much after it was due is reported [s]; 0: a "
        "period.", 0.0, 600.0),
    Row("watchdog.stuck", "double", 5.0, "A tick that does not return for this long is reported [s].",
        0.01, 600.0),
    Row("watchdog.give_up", "double", 30.0, "A tick that does not return for this long ends the process with "
        "69, so that launch starts it anew [s]; 0: never.", 0.0, 3600.0),
    Row("watchdog.failed_ticks", "int", 3, "So many failed ticks in a row deactivate the node; 0: never.",
        0, 1000),
    # What leaves.
    Row("chunk_deadline", "double", 0.0, "Deadline offered on ~/action_chunk [s]; 0: twice the period "
        "(trigger `chunk_end`: twice the chunk).",
        0.0, 600.0),
    Row("command.enabled", "bool", False, "Publish ~/joint_trajectory for a controller.", live=True),
    Row("limits.mode", "string", "clamp", "What happens to a chunk beyond the limits.",
        choices=("clamp", "refuse")),
    Row("limits.use_robot_description", "bool", False, "Take each limit that is not set here from the URDF "
        "on topic robot_description; configure fails when none comes."),
    Row("limits.description_wait", "double", 10.0, "Longest wait for robot_description in configure [s].",
        0.1, 600.0),
    Row("join.mode", "string", "replace", "How a chunk is joined to the one before. replace: it stands "
        "alone. blend: the weighted mean of both where they overlap. rtc: the denoiser is guided towards the "
        "one before (real-time chunking).", choices=joining.MODES),
    Row("join.delay_steps", "int", -1, "Actions of the chunk before that will have been executed when the "
        "new one is there, counted from the observation; -1: from the latency measured in warm-up (shown in "
        "/diagnostics). Set it where a recording must give the same chunks again.", -1, 1000),
    Row("join.overlap", "double", 0.0, "After those, how long the new chunk is held to the one before, ever "
        "less [s]; 0: as long as anything is left of it.", 0.0, 60.0),
    Row("join.schedule", "string", "exp", "How the weight of the chunk before falls over the overlap; ones "
        "and zeros: not at all, or at once.", choices=joining.SCHEDULES),
    Row("join.max_weight", "double", 0.0, "Upper bound of the guidance weight of a denoise step (rtc); 0: "
        "the number of denoise steps, at which one step goes the whole way and none beyond.", 0.0, 1000.0),
    Row("join.tolerance", "double", 0.5, "A chunk stands alone when a joint is farther than this from where "
        "the one before has it [rad or m]: then the arm is not executing it.", 1e-6, math.inf),
    Row("markers.frame", "string", "world", "Frame of the text marker in RViz."),
    Row("markers.height", "double", 0.6, "Height of the text marker above its frame [m].", -100.0, 100.0),
    Row("markers.size", "double", 0.05, "Letter height of the text marker [m].", 0.001, 10.0),
)  # fmt: skip

# Of each text kind.
TEXT = (
    Row("text.<kind>.enabled", "bool", True, "Ask for this kind of text."),
    Row("text.<kind>.prompt", "string", "", "Prompt put after the observation. Special tokens that it spells "
        "are honored. One with {question} is asked with each question on ~/question, which stands there."),
    Row("text.<kind>.every_n_ticks", "int", 10, "Ask every so many ticks; 0: only at new instructions.",
        0, 100000),
    Row("text.<kind>.on_instruction", "bool", False, "Ask, besides, at the tick at which an instruction "
        "takes effect."),
    Row("text.<kind>.feed_prompt", "bool", False, "Put the last text of this kind into the prompt of the "
        "actions and of everything else that reads it; for kinds that the model's prompt has a place for. "
        "With subtasks the model then acts on its own next instruction."),
    Row("text.<kind>.lag_ticks", "int", 0, "Ticks from asking a text to the prompt that holds it; "
        "0: ceil(max tokens / steps) + 1.", 0, 10000),
    Row("text.<kind>.at_once", "int", 4, "Answers that may be under way together.", 1, 64),
    Row("text.<kind>.when_instructed", "string", "keep", "What a new instruction does to texts of this kind "
        "under way: they go on about the old one, or end as `cancelled`.", choices=("keep", "cancel")),
    Row("text.<kind>.max_tokens", "int", 30, "Token limit of one text.", 1, 4096),
    Row("text.<kind>.max_age", "int", 100, "Ticks after which an unfinished text expires; 0: never.",
        0, 100000),
    Row("text.<kind>.stop", "strings", [], "Texts that end the generation."),
    Row("text.<kind>.temperature", "double", 0.0, "0 is greedy; else sampling.", 0.0, 100.0),
    Row("text.<kind>.top_p", "double", 1.0, "Smallest set of tokens of this probability is sampled from.",
        1e-6, 1.0),
    Row("text.<kind>.adapter", "string", "", "Text adapter used; empty: none."),
    Row("text.<kind>.priority", "int", 0, "Texts of a higher priority get their slot first.", -1000, 1000),
)  # fmt: skip
_NOT_OF_QUESTIONS = ("every_n_ticks", "on_instruction", "feed_prompt", "lag_ticks")
_ONLY_OF_QUESTIONS = ("at_once",)


def rows_of_kind(kind: str, prompt: str) -> list[Row]:
    """The rows of one text kind.

    prompt: the kind's; a kind asked by questions has no cadence and is not fed back
    """
    left_out = _NOT_OF_QUESTIONS if QUESTION in prompt else _ONLY_OF_QUESTIONS
    defaults: dict[str, Any] = {"enabled": kind != "subtask", "feed_prompt": kind == "memory"}
    if (standard := STANDARD_KINDS.get(kind)) is not None:
        defaults["prompt"], defaults["priority"] = standard.task.prompt, standard.task.priority
        defaults["every_n_ticks"] = standard.every_n_ticks
        defaults["on_instruction"] = standard.on_instruction
        defaults["when_instructed"] = "cancel" if standard.cancel_on_instruction else "keep"
    tails = [(row, row.name.rsplit(".", 1)[1]) for row in TEXT]
    return [
        replace(row, name=f"text.{kind}.{tail}", default=defaults.get(tail, row.default))
        for row, tail in tails
        if tail not in left_out
    ]


CAMERA = (
    Row("cameras.<camera>.topic", "string", "", "Image topic of this camera; empty only when optional."),
    Row("cameras.<camera>.transport", "string", "raw", "What the topic carries: Image or CompressedImage.",
        choices=("raw", "compressed")),
    Row("cameras.<camera>.optional", "bool", False, "Act without this camera where it gives no image."),
)  # fmt: skip
JOINT = (
    Row("joints.<joint>.name", "string", "", "The robot's name of this joint of the model; empty: the same."),
    Row("limits.<joint>.lower", "double", -math.inf, "Lowest position commanded [rad or m]."),
    Row("limits.<joint>.upper", "double", math.inf, "Highest position commanded [rad or m]."),
    Row("limits.<joint>.velocity", "double", math.inf, "Highest speed commanded [rad/s or m/s].",
        0.0, math.inf),
    Row("limits.<joint>.step", "double", math.inf, "Largest change from one action of a chunk to the next "
        "[rad or m].", 0.0, math.inf),
)  # fmt: skip

_STANDARD = [row for name, kind in STANDARD_KINDS.items() for row in rows_of_kind(name, kind.task.prompt)]
FIXED: dict[str, Row] = {row.name: row for row in (*_GENERAL, *_STANDARD)}


def find_rows(given: Mapping[str, Any]) -> dict[str, Row]:
    """The fixed rows, and those of further text kinds, cameras and joints that were set.

    given: name -> value, unchecked. A text kind of the user's own exists as soon as its prompt is given.
    """
    rows = dict(FIXED)
    for name, value in given.items():
        kind = name.removeprefix("text.").removesuffix(".prompt")
        if kind and name == f"text.{kind}.prompt":
            rows = {key: row for key, row in rows.items() if not key.startswith(f"text.{kind}.")}
            rows.update((row.name, row) for row in rows_of_kind(kind, str(value)))
        for row in (*CAMERA, *JOINT):
            head, tail = row.name.split("<")[0], row.name.split(">")[1]
            if name.startswith(head) and name.endswith(tail) and len(name) > len(head) + len(tail):
                rows.setdefault(name, replace(row, name=name))
    return rows


def rows_of_model(cameras: Iterable[str], joints: Iterable[str]) -> list[Row]:
    """The rows a model adds: one set for each of its cameras and joints."""
    rows = [replace(row, name=row.name.replace("<camera>", name)) for name in cameras for row in CAMERA]
    return rows + [replace(row, name=row.name.replace("<joint>", name)) for name in joints for row in JOINT]


def explain_unknown(name: str, known: Iterable[str] = FIXED) -> str:
    """The message for an unknown parameter. known: the names there are"""
    known = [*known, *(row.name for row in (*CAMERA, *JOINT))]
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean '{near[0]}'?" if near else "; `oxygen_node --help` lists those there are"
    head, _, tail = name.removeprefix("text.").rpartition(".")
    kind = (head or tail) if name.startswith("text.") else ""
    if kind and f"text.{kind}.prompt" not in known:
        hint += f". A text kind of your own needs text.{kind}.prompt"
    elif kind and tail in _NOT_OF_QUESTIONS:
        return f"parameter '{name}' has no use: text.{kind}.prompt holds {QUESTION}; ~/question alone asks it"
    elif kind and tail in _ONLY_OF_QUESTIONS:
        return f"parameter '{name}' has no use: text.{kind}.prompt does not hold {QUESTION}"
    return f"parameter '{name}' is unknown{hint}"


def describe_table() -> str:
    """The table in Markdown: the manual, printed by `oxygen_node --help`."""
    lines = ["| parameter | type | default | allowed | what it does |", "|---|---|---|---|---|"]
    for row in (*FIXED.values(), *TEXT, *CAMERA, *JOINT):
        lines.append(f"| `{row.name}` | {row.type} | `{row.default}` | {row.allowed} | {row.description} |")
    return "\n".join(lines)
