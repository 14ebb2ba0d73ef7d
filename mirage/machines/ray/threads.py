"""Calls of Ray's in threads of their own, which the end of this process does not wait for.

A call may hang for as long as the cluster's head is away.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

MOST = 256
"""Calls at a time, those that hang included."""
_free = threading.BoundedSemaphore(MOST)
T = TypeVar("T")


def begun(call: Callable[[], T]) -> Future[T]:
    """The result of a call that has begun; `TimeoutError` if too many of them hang."""
    future: Future[T] = Future()
    if not _free.acquire(blocking=False):
        future.set_exception(TimeoutError(f"{MOST} calls of Ray hang"))
        return future

    def work() -> None:
        try:
            result = call()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        finally:
            _free.release()

    threading.Thread(target=work, name="mirage-ray", daemon=True).start()
    return future


async def within(timeout_s: float, call: Callable[[], T]) -> T:
    """The result of a call. Raises `TimeoutError`."""
    async with asyncio.timeout(timeout_s):
        # Unlike a task, the call cannot be cancelled: it goes on, and nobody hears of it.
        return await asyncio.shield(asyncio.wrap_future(begun(call)))
