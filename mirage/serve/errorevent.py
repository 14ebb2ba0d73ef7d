"""The error event by which vLLM ends a stream, sought in whole events. Pure."""

from __future__ import annotations

MARKS = (b'data: {"error"', b"event: error\n")
"""Beginnings of error events, OpenAI's and Anthropic's: no text holds one, as JSON escapes quotes
and line ends."""


def has_error(events: bytes) -> bool:
    """True if one of these events, or the beginning of one, tells of an error."""
    return MARKS[0] in events or MARKS[1] in events
