"""Signals that end a command take the way of Ctrl-C, so that it can clean up; or wait."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""A terminal sends them to all processes of a command at once."""


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
    """Ctrl-C and SIGHUP come after the block; processes that start inside it never hear of them.

    They inherit that both are blocked. That alone does not keep them away here: a thread that does
    not block them, a library's own for one, takes the signal, and Python calls its handler in the
    main thread all the same. So the handlers wait as well. Main thread only.
    """
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in OF_TERMINALS}
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            signal.raise_signal(came[0])
