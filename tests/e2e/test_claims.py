"""The paper's claims and our bands: every row, on the five seeds that the page is made with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
ROOT = Path(__file__).parents[2]
KEYS = {"id", "claim", "paper", "measured", "band", "in_band", "verdict", "why", "seeds"}
VERDICTS = {"reproduced", "direction", "not reproduced", "inconsistent"}
BANDS = [f"B{number}" for number in range(1, 20)]
CLAIMS = [f"M{number}" for number in range(1, 18)]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str, str]:
    """(rows, page, console)."""
    folder = tmp_path_factory.mktemp("claims")
    words = ["simulate", "--claims", "--seeds", "0-4", "--output", "out"]
    run = subprocess.run(
        [sys.executable, "-m", "mirage", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=1200,
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads((folder / "out" / "claims.json").read_text())
    return rows, (folder / "out" / "claims.md").read_text(), run.stdout


def test_every_band_holds(checked: tuple[list[dict[str, Any]], str, str]) -> None:
    rows, _, console = checked
    bands = {row["id"]: row for row in rows if row["band"] is not None}
    assert list(bands) == BANDS
    assert not [
        (row["id"], row["measured"]) for row in bands.values() if row["in_band"] is not True
    ]
    assert "19 of 19 bands hold" in console


def test_every_claim_is_judged(checked: tuple[list[dict[str, Any]], str, str]) -> None:
    rows, _, console = checked
    assert [row["id"] for row in rows] == CLAIMS + BANDS
    for row in rows:
        assert row.keys() == KEYS and row["seeds"] == [0, 1, 2, 3, 4]
        assert row["verdict"] in VERDICTS
        assert (row["in_band"] is None) == row["id"].startswith("M")
        assert row["id"] in console
    static = [row for row in rows if "ITL P99" not in row["claim"] and "Figure 8" in row["claim"]]
    assert all("p99_ttft_ms against pooled" in row["measured"] for row in static) and static


def test_the_page_in_the_docs_says_the_same(
    checked: tuple[list[dict[str, Any]], str, str],
) -> None:
    """Word for word but for the figures, whose last digits are a processor's."""
    shown = (ROOT / "docs" / "claims.md").read_text()
    assert _words(shown) == _words(checked[1])


def _words(page: str) -> str:
    return re.sub(r"# … #", "#", re.sub(r"[-+]?\d+(\.\d+)?", "#", page))
