"""What documents say stands somewhere does stand there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.pure
ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*.md")),
]
NAMED = re.compile(
    r"`((?:mirage|vmm|scheduler|tests|configs|traces|benchmarks|examples)/[^`\s:*{}…<>]+)"
)
LINKED = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_links_are_there(page: Path) -> None:
    text = page.read_text()
    named = {ROOT / path.rstrip("/.,") for path in NAMED.findall(text)}
    linked = {page.parent / path for path in LINKED.findall(text)}
    missing = {path for path in named | linked if not path.exists()}
    missing = {path for path in missing if not path.with_suffix(".py").exists()}
    assert not missing, sorted(map(str, missing))


def test_every_room_is_in_the_architecture() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    rooms = text[text.index("## The rooms") : text.index("## Processes")]
    words = set(re.findall(r"[\w-]+", rooms))
    modules = [
        path for name in ("mirage", "vmm", "scheduler") for path in (ROOT / name).rglob("*.py")
    ]
    absent = [p for p in modules if p.stem not in words and not p.stem.startswith("__")]
    assert not absent, [str(path.relative_to(ROOT)) for path in absent]
