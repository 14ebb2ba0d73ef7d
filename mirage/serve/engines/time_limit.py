"""Wait with a time limit, which counts only seconds in which this server runs.

So a pause of the whole machine or container makes no wait late.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

LOOK_S = 0.2
"""Least seconds between two looks at a clock that may stand still or lag."""

T = TypeVar("T")


async def within(seconds: float, running: Callable[[], float], work: Coroutine[Any, Any, T]) -> T:
    """Result of `work`.

    Raises `TimeoutError` after `seconds` seconds of `running`, the time for which this process has
    run, and cancels `work`.
    """
    until, task = running() + seconds, asyncio.ensure_future(work)
    try:
        while not task.done():
            if (left := until - running()) <= 0:
                raise TimeoutError
            await asyncio.wait([task], timeout=max(left, LOOK_S))
        return task.result()
    finally:
        task.cancel()
        await asyncio.wait([task])
