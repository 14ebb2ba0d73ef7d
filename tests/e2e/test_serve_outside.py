"""GPU memory that engines take outside their grants is reported; an engine without room fails."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from supervised import serving, write_config

from mirage.units import GIB, MIB

pytestmark = pytest.mark.e2e
TOTAL = GIB
"""Memory of the device in bytes, as the fake engine reports it; tenants may hold 64 MiB of it."""


def test_it_is_told_in_a_line_and_in_the_state(tmp_path: Path) -> None:
    memory = {"FAKE_MEMORY": f"{700 * MIB} {TOTAL}"}
    with serving(write_config(tmp_path, "a"), environment=memory) as served:
        outside = served.request("GET", "/mirage/state")[1]["outside"]
        taken = outside["engines"]["a"]
        assert outside["device_bytes"] == TOTAL
        assert outside["left_bytes"] == TOTAL - 64 * MIB - taken
        assert 260 * MIB <= taken <= 324 * MIB, "what is neither free nor booked"
        _, stderr = served.end(signal.SIGTERM)
    lines = [line for line in stderr.splitlines() if "memory outside grants: a " in line]
    assert len(lines) == 1 and lines[0].endswith("left beside device.memory")


def test_a_start_that_leaves_too_little_is_refused_in_one_sentence(tmp_path: Path) -> None:
    memory = {"FAKE_MEMORY": f"{100 * MIB} {TOTAL}"}
    config = write_config(tmp_path, "a")
    with serving(config, environment=memory, ready_timeout_s=None) as served:
        _, stderr = served.process.communicate(timeout=120)
    assert served.process.returncode == 1
    error = next(line for line in stderr.splitlines() if line.startswith("mirage: error: "))
    assert (
        "tenant 'a': " in error and "of the GPU are left beside device.memory (64.0 MiB)" in error
    )
    assert "512.0 MiB have to be: lower device.memory by " in error


def test_a_host_tells_nothing(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, "a")) as served:
        assert "outside" not in served.request("GET", "/mirage/state")[1]
