"""Reason of a failed start, whether the API server or the core is seen to end first."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from mirage.serve.engines.errors import EngineFailed
from mirage.serve.engines.process import EngineProcess
from mirage.serve.engines.run import EngineRun
from mirage.serve.engines.start import EngineStart, StartLimits

pytestmark = pytest.mark.pure

SERVER = EngineFailed("the engine ended with exit code 1 before it was ready")


class EndedEngine:
    """Stand-in for an engine both of whose processes have ended with an error."""

    async def core_gone(self) -> None:
        """Return at once, because the core has ended already."""

    def core_status(self) -> int | None:
        return 1

    def last_error(self) -> str | None:
        return "RuntimeError: expected BFloat16"


def why(run: EngineRun, lost_s: float | None) -> str:
    """Reason of the failed start as found after the end of the API server. The core's connection
    ends `lost_s` seconds later, or never (None).
    """

    async def found() -> str:
        run.connected.set()
        if lost_s is not None:
            asyncio.get_running_loop().call_later(lost_s, lost)
        start = EngineStart(
            run,
            cast(EngineProcess, EndedEngine()),
            StartLimits(9, 9, 9, 9),
            lambda: 0.0,
            print,
            print,
        )
        return await start.why_not(SERVER)

    def lost() -> None:
        run.error = "RuntimeError"
        run.is_lost(None, server_has_ended=True)

    return asyncio.run(found())


def test_a_core_whose_end_is_seen_after_that_of_its_server_failed_in_its_first_step() -> None:
    told = why(EngineRun(), 0.05)
    assert told.startswith("the first step of the model failed: RuntimeError: expected BFloat16")


def test_a_core_that_had_stepped_has_not_failed_in_its_first_step() -> None:
    run = EngineRun()
    run.stepped.set()
    assert why(run, 0.05) == str(SERVER)


def test_a_core_that_stays_connected_is_awaited_for_a_bounded_time() -> None:
    assert why(EngineRun(), None) == str(SERVER)
