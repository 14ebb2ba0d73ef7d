"""Signals that end a command take the way of Ctrl-C, so that it can clean up; or wait."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """SIGTERM and SIGHUP raise `KeyboardInterrupt`, so that no process is left running.

    A shell starts what runs in its background with SIGINT ignored: that is undone here.
    """
    handler: Callable[..., None] = lambda *_: signal.raise_signal(signal.SIGINT)  # noqa: E731
    handlers = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: handler,
        signal.SIGHUP: handler,
    }
    before = {number: signal.signal(number, new) for number, new in handlers.items()}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C comes after the block; processes that start inside it never hear of it.

    They inherit that SIGINT is blocked. That alone does not keep it away here: a thread that does
    not block it, a library's own for one, takes the signal, and Python raises `KeyboardInterrupt`
    in the main thread all the same. So the handler waits as well. Main thread only.
    """
    came: list[int] = []
    handler = signal.signal(signal.SIGINT, lambda number, _: came.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
        if came:
            signal.raise_signal(signal.SIGINT)
