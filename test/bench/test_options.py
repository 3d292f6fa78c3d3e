# SPDX-License-Identifier: Apache-2.0
"""What may not be asked for is refused at once, with what may."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from oxygen_ros.bench import parallel
from oxygen_ros.bench.main import main
from oxygen_ros.bench.options import parse


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
        ("--threads 0", "threads and repeats must be 1 or more"),
        ("--device tpu", 'device "tpu"'),
        ("--json /nowhere/out.json", "folder /nowhere does not exist"),
        ("--png /proc/out.png", "/proc/out.png cannot be written"),
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
    assert 'sees no CUDA device; use "cpu"' in capsys.readouterr().err


def test_more_requests_than_slots(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--n", "70", "--k", "1", "--no-components"]) == 2
    assert "a step has 64 at most: raise k above 1" in capsys.readouterr().err


def test_a_prompt_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--prompt-tokens", "1000", "--no-components"]) == 2
    assert "the prompt must have 16..64 tokens" in capsys.readouterr().err


def test_a_folder_is_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--json", str(tmp_path)])
    assert "is a folder: name a file in it" in capsys.readouterr().err


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
    assert parse(["--sweep"]).setup.cells[:4] == [(5, 1), (5, 2), (5, 5), (10, 1)]
    assert parse(["--sweep", "--n", "8"]).setup.cells == [(8, 1), (8, 2), (8, 5)]
    assert parse([]).setup.cells == [(30, 5)]
    assert parse(["--deadline"]).setup.ticks == 5000


def test_parallel_refuses_alike(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (("--n 0", "n must be 1"), ("--seconds 0", "seconds must be above 0")):
        with pytest.raises(SystemExit):
            parallel.parse(arguments.split())
        assert words in capsys.readouterr().err
