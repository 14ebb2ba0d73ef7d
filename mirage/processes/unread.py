"""Standard error that never blocks a writer: a thread of its own writes the text.

A stopped terminal (Ctrl-S), or a pipe whose reader sleeps, blocks each process that writes there. A
blocked server would decide about no memory, and send its engines no sign of life.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
import threading
from collections.abc import Iterator
from typing import TextIO, cast

MOST_CHARACTERS = 1 << 20
"""Most characters that wait to be written; text beyond them is lost, and its lines are counted."""
PATIENCE_S = 1.0
"""Seconds to wait at the end for text that has not been written."""


class Unread(io.TextIOBase):
    """Text stream over a file descriptor whose `write` never blocks."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waiting: list[str] = []
        self._characters = self._lost = 0
        self._ended = False
        self._news = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="mirage-stderr", daemon=True)
        self._thread.start()

    def write(self, text: str) -> int:
        with self._news:
            if self._characters + len(text) > MOST_CHARACTERS:
                self._lost += text.count("\n")
            else:
                self._waiting.append(text)
                self._characters += len(text)
                self._news.notify()
        return len(text)

    def fileno(self) -> int:
        return self._descriptor

    def end(self, patience_s: float = PATIENCE_S) -> None:
        """Write the text that still waits; return after `patience_s` seconds at most."""
        with self._news:
            self._ended = True
            self._news.notify()
        self._thread.join(patience_s)

    def _run(self) -> None:
        while (text := self._next()) is not None:
            data = text.encode(errors="backslashreplace")
            with contextlib.suppress(OSError):  # the terminal is gone
                while data:
                    data = data[os.write(self._descriptor, data) :]

    def _next(self) -> str | None:
        """Wait for text, and return all that is to be written; None at the end."""
        with self._news:
            self._news.wait_for(lambda: self._waiting or self._ended)
            if not self._waiting:
                return None
            if self._lost:
                self._waiting.append(f"mirage: {self._lost} lines were lost: nobody read them\n")
            text = "".join(self._waiting)
            self._waiting.clear()
            self._characters = self._lost = 0
            return text


@contextlib.contextmanager
def unread_stderr() -> Iterator[None]:
    """Context in which writing to standard error, or logging there, never blocks."""
    if sys.stderr is None:  # it was closed before the start
        yield
        return
    before, beside = sys.stderr, Unread(sys.stderr.fileno())
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is before
    ]
    _redirect(cast(TextIO, beside), handlers)
    try:
        yield
    finally:
        _redirect(before, handlers)
        beside.end()


def _redirect(stream: TextIO, handlers: list[logging.StreamHandler[TextIO]]) -> None:
    sys.stderr = stream
    for handler in handlers:
        handler.stream = stream
