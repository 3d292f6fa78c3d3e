# SPDX-License-Identifier: Apache-2.0
"""docs/faults.md quotes the node: every sentence it gives for /diagnostics or the log is in the sources."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from oxygen_ros.node.parameters import find_rows

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "faults.md").read_text()
SAYS = 2  # column of a row: the text of /diagnostics


def _sentences() -> Iterator[str]:
    """All strings of the parts a running node is made of; what is filled in is a line break."""
    for part in ("node", "robot", "engine", "models"):
        for path in sorted((ROOT / "oxygen_ros" / part).rglob("*.py")):
            for item in ast.walk(ast.parse(path.read_text())):
                if isinstance(item, ast.JoinedStr):
                    yield "".join(v.value if isinstance(v, ast.Constant) else "\n" for v in item.values)
                elif isinstance(item, ast.Constant) and isinstance(item.value, str):
                    yield item.value


def _rows() -> list[list[str]]:
    rows = [line.strip("|").split("|") for line in PAGE.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0].strip() != "fault"]


SENTENCES = list(_sentences())
QUOTES = [quote for row in _rows() for quote in re.findall(r"`([^`]+)`", row[SAYS])]


@pytest.mark.parametrize("quote", QUOTES)
def test_what_is_quoted_can_be_said(quote: str) -> None:
    # Names and numbers are filled in; topic, reason and sentence are put together where they are reported.
    for words in filter(None, (words.strip(" ;:(),") for words in re.split("…|: |; ", quote))):
        assert any(words in sentence for sentence in SENTENCES), f"not in the sources: {words!r}"


def test_the_page_has_rows_of_four_and_many_quotes() -> None:
    assert all(len(row) == 4 for row in _rows())
    assert len(QUOTES) > 40


def test_parameters_of_the_page_exist() -> None:
    named = re.findall(r"`((?:watchdog|limits|joints|cameras|budget|text|join)\.[a-z_.<>]+)[`:]", PAGE)
    assert len(named) > 10
    for name in named:
        name = re.sub("<[a-z]+>", "x", name)
        assert name in find_rows({name: "", "text.x.prompt": ""}), name
