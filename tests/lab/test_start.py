"""Programs of the laboratory start by the commands that the documents print."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"python ((?:-m benchmarks\.[a-z_.]+)|(?:benchmarks/[a-z_]+\.py))")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
SOURCES = sorted((ROOT / "benchmarks").rglob("*.py"))
NAMED = {
    match.rstrip(".") for file in [*PAGES, *SOURCES] for match in COMMAND.findall(file.read_text())
}


def test_the_documents_name_some() -> None:
    assert {"-m benchmarks.claims", "-m benchmarks.worlds", "-m benchmarks.crosscheck"} <= NAMED


def source(words: str) -> Path:
    """Source file of a program, given as its command line has it."""
    if not words.startswith("-m "):
        return ROOT / words
    module = ROOT / words.removeprefix("-m ").replace(".", "/")
    return module / "__main__.py" if module.is_dir() else module.with_suffix(".py")


def light(words: str) -> bool:
    """True if a program prints its options without imports of test modules, which import vLLM."""
    text = source(words).read_text()
    return "parse_args" in text and "sys.path" not in text


@pytest.mark.slow
@pytest.mark.parametrize("words", sorted(filter(light, NAMED)))
def test_it_starts(words: str) -> None:
    command = [sys.executable, *words.split(), "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
