"""Excerpts of a file for messages: the beginning of a value or an error, on one line. Pure."""

from __future__ import annotations

SHOWN = 80
"""Characters of an excerpt at most."""


def shown(value: object) -> str:
    """A value as Python writes it."""
    text = repr(value)
    return text if len(text) <= SHOWN else text[: SHOWN - 1] + "…"


def first_line(error: Exception) -> str:
    """A library's word about what it could not read."""
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:SHOWN]
