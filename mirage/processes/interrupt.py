"""Signals that end a command take the way of Ctrl-C, so that it can clean up."""

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
