"""Every family starts from weights that a keeper has, without its files, and says the same."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.keeping import Kept, keeper, without_weights
from tests.zoo import FAMILIES, make_all

pytestmark = [pytest.mark.long, pytest.mark.timeout(3600)]

BATCH = 6
ROOT = Path(__file__).parents[2]
LIMIT_S = 1500
BATCHES = [tuple(FAMILIES)[at : at + BATCH] for at in range(0, len(FAMILIES), BATCH)]
READ_AGAIN = frozenset({"phi"})
"""Families in which loading makes a parameter that the model has not before: what is kept is found
not to fit, and their files are read."""
OWN_FILES = ("adapter", "draft")
"""Parts of the paths of weights that are read at each start."""


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with keeper(tmp_path) as made:
        yield made


@pytest.mark.parametrize("names", BATCHES, ids=lambda names: names[0])
def test_a_start_without_files_says_the_same(
    tmp_path: Path, kept: Kept, names: tuple[str, ...]
) -> None:
    models = make_all([FAMILIES[name] for name in names], tmp_path)
    first = dict(_starts(tmp_path, kept, names))
    able = [name for name, facts in first.items() if facts["whole"] == [False]]
    print(f"files are read at each start: {[name for name in first if name not in able]}")
    for file in (file for name in able for file in (models / name).rglob("*.safetensors")):
        if not any(part in str(file.relative_to(models)) for part in OWN_FILES):
            without_weights(file)
    again = dict(_starts(tmp_path, kept, able))
    assert list(again) == able
    assert {name: facts["whole"] for name, facts in again.items()} == {n: [True] for n in able}
    read = {name for name, facts in again.items() if facts["copied"]}
    assert read == READ_AGAIN & set(able)
    wrong = [name for name in able if again[name]["rounds"] != first[name]["rounds"]]
    assert set(wrong) == read  # whose files are zeros


def _starts(folder: Path, kept: Kept, names: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Facts of all families that start, one after the other; plain vLLM cannot start some of them
    either.
    """
    todo = list(names)
    while todo:
        out = folder / "out.json"
        out.unlink(missing_ok=True)
        script = ROOT / "tests" / "engine" / "keeping_run.py"
        done = subprocess.run(
            [sys.executable, str(script), str(folder), str(out), "mirage", str(kept.path), *todo],
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
            cwd=ROOT,
        )
        facts = json.loads(out.read_text()) if out.exists() else {}
        yield from facts.items()
        todo = todo[len(facts) :]
        if todo:
            print(f"{todo.pop(0)} does not start: {done.stderr[-300:]}")
