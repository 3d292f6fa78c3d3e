# SPDX-License-Identifier: Apache-2.0
"""Whole runs of the benchmark on the demo's network: counts, outputs, the form of the JSON, an early end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from oxygen_ros.bench import options, parallel, real_time
from oxygen_ros.bench.comparison import Comparison
from oxygen_ros.bench.main import main
from oxygen_ros.bench.results import check_outputs, runs_of, speculation_of
from oxygen_ros.bench.setup import BenchSetup, BenchShared
from oxygen_ros.bench.stopping import Stopped, StopSignals

TICKS = 3


def compare(n: int, k: int, draft: int = 0, **settings: object) -> Comparison:
    setup = BenchSetup(n=(n,), k=(k,), ticks=TICKS, draft=draft, **settings)  # type: ignore[arg-type]
    comparison = Comparison(BenchShared.make(setup), n, k, draft=draft)
    comparison.measure(lambda words: None)
    return comparison


def test_counts_are_exact_and_outputs_equal_in_every_mode() -> None:
    """N 6, k 2, a suffix of 2 tokens: what each mode must do in 3 ticks, counted by hand."""
    comparison = compare(6, 2)
    counts = {run["mode"]: (run["prefills"], run["decode_steps"], run["rows"]) for run in runs_of(comparison)}
    assert counts == {
        "isolated": (2 * TICKS, 6 * TICKS, 7 * TICKS),
        "shared": (1 * TICKS, 6 * TICKS, 7 * TICKS),
        "batched": (2 * TICKS, 2 * TICKS, 7 * TICKS),
        "oxygen": (1 * TICKS, 2 * TICKS, 7 * TICKS),
    }
    for run in runs_of(comparison):
        assert run["counts_as_expected"]
        assert run["texts_finished"] == TICKS
        flying = 2 if run["mode"] in ("batched", "oxygen") else 0
        assert run["in_flight"] == {"first": flying, "least": flying, "most": flying}, "not steady"
        assert run["ratio_predicted"] > 0
        assert (run["ratio_to_isolated"] == 1) == (run["mode"] == "isolated")
    for check in check_outputs(comparison):
        assert check["equal"]
        assert check["largest_action_difference"] <= 1e-6
        assert check["texts"] == check["texts_identical"] >= TICKS


@pytest.mark.parametrize("arrivals", ["bursts", "poisson", "random"])
def test_other_arrivals_are_counted_as_exactly(arrivals: str) -> None:
    comparison = compare(4, 3, arrivals=arrivals, burst_every=3, requests=2, modes=("oxygen",), seed=5)
    assert all(run["counts_as_expected"] for run in runs_of(comparison))
    assert all(check["equal"] for check in check_outputs(comparison))


def test_text_that_never_advances() -> None:
    comparison = compare(4, 0, modes=("oxygen",))
    (oxygen,) = [run for run in runs_of(comparison) if run["mode"] == "oxygen"]
    assert (oxygen["decode_steps"], oxygen["tokens_per_s"], oxygen["counts_as_expected"]) == (0, 0, True)
    assert oxygen["texts_refused"] == TICKS


def test_repeating_texts_are_drafted_and_stay_the_same() -> None:
    comparison = compare(8, 2, draft=4, modes=("oxygen",))
    found = {entry["mode"]: entry for entry in speculation_of(comparison)}
    assert found["oxygen"]["tokens_per_request_step"] >= 3
    assert all(check["equal"] for check in check_outputs(comparison))


def test_json_has_the_documented_form(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = "--n 4 --k 2 --ticks 2 --dtype float32,bfloat16 --modes oxygen --repeats 1 --tick-ms 100000"
    assert main([*arguments.split(), "--json", str(file), "--png", str(picture)]) == 0
    document = json.loads(file.read_text())
    assert {"device", "preset", "dtype", "runs"} <= set(document)
    assert (document["preset"], document["dtype"]) == ("demo", "float32,bfloat16")
    assert document["complete"]
    assert document["outputs_equal"]
    assert [(run["dtype"], run["mode"]) for run in document["runs"]] == [
        (dtype, mode) for dtype in ("float32", "bfloat16") for mode in ("isolated", "oxygen")
    ]
    for run in document["runs"]:
        assert {
            "mode", "n", "k", "tick_ms", "action_ms", "tokens_per_s", "ratio_to_isolated", "ratio_predicted",
            "prefills", "decode_steps", "rows", "peak_bytes", "energy_j_per_tick", "request_to_text_ms",
        } <= set(run)  # fmt: skip
        assert {"p50", "p99", "max"} == set(run["tick_ms"]) == set(run["action_ms"])
        assert 0 < run["action_ms"]["p50"] <= run["tick_ms"]["max"]
        assert run["peak_bytes"] > 0
    (components, _) = document["components"]
    assert list(components["decode"]) == ["1", "2", "4", "8", "16", "32", "64"]
    for part in (components["prefill"], components["denoise"], *components["decode"].values()):
        assert part["ms"] > 0
        assert part["fraction_of_gemm"] > 0
        assert part["fraction_of_bandwidth"] > 0
    assert [choice["k"] for choice in document["recommended_k"]] == [4, 4], "any tick fits: text ends at once"
    assert picture.read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert "outputs against isolated execution: equal" in printed
    assert "energy: absent" in printed


def test_ticks_in_real_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_time, "WARM_UP", 3)
    monkeypatch.setattr(real_time, "BLOCK", 2)
    file, picture = tmp_path / "out.json", tmp_path / "out.png"
    arguments = "--deadline --ticks 5 --n 4 --k 2 --period-ms 30"
    assert main([*arguments.split(), "--json", str(file), "--png", str(picture)]) == 0
    found = json.loads(file.read_text())["deadline"]
    assert [(entry["arrivals"], entry["budget"]) for entry in found] == [
        (arrivals, budget) for arrivals in ("bursts", "poisson") for budget in (None, "deadline", "fixed")
    ]
    for entry in found:
        assert entry["ticks"] == 5 + entry["missed"]
        assert entry["late"] == sum(entry["causes"].values()) >= entry["missed"]
        assert entry["budget"] or (entry["texts"], entry["steps_per_tick"], entry["causes"]["text"]) == (
            0,
            0,
            0,
        )
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_run_keeps_its_results(tmp_path: Path, number: signal.Signals) -> None:
    """Stopped inside the second of two comparisons: the first is in the file."""
    file = tmp_path / "out.json"
    command = [sys.executable, "-m", "oxygen_ros.bench.main", "--no-components", "--json", str(file)]
    command += ["--n", "1,60", "--k", "1", "--ticks", "10", "--modes", "oxygen"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        until = time.monotonic() + 150
        while not file.exists() and process.poll() is None and time.monotonic() < until:
            time.sleep(0.05)
        assert json.loads(file.read_text())["runs"][1]["n"] == 1
        process.send_signal(number)
        printed, complaints = process.communicate(timeout=150)
    finally:
        process.kill()
    assert process.returncode == 128 + number
    assert "Traceback" not in complaints
    assert "stopped early" in printed
    document = json.loads(file.read_text())
    assert document["complete"] is False
    assert [run["mode"] for run in document["runs"]][:2] == ["isolated", "oxygen"]
    assert document["runs"][0]["ticks"] == document["runs"][1]["ticks"] == 10
    assert all(run["counts_as_expected"] for run in document["runs"])


@pytest.mark.parametrize("program", [main, parallel.main])
def test_stopped_during_the_imports(program: Callable[[list[str]], int]) -> None:
    """The executables block signals until the program waits for them."""
    before = signal.getsignal(signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        signal.raise_signal(signal.SIGTERM)
        assert program(["--n", "30"]) == 128 + signal.SIGTERM
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    assert signal.getsignal(signal.SIGTERM) == before


def test_impatience_does_not_cost_the_results() -> None:
    """A second signal while the results are written changes nothing."""
    with StopSignals():
        with pytest.raises(Stopped):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGTERM)


def test_a_file_that_vanishes_costs_no_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    file = folder / "out.json"

    def check_then_lose(path: Path) -> None:
        folder.rmdir()

    monkeypatch.setattr(options, "check_writable", check_then_lose)
    arguments = "--no-components --n 2 --k 2 --ticks 2 --modes oxygen"
    assert main([*arguments.split(), "--json", str(file)]) == 2
    said = capsys.readouterr()
    assert f"{file} cannot be written: No such file or directory" in said.err
    assert "outputs against isolated execution: equal" in said.out


def test_a_stopped_comparison_keeps_its_whole_rounds() -> None:
    setup = BenchSetup(n=(3,), k=(1,), ticks=5, modes=("oxygen",))
    comparison = Comparison(BenchShared.make(setup), 3, 1)

    def stop(words: str) -> None:
        if "tick 3 of 5" in words:
            raise Stopped(130)

    with pytest.raises(Stopped):
        comparison.measure(stop)
    assert [run["ticks"] for run in runs_of(comparison)] == [2, 2]
    assert all(run["counts_as_expected"] for run in runs_of(comparison))
