"""The rows of ``make gpu-test`` and ``make gpu-bench``, dry: all of them but kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu.__main__ import main
from benchmarks.gpu.report import HEADING, NOT_YET, with_table
from tests.vmm.conftest import standin

pytestmark = pytest.mark.vmm
KERNELS = {"graphs.replayed", "decode.at_the_cap", "serving.two_models"}
SEVERAL = {"processes.passing"}


def run(what: str, folder: Path) -> dict[str, dict[str, object]]:
    """The rows of a dry run, by name."""
    standin()
    docs = folder / "results.md"
    docs.write_text("# Measured\n")
    # Times are of the stand-in, so that aims may be missed: 1.
    assert main([what, "--dry", "--results", str(folder), "--docs", str(docs)]) in (0, 1)
    assert docs.read_text() == "# Measured\n", "a dry run is no result"
    (path,) = folder.glob("*.json")
    written = json.loads(path.read_text())
    assert written["gpu"] == "MIRAGE stand-in" and written["what"] == what
    return {row["name"]: row for row in written["rows"]}


def test_the_rows_of_the_test(tmp_path: Path) -> None:
    rows = run("test", tmp_path)
    assert rows["driver contract"]["holds"] is True
    assert rows["streamed layers"]["value"] == "all right"
    skipped = {name for name, row in rows.items() if str(row["value"]).startswith("skipped")}
    assert skipped == {"graphs.replayed", *SEVERAL}


def test_the_rows_of_the_bench(tmp_path: Path) -> None:
    rows = run("bench", tmp_path)
    measured = {name for name in rows if name not in KERNELS}
    assert measured == {
        "layer load",
        "handover",
        "release and create",
        "export and import",
        "batched copies",
    }
    for name in measured:
        assert "failed" not in str(rows[name]["value"]) and rows[name]["details"], rows[name]


def test_a_table_replaces_its_own_older_one_and_leaves_the_rest() -> None:
    text = f"# Measured\n\n{HEADING}\n\n{NOT_YET}.\n\n## Cost\n\nLittle.\n"
    bench, other = "`make gpu-bench`, H200, one\n\n| a |", "`make gpu-test`, H200, one\n\n| b |"
    once = with_table(text, bench)
    assert NOT_YET not in once and "## Cost\n\nLittle." in once
    both = with_table(once, other)
    again = with_table(both, bench.replace("one", "two"))
    assert again.count("`make gpu-bench`, H200") == 1 and ", two" in again
    assert again.count("| b |") == 1 and again.endswith("## Cost\n\nLittle.\n")
    assert with_table("# Measured\n", bench).endswith(f"{HEADING}\n\n{bench}\n")
