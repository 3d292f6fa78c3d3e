# SPDX-License-Identifier: Apache-2.0
"""What a run prints: the table of modes, the components, the checks, the recommended k.

Every figure is in the JSON; `Column` names the key it is read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from oxygen_ros.bench.real_time import CAUSES, LATE

Figures = Mapping[str, Any]
# Header, key of the figure ("a.b" is a key in a key), and its form; a figure that is None is a dash.
Column = tuple[str, str, str]

_TIMES = (
    ("tick p50", "tick_ms.p50", ".1f"), ("p99", "tick_ms.p99", ".1f"), ("max ms", "tick_ms.max", ".1f"),
    ("action", "action_ms.p50", ".1f"), ("p99 ms", "action_ms.p99", ".1f"),
    ("ticks/s", "ticks_per_s", ".2f"), ("H/tick Hz", "horizon_over_tick_hz", ".0f"),
    ("ratio", "ratio_to_isolated", ".2f"), ("predicted", "ratio_predicted", ".2f"),
    ("of it", "ratio_over_predicted", ".0%"),
)  # fmt: skip
_WORK = (
    ("tokens/s", "tokens_per_s", ".0f"), ("to text ms", "request_to_text_ms.p50", ".0f"),
    ("prefills", "per_tick.prefills", ".2f"), ("steps", "per_tick.decode_steps", ".2f"),
    ("rows", "per_tick.rows", ".2f"), ("in flight", "flying", ""),
    ("outside ms", "outside_model_ms.p50", ".2f"),
    ("peak MiB", "peak_mib", ".0f"), ("over action only", "more_than_action_only", "+.1%"),
    ("J", "energy_j_per_tick", ".3f"),
)  # fmt: skip
_COMPONENT = (
    ("ms", "ms", ".2f"), ("linear layers alone", "linear_layers_ms", ".2f"),
    ("over them", "over_linear_layers", ".2f"), ("of GEMM rate", "fraction_of_gemm", ".0%"),
    ("of bandwidth", "fraction_of_bandwidth", ".0%"),
)  # fmt: skip
_SPECULATION = (
    ("draft", "draft", ""), ("tick p50 ms", "tick_ms.p50", ".1f"),
    ("tokens per request and step", "tokens_per_request_step", ".2f"),
    ("ratio to isolated", "ratio_to_isolated", ".2f"),
    ("to the same without", "ratio_to_no_speculation", ".2f"),
)  # fmt: skip
_BETTER = (("ratio", "ratio_to_isolated", ".2f"),)
_LATE = (
    ("ticks", "ticks", ""), ("late", "late", ""), ("%", "late_share", ".2%"),
    *((cause, f"causes.{cause}", "") for cause in CAUSES),
    ("missed", "missed", ""), ("p99 ms", "lateness_ms.p99", ".2f"), ("max ms", "lateness_ms.max", ".1f"),
)  # fmt: skip
_REAL_TIME_TEXT = (
    ("steps", "steps_per_tick", ".2f"), ("in flight", "most_in_flight", ""), ("texts", "texts", ""),
    ("tokens", "tokens", ""), ("refused", "refused", ""), ("expired", "expired", ""),
    ("to text ms", "request_to_text_ms", ".0f"),
)  # fmt: skip
# Keys of a row's names, where they differ.
_KEYS = {"N": "n", "isolated_in": "isolated_dtype"}


def show(console: Console, document: dict[str, Any]) -> None:
    """Everything there is so far."""
    console.print(f"{document['device']}; preset {document['preset']}; {document['dtype']}")
    for entry in document["components"]:
        console.print(components_table(entry))
    tables: list[tuple[str, str, Sequence[Column], Sequence[Figures]]] = []
    for dtype in dict.fromkeys(run["dtype"] for run in document["runs"]):
        runs = [_prepare(run) for run in document["runs"] if run["dtype"] == dtype]
        title = f"{document['clock']} time; ratio: how many times longer isolated takes"
        tables.append((f"{dtype}: ticks in turn, {title}", "N k mode", _TIMES, runs))
        title = "text, work per tick, engine time outside model calls, memory"
        tables.append((f"{dtype}: {title}", "N k mode", _WORK, runs))
    title = "each side in its faster dtype"
    tables.append((title, "N k mode dtype isolated_in", _BETTER, document["better_dtype"]))
    title = "speculation, on its own: texts that repeat, drafts on both sides"
    tables.append((title, "dtype N k mode", _SPECULATION, document["speculation"]))
    if entries := [{**e, "budget": e["budget"] or "acts only"} for e in document["deadline"]]:
        title = (
            f"ticks in real time, one every {entries[0]['period_ms']:.1f} ms; late: started more than "
            f"{LATE:.0%} of that after due, or missed; then what kept the tick before"
        )
        tables.append((title, "arrivals budget", _LATE, entries))
        title = "their text: decode steps a tick, most texts in flight, what became of those asked for"
        tables.append((title, "arrivals budget", _REAL_TIME_TEXT, entries))
    for title, names, columns, rows in tables:
        if rows:
            console.print(make_table(title, names, columns, rows))
    for entry in document["ablation"]:
        console.print(describe_ablation(entry), highlight=False)
    for line in remarks(document):
        console.print(line, highlight=False)


def make_table(title: str, names: str, columns: Sequence[Column], rows: Iterable[Figures]) -> Table:
    """names: of the columns that say what a row is, with blanks between"""
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left", pad_edge=False)
    for name in names.split():
        table.add_column(name.replace("_", " "), no_wrap=True)
    for header, _, _ in columns:
        table.add_column(header, justify="right")
    for row in rows:
        who = (str(row[_KEYS.get(name, name)]) for name in names.split())
        table.add_row(*who, *(_format(row, path, form) for _, path, form in columns))
    return table


def _format(entry: Figures, path: str, form: str) -> str:
    value: Any = entry
    for key in path.split("."):
        value = None if value is None else value[key]
    return "-" if value is None else format(value, form)


def _prepare(run: Figures) -> Figures:
    """A run with the figures whose form differs from the JSON's."""
    live = run["in_flight"]
    return {
        **run,
        "per_tick": {name: run[name] / run["ticks"] for name in ("prefills", "decode_steps", "rows")},
        "flying": live["most"] if live["least"] == live["most"] else f"{live['least']}..{live['most']}",
        "peak_mib": run["peak_bytes"] / 2**20,
        "more_than_action_only": run["allocated_over_action_only"] - 1,
    }


def components_table(entry: Figures) -> Table:
    limits = entry["limits"]
    parts = {"prefill": entry["prefill"], "denoise": entry["denoise"]}
    parts |= {f"decode, {rows} rows": part for rows, part in entry["decode"].items()}
    title = (
        f"components alone, {entry['dtype']}, prefix of {entry['prefix_tokens']} tokens; the device: "
        f"{limits['gemm_flops_per_s'] / 1e9:.0f} GFLOP/s, reads {limits['read_bytes_per_s'] / 1e9:.1f} GB/s, "
        f"copies {limits['copy_bytes_per_s'] / 1e9:.1f} GB/s"
    )
    rows = ({"component": name, **part} for name, part in parts.items())
    return make_table(title, "component", _COMPONENT, rows)


def describe_ablation(entry: Figures) -> str:
    """An entry of the JSON's `ablation` as text."""
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


def remarks(document: dict[str, Any]) -> list[str]:
    """The checks and remarks, one line each."""
    checks = document["checks"]
    lines = [
        f"[bold red]OUTPUTS DIFFER[/] {check['mode']}, {check['dtype']}, N {check['n']}, k {check['k']}: "
        f"{check['texts_identical']} of {check['texts']} texts identical, actions up to "
        f"{check['largest_action_difference']:.1e} apart"
        for check in checks
        if not check["equal"]
    ]
    if checks:
        chunks, texts, same = (
            sum(check[name] for check in checks) for name in ("chunks", "texts", "texts_identical")
        )
        furthest = max(check["largest_action_difference"] for check in checks)
        lines.append(
            f"outputs against isolated execution: {'equal' if document['outputs_equal'] else 'NOT equal'}; "
            f"{chunks} chunks within {furthest:.1e}, {same} of {texts} texts token for token"
            + ("" if same == texts else " (bfloat16 may differ where two logits nearly tie)")
        )
    lines += [
        f"[bold red]COUNTS[/] {run['mode']}, N {run['n']}, k {run['k']}: expected {run['expected_counts']}"
        for run in document["runs"]
        if not run["counts_as_expected"]
    ]
    refused = sum(run["texts_refused"] for run in document["runs"])
    if refused:
        lines.append(f"{refused} texts found no slot and were refused (k = 0 ends none)")
    if document["left_out"]:
        pairs = "; ".join(f"N {pair['n']}, k {pair['k']}" for pair in document["left_out"])
        lines.append(f"left out, as steps beyond N do nothing: {pairs}")
    lines.append(f"energy: {document['energy']}")
    lines += document["remarks"]
    lines += [choice["words"] for choice in document["recommended_k"]]
    if not document["complete"]:
        lines.append("[bold]stopped early: these are the results so far[/]")
    return lines
