"""The error event by which vLLM ends a stream, sought in an answer that comes in chunks (pure)."""

from __future__ import annotations

MARKS = (b'data: {"error"', b"event: error\n")
"""Beginnings of error events, OpenAI's and Anthropic's: no text holds one, as JSON escapes quotes
and line ends."""
LONGEST = max(map(len, MARKS))


class ErrorEvent:
    """`seen` turns true at the first mark, also at one that is split between chunks."""

    def __init__(self) -> None:
        self.seen = False
        self._tail = b""

    def look(self, chunk: bytes) -> None:
        """The next bytes of the answer."""
        begun = self._tail + chunk[:LONGEST]
        self.seen = self.seen or any(mark in begun or mark in chunk for mark in MARKS)
        self._tail = (self._tail + chunk)[1 - LONGEST :]
