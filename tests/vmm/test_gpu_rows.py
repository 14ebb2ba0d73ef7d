"""The rows of `make gpu-test` and `make gpu-bench` in a dry run: all but kernels."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu import imports
from benchmarks.gpu.bench import dry
from benchmarks.gpu.command import main
from benchmarks.gpu.dummies import hollow
from benchmarks.gpu.graphs import as_before
from benchmarks.gpu.report import HEADING, NOT_YET, with_table
from mirage.config import load
from mirage.folder.model import check_model
from tests.vmm.conftest import standin

pytestmark = pytest.mark.vmm
ROOT = Path(__file__).parents[2]
KERNELS = {"graphs.replayed", "graphs.failed", "decode.at_the_cap", "coherent.link"}
"""Rows that are skipped over the stand-in, which has no kernels and no coherent link."""


def run(what: str, folder: Path) -> dict[str, dict[str, object]]:
    """Rows of a dry run of the bench `what`, by name."""
    standin()
    docs = folder / "results.md"
    docs.write_text("# Measured\n")
    # Times are of the stand-in, so that aims may be missed: 1.
    assert main([what, "--dry", "--results", str(folder), "--docs", str(docs)]) in (0, 1)
    assert docs.read_text() == "# Measured\n", "a dry run is no result"
    (path,) = folder.glob("*.json")
    written = json.loads(path.read_text())[what]
    assert written["gpu"] == "MIRAGE stand-in" and written["what"] == what
    return {row["name"]: row for row in written["rows"]}


@pytest.mark.slow
def test_the_rows_of_the_test(tmp_path: Path) -> None:
    rows = run("test", tmp_path)
    assert rows["memory"]["value"] == "0.5 of 0.5 GiB are free"
    assert rows["driver contract"]["holds"] is True
    assert rows["streamed layers"]["value"] == "all right"
    skipped = {name for name, row in rows.items() if str(row["value"]).startswith("skipped")}
    assert skipped == {"graphs.replayed", "graphs.failed"}
    lent = rows["another GPU's memory"]
    assert lent["holds"] is True and "GB/s from GPU 1" in str(lent["value"]), lent
    passed = rows["two processes"]
    assert passed["holds"] is True and "0 MiB lost" in str(passed["value"]), passed


def test_a_capture_that_fails_tells_what_is_not_as_before_and_tries_the_rest() -> None:
    tried = []

    def internal() -> None:
        raise RuntimeError("INTERNAL ASSERT FAILED\n  at CUDACachingAllocator.cpp")

    def bare() -> None:
        raise AssertionError

    checks = {"eager kernels": internal, "memory": bare, "rest": lambda: tried.append("rest")}
    row = as_before(checks)
    assert row.holds is False and tried == ["rest"]
    line = bare.__code__.co_firstlineno + 1
    assert row.value == (
        "not as before: eager kernels: RuntimeError: INTERNAL ASSERT FAILED at "
        "CUDACachingAllocator.cpp; memory: raise AssertionError "
        f"(test_gpu_rows.py, line {line})"
    )
    assert row.details["rest"] == "right"
    assert as_before({"rest": checks["rest"]}).holds is True


@pytest.mark.parametrize(
    ("modules", "holds", "value"),
    [
        (("json", "csv"), True, r"json \d+\.\d s, csv \d+\.\d s"),
        (("json", "nowhere.at_all", "csv"), True, r"json \d+\.\d s"),
        (("tests.nowhere", "json"), False, r"tests.nowhere .* s; tests.nowhere: ModuleNotFound.*"),
    ],
)
def test_the_first_imports_are_paid_and_one_that_fails_is_a_miss(
    modules: tuple[str, ...], holds: bool, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(imports, "MODULES", modules)
    standin()
    row = imports.paid(dry())
    assert row.holds is holds and re.fullmatch(value, row.value), row.value


@pytest.mark.slow
def test_both_commands_of_a_day_share_a_file(tmp_path: Path) -> None:
    run("serve", tmp_path)
    run("bench", tmp_path)
    (path,) = tmp_path.glob("*.json")
    assert json.loads(path.read_text()).keys() == {"serve", "bench"}


SKIPPED = {
    "texts": {f"engines.alike_{way}" for way in ("eagerly", "with_graphs", "compiled")},
    "backends": {"backends.eagerly", "backends.with_graphs"},
    "stock": {"stock.against"},
}


@pytest.mark.parametrize("what", SKIPPED)
def test_rows_that_need_kernels_say_so(what: str, tmp_path: Path) -> None:
    rows = run(what, tmp_path)
    assert rows.keys() == {"memory"} | SKIPPED[what]
    for name in SKIPPED[what]:
        assert "skipped: needs kernels" in str(rows[name]["value"])
        assert rows[name]["holds"] is None


@pytest.mark.slow
def test_the_rows_of_the_bench(tmp_path: Path) -> None:
    rows = run("bench", tmp_path)
    measured = {name for name in rows if name not in KERNELS}
    assert measured == {
        "memory",
        "layer load",
        "enqueuing a layer",
        "small copy beside a layer",
        "handover",
        "one layer more",
        "release and create",
        "export and import",
        "locking",
        "prices of calls",
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


BARE = """
import sys
class Bare:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in sys.argv[1].split():
            raise ModuleNotFoundError(name, name=name)
sys.meta_path.insert(0, Bare())
"""
ALL = """
import benchmarks.gpu.command
from importlib import import_module
from benchmarks.gpu.plan import COMMANDS
for step in (step for steps in COMMANDS.values() for step in steps):
    module = step.place.rpartition(".")[0]
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        print(module, error.name)
"""
NOT_NEEDED = (
    "aiohttp jinja2 matplotlib msgspec prometheus_client psutil pydantic yaml rich typer vllm "
    "transformers tokenizers safetensors pytest hypothesis"
)


def test_torch_cuda_python_and_numpy_are_enough_but_for_holders_of_lent_memory() -> None:
    command = [sys.executable, "-c", BARE + ALL, NOT_NEEDED]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines() == ["benchmarks.gpu.peers msgspec"]


LENT = """
from benchmarks.gpu.stepping import rows
(row,) = rows("benchmarks.gpu.peers.lent", None)
print(row.value)
"""


@pytest.mark.parametrize(
    ("missing", "value"),
    [
        ("msgspec", "skipped: needs msgspec, which is not installed"),
        ("mirage", "failed: ModuleNotFoundError: mirage"),
    ],
)
def test_a_row_that_misses_a_package_of_others_is_skipped(missing: str, value: str) -> None:
    command = [sys.executable, "-c", BARE + LENT, missing]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert said.strip() == value


@pytest.mark.parametrize(("what", "row"), [("serve", "compiled"), ("serve-graphs", "with_graphs")])
def test_serving_needs_kernels(what: str, row: str, tmp_path: Path) -> None:
    rows = run(what, tmp_path)
    assert "skipped: needs kernels" in str(rows[f"serving.{row}"]["value"])


def test_the_two_ways_to_serve_differ_in_what_is_compiled_alone() -> None:
    compiled, graphs = (load(ROOT / "configs" / f"{name}.yaml") for name in ("gpu", "gpu-graphs"))
    device = compiled.device.model_copy(update={"compile": False})
    assert compiled.device.compile and compiled.device.graphs
    assert compiled.model_copy(update={"device": device}) == graphs


def test_a_hollow_model_is_as_large_as_opt_13b_and_takes_no_room(tmp_path: Path) -> None:
    folder = hollow(tmp_path / "opt")
    check_model(folder)
    assert (folder / "model.safetensors").stat().st_size == pytest.approx(25.7e9, rel=1e-2)
    used = sum(path.stat().st_blocks * 512 for path in folder.iterdir())
    assert used < 1 << 20, "a hole takes no room"
