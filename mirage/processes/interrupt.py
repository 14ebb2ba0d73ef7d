"""Contexts for signals that end a command: all act like Ctrl-C, or wait until the block ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all processes of a command at once."""


@contextmanager
def terminate_like_interrupt() -> Iterator[None]:
    """Context in which SIGTERM and SIGHUP raise `KeyboardInterrupt`, so that the command cleans up.

    SIGINT does so too, even where a shell started the command in its background with SIGINT
    ignored.
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
    """Context that delays Ctrl-C and SIGHUP to its end; processes started inside never get them.

    They inherit that both are blocked. For this process blocking is not enough: a thread that does
    not block them, such as a library's, takes the signal, and Python calls its handler in the main
    thread. So the handlers only note the signal, and the first is raised at the end. Main thread
    only.
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
