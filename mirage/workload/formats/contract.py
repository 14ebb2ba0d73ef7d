"""Contract of a format's module: the format's name, how it is recognised, and its reader."""

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
    """Description of such a file in a few words, for messages."""
    fits: Callable[[Head], bool]
    """Function that is True if a file with this beginning may be of this format."""
    read: Callable[[Source], Iterator[TraceRequest]]
    """Function that yields the requests in order, one at a time. Raises `TraceError` for damaged
    rows.
    """
    has_arrivals: bool = True
    """False if the format has no arrivals: then all requests arrive at 0."""
    nearly: Callable[[Head], str | None] = lambda head: None
    """For a file that fits no format: the reason why it is not of this one, and what to do; None if
    unknown.
    """
    doubt: Callable[[Head], str | None] = lambda head: None
    """For a file that fits this format: evidence against it, and what to do; None if there is
    none.
    """
