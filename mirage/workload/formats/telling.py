"""Excerpts for messages: the beginning of a value or of an error, in one line. Pure."""

from __future__ import annotations

SHOWN = 80
"""Most characters of an excerpt."""


def shown(value: object) -> str:
    """Beginning of a value's `repr`."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def first_line(error: Exception) -> str:
    """Beginning of the first line of a library's error message."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:SHOWN]
