"""Limits that count only the seconds in which the server has run."""

import asyncio
import itertools

import pytest

from mirage.serve.engines.time_limit import within

pytestmark = pytest.mark.pure


def test_time_that_passes_while_the_server_does_not_run_counts_for_nothing() -> None:
    async def scenario() -> None:
        looks = itertools.count()
        done = asyncio.Event()

        def running() -> float:
            """Clock that stands still, as in a pause of the whole process. The awaited event comes
            at the third look.
            """
            if next(looks) == 3:
                done.set()
            return 0.0

        assert await within(0.01, running, done.wait())

    asyncio.run(scenario())


def test_after_the_limit_the_work_is_cancelled() -> None:
    async def scenario() -> None:
        cancelled = asyncio.Event()

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()

        seconds = itertools.count()
        with pytest.raises(TimeoutError):
            await within(2, lambda: next(seconds), work())
        assert cancelled.is_set()

    asyncio.run(scenario())


def test_what_the_work_returns_or_raises_is_told() -> None:
    async def scenario() -> None:
        async def work(fails: bool) -> str:
            if fails:
                raise OSError("no")
            return "yes"

        assert await within(9, lambda: 0, work(False)) == "yes"
        with pytest.raises(OSError, match="no"):
            await within(9, lambda: 0, work(True))

    asyncio.run(scenario())
