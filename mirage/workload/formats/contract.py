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
    """False if the format has no arrivals: `read` then yields all requests with arrival 0."""
    nearly: Callable[[Head], str | None] = lambda head: None
    """Function that is called for a file that fits no format. It returns the reason why the file is
    not of this format, and what to do; None if it knows none.
    """
    doubt: Callable[[Head], str | None] = lambda head: None
    """Function that is called for a file whose beginning fits this format. It returns the evidence
    that the file may have to be read in another way, and what to do; None without such evidence.
    """
