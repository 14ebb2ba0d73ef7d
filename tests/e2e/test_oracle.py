"""`benchmarks.oracle` looks at saturated worlds, keeps the worst, and continues
where it stopped.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
QUICK = ["--trials", "5", "--seeds", "1", "--judges", "2", "--minutes", "3"]


def looked(folder: Path, worlds: int, *words: str) -> str:
    command = [sys.executable, "-m", "benchmarks.oracle", *QUICK, "--worlds", str(worlds)]
    done = subprocess.run(
        [*command, "--output", str(folder), *words],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout


def numbers(printed: str) -> list[int]:
    return [int(n) for n in re.findall(r"^(\d+): .*regret", printed, re.MULTILINE)]


def test_it_goes_on_with_what_it_has_looked_at(tmp_path: Path) -> None:
    first = looked(tmp_path / "out", 1)
    kept = tmp_path / "kept"
    second = looked(tmp_path / "out", 2, "--keep", str(kept), "--worst", "1")
    assert len(numbers(first)) == len(numbers(second)) == 1
    assert numbers(first) != numbers(second)
    assert re.search(r"^\| all, 2 \|", second, re.MULTILINE)
    (file,) = kept.glob("*.yaml")
    found = yaml.safe_load(file.read_text())
    assert found["oracle"]["tokens/s"] >= 0.9
    assert set(found) == {"world", "settings", "rule", "oracle", "layers", "endless"}


def test_two_processes_leave_no_world_out(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    words = ["--jobs", "2", "--trials", "0", "--first", "318000011", "--link", "427"]
    looked(folder, 2, *words)
    rows = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert [row["number"] for row in rows] == [318000011 + n for n in range(len(rows))]
    assert [row["world"]["link_gb_s"] for row in rows if row["saturated"]] == [427, 427]
