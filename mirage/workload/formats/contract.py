"""Contract of a module of this folder: its format's name, its mark, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mirage.workload.formats.head import Head
from mirage.workload.formats.request import TraceRequest
from mirage.workload.formats.source import Source


@dataclass(frozen=True)
class Format:
    """A format of trace files: how it is recognised, and how its rows are read."""

    name: str
    looks: str
    """Look of such a file, in a few words for messages."""
    fits: Callable[[Head], bool]
    """True if a file that begins so may be of this format."""
    read: Callable[[Source], Iterator[TraceRequest]]
    """Requests in order, one at a time. Raises `TraceError` for what is damaged."""
    has_arrivals: bool = True
    """False if all of its requests arrive at 0."""
    nearly: Callable[[Head], str | None] = lambda head: None
    """Reason why a file that fits no format is not of this one, and what to do; None if unknown."""
    doubt: Callable[[Head], str | None] = lambda head: None
    """Evidence against this format in a file that fits it, and what to do; None without any."""
