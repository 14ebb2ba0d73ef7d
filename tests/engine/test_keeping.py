"""Engines that start from a keeper's weights say what plain vLLM says."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from children import must, spawn
from tiny import LAYERS, make_model

from mirage.engine.keeping import Keeping, UnfitMaster, WholeMaster
from mirage.engine.master import MasterTable, encoded
from tests.keeping import Kept, keeper, without_weights
from tests.zoo import FAMILIES, make_all
from vmm.driver import OutOfMemory

pytestmark = pytest.mark.engine


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    with keeper(tmp_path) as made:
        yield made


def run(folder: Path, mode: str, kept: Kept | None, *families: str) -> dict[str, Any]:
    out = folder / "out.json"
    if kept is None:
        must(spawn("identity.py", folder, out, mode, *families))
    else:
        must(spawn("keeping_run.py", folder, out, mode, kept.path, *families))
    return dict(json.loads(out.read_text()))


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        pytest.param("llama", "mirage", marks=pytest.mark.slow),
        pytest.param("qwen3", "cuda-pieces", marks=pytest.mark.rare),
        pytest.param("mixtral", "mirage", marks=pytest.mark.rare),
    ],
)
def test_an_engine_whose_files_are_zeros_by_now_says_the_same(
    tmp_path: Path, kept: Kept, family: str, mode: str
) -> None:
    weights = make_model(family, tmp_path) / "model.safetensors"
    plain = run(tmp_path, "plain", None, family)[family]
    first = run(tmp_path, mode, kept, family)[family]
    assert (first["whole"], first["copied"], first["proven"]) == ([False], 0, 1)
    assert kept.until(["t"], used=False).idle_bytes >= weights.stat().st_size
    without_weights(weights)
    again = run(tmp_path, mode, kept, family)[family]
    assert (again["whole"], again["copied"], again["proven"]) == ([True], 0, 0)
    assert plain["rounds"] == first["rounds"] == again["rounds"]
    assert again["bytes_streamed"] > 0


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        ("llama", "mirage"),
        pytest.param("qwen3", "cuda-pieces", marks=pytest.mark.rare),
        pytest.param("mixtral", "mirage", marks=pytest.mark.rare),
    ],
)
@pytest.mark.parametrize("proven", [pytest.param(True, marks=pytest.mark.slow), False])
def test_an_engine_that_starts_without_memory_for_its_layers_says_the_same(
    tmp_path: Path, kept: Kept, family: str, mode: str, proven: bool
) -> None:
    """An engine starts with memory for a layer and two slots only. Its layers are streamed from the
    first step on and come and go later; its answers are the same.
    """
    make_model(family, tmp_path)
    first = run(tmp_path, mode, kept, family)[family]
    (whole,) = first["held"]
    kept.until(["t"], used=False)
    if not proven:
        for record in (tmp_path / "proofs").iterdir():
            record.unlink()
    hollow = run(tmp_path, f"{mode}-hollow", kept, family)[family]
    assert (hollow["whole"], hollow["copied"], hollow["proven"]) == ([True], 0, int(not proven))
    assert hollow["held"] == [whole * 3 // LAYERS], "its slots, and a layer"
    assert hollow["rounds"] == first["rounds"]
    again = list((tmp_path / "proofs").iterdir())
    assert len(again) == int(proven), "a proof without all layers in place is none for others"


def test_an_engine_without_masters_does_not_start_without_memory(
    tmp_path: Path, kept: Kept
) -> None:
    make_model("llama", tmp_path)
    words = ("keeping_run.py", tmp_path, tmp_path / "out", "mirage-hollow", kept.path, "llama")
    ended = spawn(*words)
    assert ended.returncode and "not in host memory: it needs its share" in ended.stderr


@pytest.mark.slow
def test_a_master_that_does_not_make_the_same_model_is_not_served(
    tmp_path: Path, kept: Kept
) -> None:
    make_model("llama", tmp_path)
    first = run(tmp_path, "mirage-odd", kept, "llama")["llama"]
    assert (first["whole"], first["copied"]) == ([False], 0)
    kept.until(["t"], used=False)
    again = run(tmp_path, "mirage-odd", kept, "llama")["llama"]
    assert (again["whole"], again["copied"]) == ([True], LAYERS)
    assert again["rounds"] == first["rounds"]
    assert kept.until([], used=False).masters == 0
    later = run(tmp_path, "mirage", kept, "llama")["llama"]
    assert (later["whole"], later["copied"]) == ([], LAYERS)


@pytest.mark.slow
def test_a_file_that_was_changed_is_read(tmp_path: Path, kept: Kept) -> None:
    weights = make_model("llama", tmp_path) / "model.safetensors"
    first = run(tmp_path, "mirage", kept, "llama")["llama"]
    without_weights(weights)
    os.utime(weights)
    changed = run(tmp_path, "mirage", kept, "llama")["llama"]
    assert (changed["whole"], changed["copied"], changed["proven"]) == ([False], 0, 1)
    assert changed["rounds"] != first["rounds"]


@pytest.mark.slow
def test_a_model_with_a_drafter_starts_from_its_master(tmp_path: Path, kept: Kept) -> None:
    name = "llama-draft"
    make_all([FAMILIES[name]], tmp_path)
    first = run(tmp_path, "mirage", kept, name)[name]
    kept.until(["t"], used=False)
    again = run(tmp_path, "mirage", kept, name)[name]
    assert [(one["whole"], one["copied"]) for one in (first, again)] == [([False], 0), ([True], 0)]
    assert again["rounds"] == first["rounds"]


class Unused:
    """Master, and client of its keeper, of which the master cannot be used."""

    def __init__(self, error: Exception) -> None:
        self.error, self.told = error, list[str]()

    def masters(self, driver: object, placed: object) -> None:
        raise self.error

    def unfit(self, why: str) -> None:
        self.told.append(f"unfit: {why}")

    def close(self) -> None:
        self.told.append("closed")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (UnfitMaster("its layers are of another size"), ["unfit: its layers are of another size"]),
        (OutOfMemory("no memory"), []),
    ],
)
def test_a_master_that_cannot_be_used_is_closed(error: Exception, told: list[str]) -> None:
    """Its memory is unmapped. If the master does not fit the engine, no other engine gets it."""
    keeping, unused = Keeping(None, "t", Any), Unused(error)
    keeping._master = keeping._client = unused  # type: ignore[assignment]
    assert keeping.masters(Any, []) is None
    assert unused.told == [*told, "closed", "closed"], "the master and the client"


def test_a_whole_master_that_is_closed_is_unmapped() -> None:
    table = encoded(MasterTable({}, {}, [], {}))
    with os.fdopen(os.memfd_create("master"), "r+b") as file:
        file.write(table.rjust(4096, b"\0"))
        file.flush()
        made = WholeMaster(SimpleNamespace(fd=file.fileno()), [])  # type: ignore[arg-type]
        maps = Path("/proc/self/maps")
        assert "memfd:master" in maps.read_text()
        made.close()
        assert "memfd:master" not in maps.read_text()
