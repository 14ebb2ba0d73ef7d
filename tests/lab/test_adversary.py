"""The adversary of benchmarks proposes worlds, judges them, and continues where it stopped."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]


def searched(folder: Path, trials: int, seed: int) -> str:
    words = ["--trials", str(trials), "--minutes", "3", "--seed", str(seed)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.adversary", *words, "--output", str(folder)],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.stdout


def judged(printed: str) -> int:
    match = re.search(r"of (\d+) worlds are harmed", printed)
    return int(match[1]) if match else 0


@pytest.mark.rare
def test_it_goes_on_with_what_it_has_tried(tmp_path: Path) -> None:
    first = judged(searched(tmp_path, 8, seed=1))
    assert 0 < first <= 8
    assert first < judged(searched(tmp_path, 8, seed=2)) <= 16


def test_harm_is_what_is_beyond_a_bound(tmp_path: Path) -> None:
    from benchmarks import adversary

    fine = dict.fromkeys(adversary.FIGURES, 1.0)
    assert adversary.badness(fine) < 1
    assert adversary.badness(fine | {"tokens/s": 0.97}) > 1
    assert adversary.badness(fine | {"E2E P99": 1.06}) > 1
    adversary.keep({"title": "adversary 7", "tenants": []}, tmp_path)
    assert yaml.safe_load((tmp_path / "adversary-7.yaml").read_text())["title"] == "adversary 7"
