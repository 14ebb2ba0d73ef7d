"""A proof is made once for the same weights, code, processor, variables and arguments."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("vllm")

import torch
from children import must, spawn_anew
from proof_keys import CHANGES, SAME
from tiny import make_model
from toys import Model, Remembering, Runner, started_with

from mirage.engine.proof import UnsupportedModel
from mirage.engine.proof_records import ProvenBefore

pytestmark = pytest.mark.engine

KEY = "k" * 64


def start(record: Path, model: torch.nn.Module) -> None:
    """Start an engine with the file `record` for its proof."""
    start_up, runner = started_with(), Runner(model)
    start_up.proven = ProvenBefore(record)
    start_up.parameters.found(model)
    start_up.loaded(runner, runner.step, runner.step)
    assert start_up.memory.streamer is not None and start_up.times.layer_load_s > 0
    start_up.memory.check_integrity()


def test_what_was_proven_is_not_proven_again(tmp_path: Path) -> None:
    record = tmp_path / "proofs" / KEY
    with pytest.raises(UnsupportedModel):
        start(record, Model(Remembering))
    assert not record.exists(), "only what held is recorded"
    start(record, Model())
    assert record.stat().st_mode & 0o777 == 0o600
    assert record.parent.stat().st_mode & 0o777 == 0o700
    start(record, Model(Remembering))  # a proof would find it


def cut(record: Path) -> None:
    record.write_bytes(record.read_bytes()[:-1])


def other_byte(record: Path) -> None:
    data = bytearray(record.read_bytes())
    data[-10] ^= 1
    record.write_bytes(data)


def emptied(record: Path) -> None:
    record.write_bytes(b"")


def of_others(record: Path) -> None:
    record.chmod(0o660)


def linked(record: Path) -> None:
    elsewhere = record.rename(record.with_name("elsewhere"))
    record.symlink_to(elsewhere)


def a_folder(record: Path) -> None:
    record.unlink()
    record.mkdir()


def of_another_key(record: Path) -> None:
    start(other := record.with_name("o" * 64), Model())
    other.rename(record)


def of_other_layers(record: Path) -> None:
    record.unlink()
    start(record, Model(layers=3))


@pytest.mark.parametrize(
    "odd",
    [cut, other_byte, emptied, of_others, linked, a_folder, of_another_key, of_other_layers],
)
def test_an_odd_record_is_as_good_as_none(odd: Callable[[Path], None], tmp_path: Path) -> None:
    record = tmp_path / KEY
    start(record, Model())
    odd(record)
    with pytest.raises(UnsupportedModel):
        start(record, Model(Remembering))
    start(record, Model())
    if not record.is_dir():  # it was made anew
        start(record, Model(Remembering))


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    start(tmp_path / "file" / KEY, Model())


@pytest.mark.slow
def test_all_that_a_proof_depends_on_is_in_its_key(tmp_path: Path) -> None:
    """For a real engine's configuration, each change of `CHANGES` gives another key, and what is in
    `SAME` gives the same. A new process computes them, whose imports are its own.
    """
    model, out = make_model("llama", tmp_path, layers=2), tmp_path / "keys.json"
    must(spawn_anew("proof_keys.py", model, out, environment={"TMPDIR": os.fspath(tmp_path)}))
    keys = json.loads(out.read_text())
    assert keys.keys() == {"first", *SAME, *CHANGES}
    assert [name for name in SAME if keys[name] != keys["first"]] == []
    known = {name: keys[name] for name in ("first", *CHANGES) if keys[name] is not None}
    assert [name for name in known if list(known.values()).count(known[name]) > 1] == []
    assert {name for name in CHANGES if keys[name] is None} == {"code since", "no folder"}
