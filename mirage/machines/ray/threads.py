"""Calls of Ray's functions, each in a daemon thread: the end of this process waits for no call.

A call may hang for as long as the cluster's head cannot be reached.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

MOST = 256
"""Most calls in progress at a time, calls that hang included."""
_free = threading.BoundedSemaphore(MOST)
T = TypeVar("T")


def begun(call: Callable[[], T]) -> Future[T]:
    """Begin `call` in a thread and return a future of its result.

    The future raises `TimeoutError` if `MOST` calls are in progress already.
    """
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
    """Return the result of `call`, run in a thread. Raises `TimeoutError` after `timeout_s`
    seconds, or if `MOST` calls are in progress already. A call that takes longer goes on, and its
    result is dropped.
    """
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[Future[T]] = loop.create_future()

    def settle(ended: Future[T]) -> None:
        if not waiting.done():
            waiting.set_result(ended)

    def tell(ended: Future[T]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(settle, ended)

    begun(call).add_done_callback(tell)
    async with asyncio.timeout(timeout_s):
        return (await waiting).result()
