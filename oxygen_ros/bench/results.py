# SPDX-License-Identifier: Apache-2.0
"""The JSON of a run: figures of samples, and the document that is written whole after every comparison.

Times in it end in _ms or _s, sizes in _bytes. A stopped run keeps what it had.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from oxygen_ros.bench.comparison import Comparison, MeasuredRun
from oxygen_ros.bench.engine_run import tokens_per_step
from oxygen_ros.bench.predict import predict_ratio, predict_tick
from oxygen_ros.bench.real_time import RealTimeRun
from oxygen_ros.bench.setup import BenchSetup
from oxygen_ros.bench.timing import spread

# Greedy in float32: tokens must be identical, actions closer than this.
ACTION_TOLERANCE = 1e-6

Figures = dict[str, Any]


def runs_of(comparison: Comparison) -> list[Figures]:
    """One entry for each plain run with texts; none before the first complete round."""
    if comparison.rounds == 0:
        return []
    return [_figures_of(comparison, run) for run in comparison.runs if run.mode and run.draft == 0]


def action_only_of(comparison: Comparison) -> list[Figures]:
    """The run that only acts, the baseline of text."""
    if comparison.rounds == 0:
        return []
    return [
        {
            "dtype": run.dtype, "n": comparison.n, "k": comparison.k,
            "tick_ms": spread([tick.total for tick in run.ticks]), "peak_bytes": run.peak_bytes,
        }
        for run in comparison.runs
        if run.mode is None
    ]  # fmt: skip


def _identify(comparison: Comparison, run: MeasuredRun) -> Figures:
    return {"mode": run.mode, "n": comparison.n, "k": comparison.k, "dtype": run.dtype}


def _figures_of(comparison: Comparison, run: MeasuredRun) -> Figures:
    model, ticks, counted = run.run.engine.model, run.ticks, run.counted
    isolated = comparison.find(run.dtype, "isolated")
    alone = comparison.find(run.dtype, None)
    seconds = sum(tick.total for tick in ticks)
    texts = run.run.finished[: run.finished]
    ratio = _ratio(comparison, isolated, run)
    planned, costs = comparison.measured_ticks(run.plan).ticks, comparison.costs(run)
    predicted = predict_ratio(
        comparison.measured_ticks(isolated.plan).ticks, comparison.costs(isolated), planned, costs
    )
    expected = {
        "prefills": sum(plan.prefills for plan in planned),
        "decode_steps": sum(len(plan.steps) for plan in planned),
        "rows": sum(plan.rows for plan in planned),
    }
    counts = {name: getattr(counted, name) for name in expected}
    live = [tick.live for tick in ticks]
    return {
        **_identify(comparison, run),
        "ticks": len(ticks),
        "tick_ms": spread([tick.total for tick in ticks]),
        "action_ms": spread([tick.action for tick in ticks]),
        "outside_model_ms": spread([tick.outside for tick in ticks]),
        "ticks_per_s": len(ticks) / seconds,
        "horizon_over_tick_hz": model.spec.experts[0].horizon * len(ticks) / seconds,
        "tokens_per_s": sum(len(text.tokens) for text in texts) / seconds,
        "request_to_text_ms": spread([text.seconds for text in texts]) if texts else None,
        "ratio_to_isolated": ratio,
        "ratio_predicted": predicted,
        "ratio_over_predicted": ratio / predicted,
        "tick_predicted_ms": 1e3 * sum(predict_tick(plan, costs) for plan in planned) / len(planned),
        **counts,
        "expected_counts": expected,
        "counts_as_expected": expected == counts,
        "texts_finished": run.finished,
        "texts_refused": counted.rejected,
        "in_flight": {"first": run.first_live, "least": min(live), "most": max(live)},
        "peak_bytes": run.peak_bytes,
        "peak_over_action_only": run.peak_bytes / alone.peak_bytes if alone.peak_bytes > 0 else None,
        "pool_bytes": model.pool_bytes(),
        "allocated_over_action_only": _allocated(comparison, run) / _allocated(comparison, alone),
        "energy_j_per_tick": sum(run.joules) / len(run.joules) if run.joules else None,
    }


def _allocated(comparison: Comparison, run: MeasuredRun) -> int:
    """Bytes that stay: weights and pools. Exact, where a process's peak on a CPU is known to some MiB."""
    weights = comparison.shared.weights[run.dtype]
    tensors = (*weights.parameters(), *weights.buffers())
    return sum(tensor.nbytes for tensor in tensors) + run.run.engine.model.pool_bytes()


def _ratio(comparison: Comparison, slow: MeasuredRun, fast: MeasuredRun) -> float:
    """How many times longer `slow` took. Of steady ticks the median over the rounds' ratios, which one slow
    tick does not move; of others the ratio of the sums."""
    if comparison.shared.setup.arrivals == "one":
        pairs = zip(slow.ticks, fast.ticks, strict=True)
        return float(np.median([one.total / other.total for one, other in pairs]))
    return sum(tick.total for tick in slow.ticks) / sum(tick.total for tick in fast.ticks)


def check_outputs(comparison: Comparison) -> list[Figures]:
    """Every run against the isolated one of its dtype: chunks of equal rounds, texts of equal requests.

    `equal` must hold in float32. In bfloat16 the tokens of a text may differ where two logits nearly tie, so
    there it is about the chunks only.
    """
    found = []
    for run in comparison.runs:
        if run.mode in (None, "isolated") and run.draft == 0:
            continue
        own, reference = run.run, comparison.find(run.dtype, "isolated").run
        chunks = own.chunks.keys() & reference.chunks
        texts = own.texts.keys() & reference.texts
        difference = max(
            (float(np.abs(own.chunks[n] - reference.chunks[n]).max()) for n in chunks), default=0.0
        )
        same = sum(own.texts[place] == reference.texts[place] for place in texts)
        found.append(
            {
                **_identify(comparison, run),
                "draft": run.draft, "chunks": len(chunks), "largest_action_difference": difference,
                "texts": len(texts), "texts_identical": same,
                "equal": difference <= ACTION_TOLERANCE and (run.dtype != "float32" or same == len(texts)),
            }
        )  # fmt: skip
    return found


def speculation_of(comparison: Comparison) -> list[Figures]:
    """Runs with drafts over a static scene: texts repeat, so drafts are mostly right."""
    if comparison.rounds == 0:
        return []
    return [
        {
            **_identify(comparison, run),
            "draft": run.draft,
            "tick_ms": spread([tick.total for tick in run.ticks]),
            "tokens_per_request_step": tokens_per_step(run.run.finished[: run.finished]),
            "ratio_to_isolated": _ratio(comparison, comparison.find(run.dtype, "isolated", run.draft), run),
            "ratio_to_no_speculation": _ratio(comparison, comparison.find(run.dtype, run.mode), run),
            "decode_steps": run.counted.decode_steps,
            "rows": run.counted.rows,
        }
        for run in comparison.runs
        if run.draft and run.mode
    ]


def better_dtype_of(comparison: Comparison) -> list[Figures]:
    """Each mode in its faster dtype against isolated in its own faster one; only with several dtypes."""
    if comparison.rounds == 0 or len(comparison.shared.weights) < 2:
        return []
    fastest: dict[str, MeasuredRun] = {}
    for run in comparison.runs:
        if run.mode and run.draft == 0:
            fastest[run.mode] = min(
                fastest.get(run.mode, run), run, key=lambda r: float(np.median([t.total for t in r.ticks]))
            )
    isolated = fastest.pop("isolated")
    return [
        {
            **_identify(comparison, run),
            "isolated_dtype": isolated.dtype,
            "ratio_to_isolated": _ratio(comparison, isolated, run),
        }
        for run in fastest.values()
    ]


class Unwritable(Exception):
    """The file for the results could be written when the run began and cannot be now; with the reason."""


class Record:
    """What was measured so far."""

    def __init__(self, setup: BenchSetup, device: str, energy: str, command: str) -> None:
        self.document: dict[str, Any] = {
            "device": device, "preset": setup.preset, "dtype": ",".join(setup.dtypes), "runs": [],
            "complete": False, "command": command, "energy": energy, "clock": setup.clock_name,
            "setup": asdict(setup), "components": [], "action_only": [], "checks": [], "outputs_equal": None,
            "better_dtype": [], "speculation": [], "recommended_k": [], "deadline": [],
            "left_out": [{"n": n, "k": k} for n, k in setup.left_out], "remarks": [], "ablation": [],
        }  # fmt: skip
        self.real_time: list[RealTimeRun] = []

    def add(self, comparison: Comparison) -> None:
        """Add a comparison, whole or its complete rounds."""
        document, runs = self.document, comparison.runs
        if comparison.draft:
            document["speculation"] += speculation_of(comparison)
        else:
            document["runs"] += runs_of(comparison)
            document["action_only"] += action_only_of(comparison)
            document["better_dtype"] += better_dtype_of(comparison)
        remarks = dict.fromkeys([*document["remarks"], *(measured.run.remark for measured in runs)])
        document["remarks"] = [remark for remark in remarks if remark]
        if comparison.rounds:
            document["checks"] += check_outputs(comparison)
            document["outputs_equal"] = all(check["equal"] for check in document["checks"])
        if "timeline" not in document and comparison.complete:
            first = runs[0].dtype
            calls = {
                run.mode: [[name, start * 1e3, end * 1e3] for name, start, end in run.timeline]
                for run in runs
                if run.mode and run.dtype == first and run.draft == 0
            }
            document["timeline"] = {
                "n": comparison.n, "k": comparison.k, "dtype": first, "asked": comparison.traced_texts,
                "calls": calls,
            }  # fmt: skip

    def add_real_time(self, run: RealTimeRun) -> None:
        """Add a real-time run, whole or its complete part."""
        if figures := run.figures():
            self.real_time.append(run)
            self.document["deadline"].append(figures)

    def write(self, file: Path | None) -> None:
        """Raises Unwritable when the file cannot be written any more."""
        if file is None:
            return
        try:
            write_json(file, self.document)
        except OSError as error:
            raise Unwritable(f"{file} cannot be written: {error.strerror}") from None


def write_json(file: Path, document: dict[str, Any]) -> None:
    """Write a whole file or leave the old one: no reader sees half of it. Raises OSError."""
    file = file.resolve()  # what a link points to is replaced, not the link
    handle, name = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            json.dump(document, stream, indent=1)
            stream.write("\n")
        Path(name).chmod(0o644)
        os.replace(name, file)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_writable(file: Path) -> None:
    """Raise ValueError now rather than after an hour of measuring."""
    folder = file.resolve().parent
    if file.is_dir():
        raise ValueError(f"{file} is a folder: name a file in it")
    if file.exists() and not file.is_file():
        raise ValueError(f"{file} is a device or a pipe, and would be replaced: name an ordinary file")
    if not folder.is_dir():
        raise ValueError(f"{file} cannot be written: folder {folder} does not exist")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(
            f"{file} cannot be written: {error.strerror}; name a file in a folder you may write to"
        ) from None
