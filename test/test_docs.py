# SPDX-License-Identifier: Apache-2.0
"""docs/architecture.md has a line for every module of the product, and links of the pages lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("engine", "models", "robot", "node")
FOLDERS = [
    folder.relative_to(ROOT / "oxygen_ros").as_posix()
    for room in ROOMS
    for folder in sorted({path.parent for path in (ROOT / "oxygen_ros" / room).rglob("*.py")})
]
PRODUCT = (".", *FOLDERS)
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("folder", PRODUCT)
def test_the_map_has_a_line_for_every_module(folder: str) -> None:
    lines = (ROOT / "docs" / "architecture.md").read_text().splitlines()
    listed = {match[1] for line in lines if (match := re.match(r"\| `(\w+\.py)` \| \S", line))}
    there = {path.name for path in (ROOT / "oxygen_ros" / folder).glob("*.py")} - {"__init__.py"}
    assert there <= listed, f"docs/architecture.md: no line for {sorted(there - listed)}"


def test_the_map_names_no_module_that_is_not_there() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    there = {path.name for path in ROOT.rglob("*.py") if not {".venv", "build", "install"} & set(path.parts)}
    assert set(re.findall(r"`(?:[\w/]+/)?(\w+\.py)`", text)) <= there


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as the hosting sites make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(plain.replace(" ", "-"))
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page if not path else (page.parent / path)
        assert file.exists(), f"{page.name}: {target}"
        if anchor:
            assert anchor in anchors(file), f"{page.name}: {target}"
