"""Probe of an engine's API server, over its socket."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp

SHORT_OF = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS}
"""Errors of a process, or a machine, that has no file descriptors or memory left."""
LOOK_S = 1.0
"""Seconds between two looks for an answer, and between an answer and the next question."""


async def silent(socket: Path, running: Callable[[], float], hang_s: float) -> AsyncIterator[float]:
    """Probe the server on `socket`; the iteration ends once it has not answered for `hang_s`
    seconds.

    Yields the seconds since the last answer at each look. Only one question is open at a time: a
    server that was stopped answers it when it is continued. `running` returns the seconds for which
    this process has run.
    """
    answered = running()
    connector = aiohttp.UnixConnector(str(socket), force_close=True)
    async with aiohttp.ClientSession(connector=connector) as http:
        while running() - answered < hang_s:
            question = asyncio.create_task(_answers(http))
            try:
                while not question.done() and running() - answered < hang_s:
                    yield running() - answered
                    await asyncio.wait([question], timeout=LOOK_S)
            finally:
                question.cancel()
            if question.done() and not question.cancelled() and question.result():
                answered = running()
                await asyncio.sleep(LOOK_S)


async def _answers(http: aiohttp.ClientSession) -> bool:
    """True if an answer comes, of whatever status: failures of the core are noticed elsewhere.

    Also true if this process lacks the resources to ask, which is no fault of the server.
    """
    try:
        async with http.get("http://engine/health", timeout=aiohttp.ClientTimeout(None)):
            return True
    except (aiohttp.ClientError, OSError) as error:
        await asyncio.sleep(LOOK_S)
        return getattr(error, "errno", None) in SHORT_OF
