"""Contexts for signals that end a command: all act like Ctrl-C, or wait until the block ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

OF_TERMINALS = (signal.SIGINT, signal.SIGHUP)
"""Signals that a terminal sends to all processes of a command together."""
ENDING = (*OF_TERMINALS, signal.SIGTERM)
"""Signals that end a command."""


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
def signals_wait(numbers: Sequence[signal.Signals] = ENDING) -> Iterator[None]:
    """Context that delays the handlers of signals to its end, such as those that end a command.

    An exception that a handler raises inside `subprocess.Popen` would leave a process that nobody
    ends. So a signal is only noted inside, and the handler of the first one is called at the end.
    Blocking would not be enough: a thread that does not block a signal, such as a library's, takes
    it, and Python calls its handler in the main thread. Other threads have no handlers: nothing is
    delayed in them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda n, _: came.append(n)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if came:
            _handle(came[0])


def _handle(number: int) -> None:
    """Call the handler of a signal. A signal raised again would reach an event loop twice, since
    asyncio hears of signals by a descriptor, beside the handler.
    """
    if callable(handler := signal.getsignal(number)):
        handler(number, None)
    else:
        signal.raise_signal(number)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """`signals_wait` for Ctrl-C and SIGHUP; processes started inside never get them, since they
    inherit that both are blocked. Main thread only.
    """
    with signals_wait(OF_TERMINALS):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, OF_TERMINALS)
        try:
            yield
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
