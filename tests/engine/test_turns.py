"""Temporal sharing in the engine: the step after which a revoked engine stops, and its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from children import must, spawn

pytestmark = pytest.mark.engine


def _turns(folder: Path, mode: str) -> dict[str, Any]:
    out = folder / f"{mode}.json"
    must(spawn("turns.py", folder, out, mode))
    facts: dict[str, Any] = json.loads(out.read_text())
    return facts


def test_a_revoked_engine_stops_after_the_step_in_flight(tmp_path: Path) -> None:
    facts = _turns(tmp_path, "stop")
    assert facts == {
        "before": False,
        "while_executing": True,
        "after": False,
        "running": 2,
        "waiting": 2,
        "done": 0,
        "lengths": [12, 12, 12, 12],
    }


def test_a_draining_engine_finishes_what_runs_and_admits_nobody(tmp_path: Path) -> None:
    facts = _turns(tmp_path, "drain")
    assert facts == {
        "before": False,
        "while_executing": True,
        "after": False,
        "running": 0,
        "waiting": 2,
        "done": 2,
        "lengths": [12, 12, 12, 12],
    }


def test_a_request_preempted_while_draining_finishes_before_the_turn_ends(tmp_path: Path) -> None:
    facts = _turns(tmp_path, "preempt")
    assert (facts["done"], facts["running"], facts["waiting"]) == (2, 0, 2)
    assert not facts["after"]
    assert facts["lengths"] == [12, 12, 12, 12]
