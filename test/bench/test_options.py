# SPDX-License-Identifier: Apache-2.0
"""Invalid options are refused at once, with the allowed values."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from oxygen_ros.bench import parallel
from oxygen_ros.bench.main import main
from oxygen_ros.bench.options import parse
from oxygen_ros.bench.results import check_writable, write_json


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--preset pi06", 'preset "pi06" is not one of pi05, pi05_mini, demo'),
        ("--modes fast", 'mode "fast" is not one of isolated, shared, batched, oxygen'),
        ("--robot dog", 'robot "dog" is not one of libero, droid, aloha'),
        ("--dtype float16", 'dtype "float16" is not one of float32, bfloat16'),
        ("--arrivals never", 'arrivals "never" is not one of one, bursts, poisson, random'),
        ("--modes ,", "mode: name one or more of isolated, shared, batched, oxygen"),
        ("--k -1", "k must be 0 or more, got -1"),
        ("--n 0", "n must be 1 or more, got 0"),
        ("--n 3,x", 'n must be whole numbers with commas between, got "3,x"'),
        ("--n 2 --k 5", "no k in [5] is as small as any N in [2]"),
        ("--requests 0", "requests must be 1 or more, got 0"),
        ("--ticks 0", "ticks must be 1 or more, got 0"),
        ("--horizon 0", "horizon must be 1 or more, got 0"),
        ("--tick-ms 0", "tick-ms must be above 0, got 0.0"),
        ("--clock sun", 'clock "sun" is not one of auto, wall, thread'),
        ("--ablate --deadline", "--ablate and --deadline are runs of their own"),
        ("--threads 0", "threads must be 1 to"),
        ("--threads 4096", "the CPUs this process may use, got 4096"),
        ("--repeats 0", "repeats must be 1 or more, got 0"),
        ("--n=", "n: name one or more whole numbers, 1 or more"),
        ("--k=", "k: name one or more whole numbers, 0 or more"),
        ("--n 4 --k 5,6", "name a k of 4 or less"),
        ("--suffix-tokens 65", "suffix-tokens must be 64 or less, the rows of one decode step, got 65"),
        ("--seed -1", "seed must be 0 or more, got -1"),
        ("--speculate -1", "speculate must be 0 or more, got -1"),
        ("--denoise-steps 0", "denoise-steps must be 1 or more, got 0"),
        ("--tick-ms nan", "tick-ms must be above 0, got nan"),
        ("--deadline --margin-ms nan", "margin-ms must be 0 or more, got nan"),
        ("--deadline --period-ms inf", "period-ms must be above 0, got inf"),
        ("--deadline --n 30,5", "--deadline takes one n, got 30, 5"),
        ("--deadline --k 0", "--deadline needs a k of 1 or more"),
        ("--deadline --modes oxygen --sweep", "--sweep, --modes: of no use to --deadline"),
        ("--ablate --k 1 --png out.png", "--k, --png: of no use to --ablate"),
        ("--period-ms 50", "--period-ms: of no use to a run without --deadline"),
        ("--no-components --tick-ms 5", "--tick-ms needs the components"),
        ("--device tpu", 'device "tpu" is not one of cpu, cuda, cuda:1, ...'),
        ("--json /nowhere/out.json", "folder /nowhere does not exist"),
        ("--png /proc/out.png", "/proc/out.png cannot be written"),
        ("--json /dev/null", "is a device or a pipe, and would be replaced"),
        ("--json both.out --png ./both.out", "json and png are both both.out: name two files"),
    ],
)
def test_refused(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        parse(arguments.split())
    assert end.value.code == 2
    assert words in " ".join(capsys.readouterr().err.split())


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--device", "cuda"])
    said = " ".join(capsys.readouterr().err.split())
    assert "sees no CUDA devices; check the driver" in said
    assert 'or use "cpu"' in said


def test_more_requests_than_slots(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--n", "70", "--k", "1", "--no-components"]) == 2
    said = capsys.readouterr().err
    assert "N 70, k 1, batched: 64 texts in flight" in said
    assert "a step has 64 at most: raise k above 1" in said
    assert main(["--requests", "100"]) == 2, "said before anything is built or measured"
    assert "a step has 64 at most: ask for 32 at once or fewer" in capsys.readouterr().err


def test_a_prompt_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prompt-tokens", "1000", "--no-components"]) == 2
    assert "the prompt must have 16..64 tokens" in capsys.readouterr().err


def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--json", str(tmp_path)])
    assert "is a folder: name a file in it" in capsys.readouterr().err


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "target.json", tmp_path / "link.json"
    link.symlink_to(target)
    check_writable(link)
    write_json(link, {"a": 1})
    assert link.is_symlink()
    assert json.loads(target.read_text()) == {"a": 1}


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two CPUs")
def test_the_thread_clock_needs_one_thread(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse([]).setup.clock_name == "thread"
    try:
        assert parse(["--threads", "2"]).setup.clock_name == "wall"
        with pytest.raises(SystemExit):
            parse(["--threads", "2", "--clock", "thread"])
        assert 'needs a CPU with one torch thread; use "wall" or "auto"' in capsys.readouterr().err
    finally:
        torch.set_num_threads(1)


def test_sweep_fills_what_is_not_said() -> None:
    assert parse(["--sweep"]).setup.pairs[:4] == [(5, 1), (5, 2), (5, 5), (10, 1)]
    assert parse(["--sweep", "--n", "8"]).setup.pairs == [(8, 1), (8, 2), (8, 5)]
    assert parse([]).setup.pairs == [(30, 5)]
    assert parse(["--n", "8", "--k", "4,9"]).setup.left_out == [(8, 9)]
    assert parse(["--deadline"]).setup.ticks == 5000


def test_parallel_refuses_alike(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (("--n 0", "n must be 1"), ("--seconds 0", "seconds must be above 0")):
        with pytest.raises(SystemExit):
            parallel.parse(arguments.split())
        assert words in capsys.readouterr().err
