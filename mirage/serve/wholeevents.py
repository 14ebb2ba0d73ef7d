"""The events of a stream, passed on whole: one that breaks off midway is held back. Pure.

Behind half an event a client would take what is said of the break for the other half.
"""

from __future__ import annotations

from mirage.units import MIB

ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
MOST_BYTES = MIB
"""Bytes of one event that are held; a longer one is passed on in pieces."""


class WholeEvents:
    """Splitter of a stream, which holds the beginning of an incomplete event."""

    def __init__(self) -> None:
        self._held = b""
        self.is_open = False
        """True if a piece of an event was passed on, and its end was not."""

    def take(self, chunk: bytes) -> bytes:
        """The next bytes of the stream; returns those that may be passed on."""
        if not self._held and chunk.endswith(ENDS[0]):
            self.is_open = False
            return chunk
        held = self._held + chunk
        end = max(held.rfind(mark) + len(mark) if mark in held else 0 for mark in ENDS)
        if len(held) - end > MOST_BYTES:
            end = len(held)
            self.is_open = True
        elif end:
            self.is_open = False
        self._held = held[end:]
        return held[:end]

    def rest(self) -> bytes:
        """Bytes still held at the end of the stream; nothing is held afterwards."""
        held, self._held = self._held, b""
        return held
