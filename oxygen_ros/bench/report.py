# SPDX-License-Identifier: Apache-2.0
"""What a run prints: the table of modes, the components, the checks, the recommended k.

Here lives words and columns; every figure is in the JSON under the name its docstring gives.
"""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console, Group
from rich.table import Table

from oxygen_ros.bench.ablate import show as show_ablation
from oxygen_ros.bench.bursts import CAUSES, LATE


def show(console: Console, document: dict[str, Any]) -> None:
    """Everything there is so far."""
    console.print(f"{document['device']}; preset {document['preset']}; {document['dtype']}")
    for entry in document["components"]:
        console.print(components_table(entry))
    if document["runs"]:
        console.print(runs_tables(document))
    if document["better_dtype"]:
        console.print(better_table(document["better_dtype"]))
    if document["speculation"]:
        console.print(speculation_table(document["speculation"]))
    if document["deadline"]:
        console.print(bursts_tables(document["deadline"]))
    for entry in document["ablation"]:
        console.print(show_ablation(entry), highlight=False)
    for line in remarks(document):
        console.print(line, highlight=False)


def runs_tables(document: dict[str, Any]) -> Group:
    """Times, then work and memory, of every run; a pair of tables for each dtype."""
    tables: list[Table] = []
    for dtype in dict.fromkeys(run["dtype"] for run in document["runs"]):
        times = make_table(
            f"{dtype}: ticks in turn, {document['clock']} time; ratio: how many times longer isolated takes",
            ("N", "k", "mode"),
            (
                "tick p50",
                "p99",
                "max ms",
                "action",
                "p99 ms",
                "ticks/s",
                "H/tick Hz",
                "ratio",
                "predicted",
                "of it",
            ),
        )
        work = make_table(
            f"{dtype}: text, work per tick, engine time outside model calls, memory",
            ("N", "k", "mode"),
            (
                "tokens/s", "to text ms", "prefills", "steps", "rows", "in flight", "outside ms",
                "peak MiB", "over action only", "J",
            ),
        )  # fmt: skip
        for run in document["runs"]:
            if run["dtype"] == dtype:
                who = (str(run["n"]), str(run["k"]), run["mode"])
                times.add_row(*who, *_times_of(run))
                work.add_row(*who, *_work_of(run))
        tables += [times, work]
    return Group(*tables)


def _times_of(run: dict[str, Any]) -> list[str]:
    tick, action = run["tick_ms"], run["action_ms"]
    return [
        f"{tick['p50']:.1f}", f"{tick['p99']:.1f}", f"{tick['max']:.1f}",
        f"{action['p50']:.1f}", f"{action['p99']:.1f}",
        f"{run['ticks_per_s']:.2f}", f"{run['horizon_over_tick_hz']:.0f}",
        f"{run['ratio_to_isolated']:.2f}", f"{run['ratio_predicted']:.2f}",
        f"{run['ratio_over_predicted']:.0%}",
    ]  # fmt: skip


def _work_of(run: dict[str, Any]) -> list[str]:
    ticks, live, text = run["ticks"], run["in_flight"], run["request_to_text_ms"]
    return [
        f"{run['tokens_per_s']:.0f}", f"{text['p50']:.0f}" if text else "-",
        f"{run['prefills'] / ticks:.2f}", f"{run['decode_steps'] / ticks:.2f}", f"{run['rows'] / ticks:.2f}",
        str(live["most"]) if live["least"] == live["most"] else f"{live['least']}..{live['most']}",
        f"{run['outside_model_ms']['p50']:.2f}", f"{run['peak_bytes'] / 2**20:.0f}",
        f"{run['allocated_over_action_only'] - 1:+.1%}", _or_dash(run["energy_j_per_tick"], "{:.3f}"),
    ]  # fmt: skip


def make_table(title: str, left: tuple[str, ...], right: tuple[str, ...]) -> Table:
    table = Table(title=title, box=box.SIMPLE_HEAD, padding=(0, 1), title_justify="left", pad_edge=False)
    for name in left:
        table.add_column(name, no_wrap=True)
    for name in right:
        table.add_column(name, justify="right")
    return table


def components_table(entry: dict[str, Any]) -> Table:
    limits = entry["limits"]
    table = make_table(
        f"components alone, {entry['dtype']}, prefix of {entry['prefix_tokens']} tokens; the device: "
        f"{limits['gemm_flops_per_s'] / 1e9:.0f} GFLOP/s, reads {limits['read_bytes_per_s'] / 1e9:.1f} GB/s, "
        f"copies {limits['copy_bytes_per_s'] / 1e9:.1f} GB/s",
        ("component",),
        ("ms", "linear layers alone", "over them", "of GEMM rate", "of bandwidth"),
    )
    parts = {"prefill": entry["prefill"], "denoise": entry["denoise"]}
    parts |= {f"decode, {rows} rows": part for rows, part in entry["decode"].items()}
    for name, part in parts.items():
        table.add_row(
            name,
            f"{part['ms']:.2f}",
            f"{part['linear_layers_ms']:.2f}",
            f"{part['over_linear_layers']:.2f}",
            f"{part['fraction_of_gemm']:.0%}",
            f"{part['fraction_of_bandwidth']:.0%}",
        )
    return table


def better_table(entries: list[dict[str, Any]]) -> Table:
    columns = ("N", "k", "mode", "dtype", "isolated in", "ratio")
    table = make_table("each side in its faster dtype", columns, ())
    for e in entries:
        table.add_row(
            str(e["n"]),
            str(e["k"]),
            e["mode"],
            e["dtype"],
            e["isolated_dtype"],
            f"{e['ratio_to_isolated']:.2f}",
        )
    return table


def speculation_table(entries: list[dict[str, Any]]) -> Table:
    table = make_table(
        "speculation, on its own: texts that repeat, drafts on both sides",
        ("dtype", "N", "k", "mode"),
        ("draft", "tick p50 ms", "tokens per request and step", "ratio to isolated", "to the same without"),
    )
    for e in entries:
        table.add_row(
            e["dtype"], str(e["n"]), str(e["k"]), e["mode"], str(e["draft"]), f"{e['tick_ms']['p50']:.1f}",
            _or_dash(e["tokens_per_request_step"], "{:.2f}"), f"{e['ratio_to_isolated']:.2f}",
            f"{e['ratio_to_no_speculation']:.2f}",
        )  # fmt: skip
    return table


def bursts_tables(entries: list[dict[str, Any]]) -> Group:
    who = ("arrivals", "budget")
    late = make_table(
        f"ticks in real time, one every {entries[0]['period_ms']:.1f} ms; late: started more than {LATE:.0%} "
        "of that after due, or missed; then what kept the tick before",
        who,
        ("ticks", "late", "%", *CAUSES, "missed", "p99 ms", "max ms"),
    )
    text = make_table(
        "their text: decode steps a tick, most texts in flight, what became of those asked for",
        who,
        ("steps", "in flight", "texts", "tokens", "refused", "expired", "to text ms"),
    )
    for e in entries:
        names = (e["arrivals"], e["budget"] or "acts only")
        late.add_row(
            *names, str(e["ticks"]), str(e["late"]), f"{e['late_share']:.2%}",
            *map(str, e["causes"].values()), str(e["missed"]),
            f"{e['lateness_ms']['p99']:.2f}", f"{e['lateness_ms']['max']:.1f}",
        )  # fmt: skip
        text.add_row(
            *names, f"{e['steps_per_tick']:.2f}", str(e["most_in_flight"]), str(e["texts"]),
            str(e["tokens"]), str(e["refused"]), str(e["expired"]),
            _or_dash(e["request_to_text_ms"], "{:.0f}"),
        )  # fmt: skip
    return Group(late, text)


def remarks(document: dict[str, Any]) -> list[str]:
    """The checks and what else must be said, one line each."""
    lines = []
    for check in document["checks"]:
        if not check["equal"]:
            lines.append(
                f"[bold red]OUTPUTS DIFFER[/] {check['mode']}, {check['dtype']}, "
                f"N {check['n']}, k {check['k']}: "
                f"{check['texts_identical']} of {check['texts']} texts identical, actions up to "
                f"{check['largest_action_difference']:.1e} apart"
            )
    if document["checks"]:
        chunks = sum(check["chunks"] for check in document["checks"])
        texts = sum(check["texts"] for check in document["checks"])
        same = sum(check["texts_identical"] for check in document["checks"])
        furthest = max(check["largest_action_difference"] for check in document["checks"])
        lines.append(
            f"outputs against isolated execution: {'equal' if document['outputs_equal'] else 'NOT equal'}; "
            f"{chunks} chunks within {furthest:.1e}, {same} of {texts} texts token for token"
            + ("" if same == texts else " (bfloat16 may differ where two logits nearly tie)")
        )
    off = [run for run in document["runs"] if not run["counts_as_expected"]]
    lines += [
        f"[bold red]COUNTS[/] {run['mode']}, N {run['n']}, k {run['k']}: expected {run['expected_counts']}"
        for run in off
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


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
