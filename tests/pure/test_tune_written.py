"""``tuned.yaml`` lies in another folder, and names the same files."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from tune_case import write, write_trace

from mirage.tune import moved
from mirage.tune.question import Options, ask

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
    question = ask(write(tmp_path, replay={"trace": named}), Options(trace=trace))
    content = yaml.safe_load(moved.tuned(question, question.config, ["why"], tmp_path / "out"))
    assert content["replay"]["trace"] == expected
    assert content["tenants"][0]["model"] == "../model"
