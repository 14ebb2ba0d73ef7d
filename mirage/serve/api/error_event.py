"""Error events by which vLLM ends a stream, found in whole events. Pure."""

from __future__ import annotations

MARKS = (b'data: {"error"', b"event: error\n")
"""Beginnings of error events, OpenAI's and Anthropic's. They cannot occur inside text, where JSON
escapes quotes and line ends.
"""


def has_error(events: bytes) -> bool:
    """True if one of these events, or the beginning of one, is an error event."""
    return MARKS[0] in events or MARKS[1] in events
