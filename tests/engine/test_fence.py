"""The fence: KV memory is unmapped only when no step in flight can use it."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from children import must, spawn

pytestmark = pytest.mark.engine


@pytest.mark.drawn("how")
@pytest.mark.parametrize("how", ["sync", "async"])
def test_rows_name_no_block_behind_a_window_that_has_lost_its_memory(
    tmp_path: Path, how: str
) -> None:
    facts = json.loads(must(spawn("window_rows.py", tmp_path, how)).splitlines()[-1])
    assert facts["same"] and facts["asynchronous"] == (how == "async")
    assert facts["unmapped"] > 100
    assert facts["named"] > 1000 and facts["without_memory"] == 0


def test_fenced_extents_never_fault(tmp_path: Path) -> None:
    out = tmp_path / "fence.json"
    must(spawn("deferred.py", tmp_path, out, "fence"))
    facts = json.loads(out.read_text())
    assert facts["finished"] == 50
    assert facts["unmapped"] >= 50


@pytest.mark.slow
def test_without_the_fence_a_step_in_flight_faults(tmp_path: Path) -> None:
    result = spawn("deferred.py", tmp_path, tmp_path / "nofence.json", "nofence")
    assert result.returncode == -signal.SIGSEGV, result.stderr[-2000:]
