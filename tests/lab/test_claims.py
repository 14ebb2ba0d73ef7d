"""The paper's claims and our bands: all rows, on the ten seeds of the page."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.lab, pytest.mark.rare, pytest.mark.timeout(3600)]
ROOT = Path(__file__).parents[2]
KEYS = {"id", "claim", "paper", "measured", "verdict", "why", "seeds", "table"}
OF_BANDS = {"band", "interval", "judged", "holds"}
VERDICTS = {"reproduced", "direction", "not reproduced", "inconsistent"}
BANDS = [f"B{number}" for number in range(1, 27)]
MANY = (("M", 17), ("T", 8), ("H", 6), ("A", 4))
CLAIMS = [f"{document}{number + 1}" for document, count in MANY for number in range(count)]


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], str, str]:
    """Rows, page and console output of a run of `benchmarks.claims`."""
    folder = tmp_path_factory.mktemp("claims")
    run = subprocess.run(
        [sys.executable, "-m", "benchmarks.claims", "--output", "out"],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT)},
        timeout=3000,
    )
    assert run.returncode == 0, run.stderr
    rows = json.loads((folder / "out" / "claims.json").read_text())
    return rows, (folder / "out" / "claims.md").read_text(), run.stdout


def test_every_band_is_judged_by_its_interval(
    checked: tuple[list[dict[str, Any]], str, str],
) -> None:
    rows, page, console = checked
    bands = {row["id"]: row for row in rows if row["band"] is not None}
    assert list(bands) == BANDS
    for row in bands.values():
        (low, high), (seeds, of) = row["interval"], row["holds"]
        assert low <= row["measured"] <= high and 0 <= seeds <= of == 10
        assert row["judged"] in ("inside", "open", "outside")
    said = re.search(r"Of 26 bands \d+ hold, \d+ are open and \d+ do not", console)
    assert said is not None and said[0] in page


def test_every_claim_is_judged(checked: tuple[list[dict[str, Any]], str, str]) -> None:
    rows, _, console = checked
    assert [row["id"] for row in rows] == CLAIMS + BANDS
    for row in rows:
        assert row.keys() == KEYS | OF_BANDS and row["seeds"] == list(range(20, 30))
        assert row["verdict"] in VERDICTS
        assert (row["judged"] is None) == (row["id"] in CLAIMS)
        assert row["id"] in console
    static = [row for row in rows if "ITL P99" not in row["claim"] and "Figure 8" in row["claim"]]
    assert all("p99_ttft_ms against pooled" in row["measured"] for row in static) and static


def test_where_prefetch_stops_to_hide_is_told(
    checked: tuple[list[dict[str, Any]], str, str],
) -> None:
    """The table of B22 goes from turns so long that all loads hide to turns so short that the link
    forbids it. Where the link's load is over 100 % no step hides.
    """
    rows, page, _ = checked
    by_id = {row["id"]: row for row in rows}
    head, *cells = by_id["B22"]["table"]
    assert len(cells) == 12 and all(len(row) == len(head) for row in cells)
    load, over = [float(row[2]) for row in cells], [float(row[5]) for row in cells]
    assert any(o < 1 for o in over) and any(o > 1 for o in over)
    assert all(o > 1 for o, carried in zip(over, load, strict=True) if carried > 100)
    assert f"| {' | '.join(head)} |" in page
    tpot = by_id["T1"]["table"][1:]
    assert all(len(set(row[2:])) == 1 for row in tpot if row[1] == "1x")


def test_the_page_in_the_docs_says_the_same(
    checked: tuple[list[dict[str, Any]], str, str],
) -> None:
    """docs/claims.md equals the page of this run word for word; only figures may differ, whose last
    digits depend on the processor.
    """
    shown = (ROOT / "docs" / "claims.md").read_text()
    assert _words(shown) == _words(checked[1])


def _words(page: str) -> str:
    return re.sub(r"# … #", "#", re.sub(r"[-+]?\d+(\.\d+)?", "#", page))
