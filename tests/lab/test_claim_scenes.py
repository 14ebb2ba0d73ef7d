"""The settings that claims are measured in are experiments that can be simulated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.claims import scenes
from benchmarks.claims.__main__ import ROWS
from benchmarks.claims.decode_scenes import is_one, setup

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
NEEDED = {scene: policy for row in ROWS for scene, policy in row.needs}


def test_every_scene_that_a_row_needs_is_there() -> None:
    known = scenes.setups()
    assert {name for name in NEEDED if not is_one(name)} <= known.keys()
    for name in filter(is_one, NEEDED):
        assert setup(name).policies


def test_the_experiment_of_one_model_is_accepted() -> None:
    assert [t.model for t in scenes.setups()["one-6-slow"].experiment.tenants] == ["opt-13b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--seeds", "x"], "--seeds 'x': write whole numbers"),
        (["--seeds", "0", "--trace", "no.csv"], "no.csv: cannot be read"),
        (["--seeds", "0", "--output", "file"], "--output file: cannot be written"),
    ],
)
def test_a_wrong_command_line_is_one_line(tmp_path: Path, words: list[str], message: str) -> None:
    (tmp_path / "file").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.claims", *words],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        timeout=120,
    )
    assert (done.returncode, done.stdout) == (2, "")
    *_, line = done.stderr.splitlines()  # what comes before says how far it is
    assert line.startswith("mirage: error: ") and message in line
    assert not list(tmp_path.rglob("claims.json"))
