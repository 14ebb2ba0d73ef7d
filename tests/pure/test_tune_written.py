"""``tuned.yaml`` lies in another folder, and names the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tune_case import write, write_trace

from mirage.tools.tune import moved
from mirage.tools.tune.question import TuneOptions, ask

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("trace.csv", "../trace.csv"),
        ("sample", "sample"),
        (
            {"chat": "trace.csv", "code": "burstgpt-1"},
            {"chat": "../trace.csv", "code": "burstgpt-1"},
        ),
    ],
)
def test_the_replay_s_traces_are_found_from_there(
    tmp_path: Path, named: str | dict[str, str], expected: str | dict[str, str]
) -> None:
    trace = write_trace(tmp_path)
    question = ask(write(tmp_path, replay={"trace": named}), TuneOptions(trace=trace))
    content = yaml.safe_load(moved.tuned(question, question.config, ["why"], tmp_path / "out"))
    assert content["replay"]["trace"] == expected
    assert content["tenants"][0]["model"] == "../model"


@pytest.mark.parametrize(("named", "moved_to"), [("own.yaml", "../own.yaml"), ("h100", "h100")])
def test_a_profile_is_found_from_there(tmp_path: Path, named: str, moved_to: str) -> None:
    device = {"kind": "cuda", "memory": "640MiB", "page": "2MiB", "profile": named}
    content = written_from(tmp_path, device=device)
    assert content["device"]["profile"] == moved_to


@pytest.mark.parametrize(("named", "moved_to"), [("kv", "../kv"), ("/kv", "/kv")])
def test_the_folder_of_a_disk_is_found_from_there(
    tmp_path: Path, named: str, moved_to: str
) -> None:
    tiers = {"host": {"bytes": "1MiB"}, "ssd": {"directory": named, "bytes": "1MiB"}}
    content = written_from(tmp_path, tiers=tiers)
    assert content["tiers"]["ssd"]["directory"] == moved_to


def written_from(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """Content of `out/tuned.yaml` for a configuration with these keys."""
    question = ask(
        write(tmp_path, **changes), TuneOptions(trace=write_trace(tmp_path), profile="h100")
    )
    text = moved.tuned(question, question.config, ["why"], tmp_path / "out")
    return dict(yaml.safe_load(text))
