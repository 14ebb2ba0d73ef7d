"""The command `benchmarks.decode`, a decoding batch over tiers: its files and refusals."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.decode.setup import load
from mirage.profiles import Sourced, hardware

pytestmark = pytest.mark.lab
ROOT = Path(__file__).parents[2]
SIX = ["lru", "frequency", "static", "attention", "prefetch", "oracle"]


def decode(folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `benchmarks.decode`."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.decode", *words],
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "COLUMNS": "60"},
        timeout=120,
    )
    return done.returncode, done.stdout, done.stderr


def content(batch: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Experiment in which eight of forty requests decode at a time, and an SSD has the blocks for
    which host memory has no room.
    """
    given = {"requests": 40, "size": 8, "turn_steps": 16, "turns": 60, "oversubscription": 2.5}
    return {
        "title": "A small batch",
        "model": "llama-3-8b",
        "decode": given | (batch or {}),
        "tiers": {"host": {"bytes": "1GiB"}, "ssd": {"bytes": "10GiB"}},
    } | changes


def write(folder: Path, what: dict[str, Any]) -> str:
    (folder / "batch.yaml").write_text(yaml.safe_dump(what))
    return "batch.yaml"


@pytest.mark.parametrize("name", ["tierkv", "decode-ssd"])
def test_every_bundled_decoding_batch_is_accepted(name: str) -> None:
    assert load(ROOT / "benchmarks" / "experiments" / f"{name}.yaml").block_bytes


def test_every_figure_of_its_hardware_has_a_source() -> None:
    device = hardware("h100-tierkv.yaml", ROOT / "benchmarks" / "experiments")
    figures = [value for _, value in device if isinstance(value, Sourced)]
    figures += [value for _, tier in device.tiers or () if tier for _, value in tier]
    assert figures and all(len(figure.source.split()) >= 2 for figure in figures)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Folder of a successful run over two seeds, and its output."""
    folder = tmp_path_factory.mktemp("decode")
    code, out, err = decode(folder, write(folder, content()), "--seeds", "0-1", "--output", "one")
    assert (code, err) == (0, "")
    return folder, out


def means(folder: Path) -> dict[str, dict[str, float]]:
    figures = json.loads((folder / "result.json").read_text())["figures"]
    return {
        policy: {key: spread and spread["mean"] for key, spread in of.items()}
        for policy, of in figures.items()
    }


@pytest.mark.slow
def test_hits_by_tier_bytes_and_time_saved_are_told(done: tuple[Path, str]) -> None:
    folder, out = done
    found = means(folder / "one")
    assert sorted(found) == sorted(SIX) and all(policy in out for policy in SIX)
    assert "…" not in out, "no figure is cut, however narrow the terminal"
    lru, prefetch = found["lru"], found["prefetch"]
    assert lru["blocks_from_host"] > 0 and lru["blocks_from_ssd"] > 0
    assert lru["blocks_from_early"] == 0 < prefetch["blocks_from_early"]
    assert lru["kv_bytes_up"] > lru["kv_bytes_down"] > 0 and lru["saved_s"] > 0
    best = found["oracle"]["mean_tpot_ms"]
    assert all(best <= one["mean_tpot_ms"] for one in found.values())
    assert prefetch["mean_tpot_ms"] < lru["mean_tpot_ms"]


def test_the_same_seeds_give_the_same_bytes(done: tuple[Path, str]) -> None:
    folder, _ = done
    words = ["batch.yaml", "--seeds", "0-1", "--output", "two", "--processes", "1"]
    assert decode(folder, *words)[0] == 0
    for name in ("result.json", "report.html"):
        assert (folder / "two" / name).read_bytes() == (folder / "one" / name).read_bytes()


def test_the_report_has_a_table_and_pictures(done: tuple[Path, str]) -> None:
    folder, out = done
    page = (folder / "one" / "report.html").read_text()
    assert page.startswith("<!doctype html>") and "one/report.html" in out
    for policy in SIX:
        assert f"</i>{policy}</th>" in page and f"<dt>{policy}</dt>" in page
    names = re.findall(r'<svg role="img" aria-label="([^"]*)"', page)
    assert names == ["Throughput", "Hits by tier", "Stalls", "Over the links"]
    assert not re.search(r"https?:|@import|url\((?!#)|<script|<img", page)
    tpot = f"{means(folder / 'one')['prefetch']['mean_tpot_ms']:.2f}"
    assert f">{tpot} <small>" in page


@pytest.mark.parametrize(
    ("what", "message"),
    [
        (content(policies=["belady"]), "no policy of a decoding batch is named 'belady'"),
        (content({"oversubscription": 20}), "lower decode.oversubscription or decode.size"),
        (content({"size": 40}), "nobody takes turns, lower it"),
        (content({"lengths": "x"}), "no lengths are named 'x'"),
        (content(tiers={"host": {"bytes": "64MiB"}}), "raise tiers.host.bytes or tiers.ssd.bytes"),
        (content(tiers={}), "write tiers.host.bytes"),
        (content({"turns": 10**9}), "at most 1000000"),
        (content(hardware="a100"), "does not say how fast"),
    ],
)
def test_what_cannot_be_run_is_one_line(tmp_path: Path, what: dict[str, Any], message: str) -> None:
    words = [write(tmp_path, what), "--seeds", "0", "--output", "out", "--processes", "1"]
    code, out, err = decode(tmp_path, *words)
    assert (code, out) == (2, "") and message in err
    assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "out").exists() or not list((tmp_path / "out").iterdir())


def test_policies_can_be_named_on_the_command_line(tmp_path: Path) -> None:
    words = [write(tmp_path, content()), "--seeds", "0", "--policy", "reads, oracle"]
    assert decode(tmp_path, *words, "--output", "out", "--processes", "1")[0] == 0
    assert means(tmp_path / "out").keys() == {"reads", "oracle"}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "ratio to reads" in page and "their range below" not in page
