"""Splitting of a stream into whole events: the beginning of an incomplete event is held back. Pure.

If half an event were passed on before a break, a client would take the error event for its other
half.
"""

from __future__ import annotations

from mirage.units import MIB

ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
MOST_BYTES = MIB
"""Most bytes of one event that are held back; a longer one is passed on in pieces."""


class WholeEvents:
    """Splitter of a stream, which holds back the beginning of an incomplete event."""

    def __init__(self) -> None:
        self._held = b""
        self.is_open = False
        """True if a piece of an event was passed on without its end."""

    def take(self, chunk: bytes) -> bytes:
        """Add the next bytes of the stream; return those that may be passed on."""
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
        """Return the bytes that are still held back, at the end of the stream, and hold none."""
        held, self._held = self._held, b""
        return held
