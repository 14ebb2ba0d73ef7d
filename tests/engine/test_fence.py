"""The fence: KV memory is unmapped only when no step in flight can touch it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from children import must, spawn

pytestmark = pytest.mark.engine


def test_fenced_extents_never_fault(tmp_path: Path) -> None:
    out = tmp_path / "fence.json"
    must(spawn("deferred.py", tmp_path, out, "fence"))
    facts = json.loads(out.read_text())
    assert facts["finished"] == 50
    assert facts["unmapped"] >= 50


def test_without_the_fence_a_step_in_flight_faults(tmp_path: Path) -> None:
    result = spawn("deferred.py", tmp_path, tmp_path / "nofence.json", "nofence")
    assert result.returncode == -signal.SIGSEGV, result.stderr[-2000:]
