"""A server with fake engines under random odd requests; tests/long has longer runs of the same."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from odd_clients import Front, Soak, fuzz
from supervised import serving, write_config

from mirage.units import MIB

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SEED = int(os.environ.get("MIRAGE_TEST_SEED", "0"))
NAMES = ("a", "b")


def test_nothing_in_our_document_is_answered_with_a_fault(tmp_path: Path) -> None:
    with serving(write_config(tmp_path, *NAMES)) as served:
        served.drain()
        found = fuzz(served, tmp_path, list(NAMES), 30, SEED, "fuzzing")
        print(dict(found))
        assert found and not [status for status in found if status >= 500 and status != 501]
        assert not [line for line in served.log if "internal errors" in line]
        assert served.end(signal.SIGTERM)[0] == 0


def test_three_thousand_operations_leave_nothing_open(tmp_path: Path) -> None:
    async def scenario(url: str, front: Front) -> None:
        soak = Soak(url, NAMES)
        await soak.run(500, SEED)
        memory, files = front.memory(), front.files()
        await soak.run(3000, SEED + 1)
        print(dict(soak.count), f"{(front.memory() - memory) / MIB:+.1f} MiB")
        assert not [status for status in soak.count if status >= 500]
        await front.has_at_most(files + 16)
        assert front.memory() - memory < 32 * MIB

    with serving(write_config(tmp_path, *NAMES)) as served:
        served.drain()
        asyncio.run(scenario(served.url, Front(served)))
        assert served.end(signal.SIGTERM)[0] == 0
