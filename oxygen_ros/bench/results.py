# SPDX-License-Identifier: Apache-2.0
"""From samples to figures: one run per mode and dtype of a cell, the check of outputs, speculation.

Here lives arithmetic over what `cell` measured; the form is that of the JSON. Times in it end in _ms or _s,
sizes in _bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from oxygen_ros.bench.cell import Cell, Track
from oxygen_ros.bench.predict import predict_ratio, predict_tick

# Greedy in float32: tokens must be identical, actions closer than this.
ACTION_TOLERANCE = 1e-6

Figures = dict[str, Any]


def spread(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles in milliseconds."""
    return {
        "p50": float(np.percentile(seconds, 50)) * 1e3,
        "p99": float(np.percentile(seconds, 99)) * 1e3,
        "max": float(np.max(seconds)) * 1e3,
    }


def runs_of(cell: Cell) -> list[Figures]:
    """One entry for each plain lane with texts; none before the first complete round."""
    if cell.rounds == 0:
        return []
    return [_run(cell, track) for track in cell.tracks if track.name.mode and track.name.draft == 0]


def action_only_of(cell: Cell) -> list[Figures]:
    """The robot that only acts: what text is measured against."""
    if cell.rounds == 0:
        return []
    return [
        {
            "dtype": track.name.dtype,
            "n": cell.n,
            "k": cell.k,
            "tick_ms": spread([tick.total for tick in track.ticks]),
            "peak_bytes": track.peak_bytes,
        }
        for track in cell.tracks
        if track.name.mode is None
    ]


def _run(cell: Cell, track: Track) -> Figures:
    setup, engine = cell.shared.setup, track.lane.engine
    isolated = _twin(cell, track, mode="isolated")
    alone = _twin(cell, track, mode=None)
    seconds = sum(tick.total for tick in track.ticks)
    tokens = sum(len(text.tokens) for text in track.lane.finished[: track.finished])
    delays = [text.seconds for text in track.lane.finished[: track.finished]]
    ratio = _ratio(isolated, track, steady=setup.arrivals == "one")
    planned = cell.measured_ticks(track.plan).ticks
    costs = cell.costs(track)
    predicted = predict_ratio(cell.measured_ticks(isolated.plan).ticks, cell.costs(isolated), planned, costs)
    counted = track.counted
    expected = {
        "prefills": sum(plan.prefills for plan in planned),
        "decode_steps": sum(len(plan.steps) for plan in planned),
        "rows": sum(plan.rows for plan in planned),
    }
    live = [tick.live for tick in track.ticks]
    return {
        "mode": track.name.mode,
        "n": cell.n,
        "k": cell.k,
        "dtype": track.name.dtype,
        "ticks": len(track.ticks),
        "tick_ms": spread([tick.total for tick in track.ticks]),
        "action_ms": spread([tick.action for tick in track.ticks]),
        "outside_model_ms": spread([tick.outside for tick in track.ticks]),
        "ticks_per_s": len(track.ticks) / seconds,
        "horizon_over_tick_hz": engine.model.spec.horizon * len(track.ticks) / seconds,
        "tokens_per_s": tokens / seconds,
        "request_to_text_ms": spread(delays) if delays else None,
        "ratio_to_isolated": ratio,
        "ratio_predicted": predicted,
        "ratio_over_predicted": ratio / predicted,
        "tick_predicted_ms": 1e3 * sum(predict_tick(plan, costs) for plan in planned) / len(planned),
        "prefills": counted.prefills,
        "decode_steps": counted.decode_steps,
        "rows": counted.rows,
        "expected_counts": expected,
        "counts_as_expected": expected == {name: getattr(counted, name) for name in expected},
        "texts_finished": track.finished,
        "texts_refused": counted.rejected,
        "in_flight": {"first": track.first_live, "least": min(live), "most": max(live)},
        "peak_bytes": track.peak_bytes,
        "peak_over_action_only": track.peak_bytes / alone.peak_bytes if alone.peak_bytes > 0 else None,
        "pool_bytes": engine.model.pool_bytes(),
        "allocated_over_action_only": _allocated(cell, track) / _allocated(cell, alone),
        "energy_j_per_tick": sum(track.joules) / len(track.joules) if track.joules else None,
    }


def _allocated(cell: Cell, track: Track) -> int:
    """Bytes that stay: weights and pools. Exact, where a process's peak on a CPU is known to some MiB."""
    network = cell.shared.networks[track.name.dtype]
    weights = sum(tensor.nbytes for tensor in (*network.parameters(), *network.buffers()))
    return weights + track.lane.engine.model.pool_bytes()


def _twin(cell: Cell, track: Track, *, mode: str | None, draft: int = 0) -> Track:
    wanted = (track.name.dtype, mode, draft)
    return next(t for t in cell.tracks if (t.name.dtype, t.name.mode, t.name.draft) == wanted)


def _ratio(slow: Track, fast: Track, *, steady: bool) -> float:
    """How many times longer `slow` took. Steady ticks are alike: the median over the rounds' ratios, which a
    hiccup does not move. Others are not: the ratio of the sums."""
    if steady:
        pairs = zip(slow.ticks, fast.ticks, strict=True)
        return float(np.median([one.total / other.total for one, other in pairs]))
    return sum(tick.total for tick in slow.ticks) / sum(tick.total for tick in fast.ticks)


def check_outputs(cell: Cell) -> list[Figures]:
    """Every lane against the isolated one of its dtype: chunks of equal rounds, texts of equal requests.

    `equal` must hold in float32. In bfloat16 the tokens of a text may differ where two logits nearly tie, so
    there it says so of the chunks only.
    """
    found = []
    for track in cell.tracks:
        if track.name.mode in (None, "isolated") and track.name.draft == 0:
            continue
        reference = _twin(cell, track, mode="isolated").lane.heard
        heard = track.lane.heard
        chunks = [number for number in heard.chunks if number in reference.chunks]
        texts = [place for place in heard.texts if place in reference.texts]
        difference = max(
            (float(np.abs(heard.chunks[n] - reference.chunks[n]).max()) for n in chunks), default=0.0
        )
        same = sum(heard.texts[place] == reference.texts[place] for place in texts)
        equal = difference <= ACTION_TOLERANCE
        if track.name.dtype == "float32":
            equal = equal and same == len(texts)
        found.append(
            {
                "mode": track.name.mode,
                "dtype": track.name.dtype,
                "n": cell.n,
                "k": cell.k,
                "draft": track.name.draft,
                "chunks": len(chunks),
                "largest_action_difference": difference,
                "texts": len(texts),
                "texts_identical": same,
                "equal": equal,
            }
        )
    return found


def speculation_of(cell: Cell) -> list[Figures]:
    """Lanes with drafts over a scene that stands still: texts repeat, so drafts mostly hold."""
    if cell.rounds == 0:
        return []
    steady = cell.shared.setup.arrivals == "one"
    found = []
    for track in cell.tracks:
        if track.name.draft == 0 or track.name.mode is None:
            continue
        texts = track.lane.finished[: track.finished]
        steps = sum(text.steps for text in texts)
        isolated = _twin(cell, track, mode="isolated", draft=track.name.draft)
        plain = _twin(cell, track, mode=track.name.mode)
        found.append(
            {
                "mode": track.name.mode,
                "n": cell.n,
                "k": cell.k,
                "dtype": track.name.dtype,
                "draft": track.name.draft,
                "tick_ms": spread([tick.total for tick in track.ticks]),
                "tokens_per_request_step": sum(len(text.tokens) for text in texts) / steps if steps else None,
                "ratio_to_isolated": _ratio(isolated, track, steady=steady),
                "ratio_to_no_speculation": _ratio(plain, track, steady=steady),
                "decode_steps": track.counted.decode_steps,
                "rows": track.counted.rows,
            }
        )
    return found


def better_dtype_of(cell: Cell) -> list[Figures]:
    """Each mode in its faster dtype against isolated in its own faster one; only with several dtypes."""
    if cell.rounds == 0 or len(cell.shared.networks) < 2:
        return []

    def fastest(mode: str) -> Track:
        tracks = [t for t in cell.tracks if t.name.mode == mode and t.name.draft == 0]
        return min(tracks, key=lambda t: float(np.median([tick.total for tick in t.ticks])))

    isolated = fastest("isolated")
    found = []
    for mode in dict.fromkeys(t.name.mode for t in cell.tracks if t.name.mode not in (None, "isolated")):
        track = fastest(str(mode))
        found.append(
            {
                "mode": mode,
                "n": cell.n,
                "k": cell.k,
                "dtype": track.name.dtype,
                "isolated_dtype": isolated.name.dtype,
                "ratio_to_isolated": _ratio(isolated, track, steady=cell.shared.setup.arrivals == "one"),
            }
        )
    return found
