"""Demo model folders: whole or absent, kept or replaced; and sizes that fit or are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mirage.tools.demo.families import FAMILIES, Shape, make_parameters
from mirage.tools.demo.models import RECORD, WEIGHTS, circuit_of, make_model, make_models

pytestmark = pytest.mark.pure

SHAPE = Shape("llama", layers=1)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {p.name: (p.stat().st_mtime_ns, p.read_bytes()) for p in folder.iterdir()}


def test_a_folder_holds_all_that_a_server_reads(tmp_path: Path) -> None:
    paths = make_models(tmp_path, layers=1)
    assert paths == {name: tmp_path / name for name in FAMILIES}
    for path in paths.values():
        names = {p.name for p in path.iterdir()}
        assert {"config.json", "generation_config.json", "tokenizer.json", WEIGHTS} <= names
        assert len({p.stat().st_mode for p in path.iterdir()}) == 1  # who reads one reads all


def test_who_may_read_one_file_may_read_them_all(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "a", SHAPE)
    modes = {path.name: oct(path.stat().st_mode) for path in folder.iterdir()}
    assert set(modes.values()) == {modes["config.json"]}


def test_an_equal_model_is_kept_and_made_equal_elsewhere(tmp_path: Path) -> None:
    before = contents(make_model(tmp_path / "a", SHAPE))
    assert contents(make_model(tmp_path / "a", SHAPE)) == before
    other = contents(make_model(tmp_path / "b", SHAPE))
    assert {n: data for n, (_, data) in other.items()} == {n: d for n, (_, d) in before.items()}


@pytest.mark.parametrize("missing", [RECORD, WEIGHTS])
def test_a_half_written_folder_is_replaced(tmp_path: Path, missing: str) -> None:
    folder = make_model(tmp_path / "a", SHAPE)
    before = contents(folder)
    (folder / missing).unlink()
    (folder / "stray").write_text("left by someone")
    after = contents(make_model(folder, SHAPE))
    assert after.keys() == before.keys()
    assert list(tmp_path.iterdir()) == [folder]


def test_another_shape_replaces_the_model(tmp_path: Path) -> None:
    folder = make_model(tmp_path / "a", SHAPE)
    make_model(folder, Shape("llama", layers=2))
    assert json.loads((folder / "config.json").read_text())["num_hidden_layers"] == 2
    assert circuit_of(folder).layers == 2


def test_a_folder_without_a_record_has_no_circuit(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="holds no demo model"):
        circuit_of(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("layer_bytes", [2_700_000, 3 << 20, 5 << 20])
def test_a_layer_takes_the_bytes_it_may_and_no_more(family: str, layer_bytes: int) -> None:
    shape = Shape(family, layers=1, layer_bytes=layer_bytes)
    tensors = make_parameters(shape)
    size = sum(t.nbytes for name, t in tensors.items() if ".layers.0." in name)
    assert 0.95 * layer_bytes < size <= layer_bytes
    assert all(t.dtype == np.float32 and np.isfinite(t).all() for t in tensors.values())


@pytest.mark.parametrize("family", FAMILIES)
def test_no_two_layers_share_a_matrix(family: str) -> None:
    tensors = make_parameters(Shape(family, layers=2))
    root = "model" if family != "opt" else "model.decoder"
    first, second = (
        {n.split(f".{i}.")[1]: t for n, t in tensors.items() if n.startswith(f"{root}.layers.{i}.")}
        for i in range(2)
    )
    matrices = [name for name, tensor in first.items() if tensor.ndim == 2]
    assert len(matrices) >= 6
    assert not any(np.array_equal(first[name], second[name]) for name in matrices)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"family": "gpt2"}, "unknown family 'gpt2'"),
        ({"hidden": 200}, "hidden 200 is no multiple"),
        ({"layer_bytes": 1 << 20}, "545 are needed"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_their_value(
    sizes: dict[str, object], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Shape(**{"family": "llama", **sizes})  # type: ignore[arg-type]


def test_a_stream_too_narrow_for_the_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="make the hidden size larger"):
        make_model(tmp_path / "a", Shape("llama", hidden=128))
    assert list(tmp_path.iterdir()) == []
