"""What a module of this folder gives: its format's name, its mark, and its reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mirage.workload.formats.head import Head
from mirage.workload.formats.request import Request
from mirage.workload.formats.source import Source


@dataclass(frozen=True)
class Format:
    """One format of trace files."""

    name: str
    looks: str
    """How such a file looks, in a few words for messages."""
    fits: Callable[[Head], bool]
    """Whether a file that begins so may be of this format."""
    read: Callable[[Source], Iterator[Request]]
    """Requests in order, one at a time. Raises `TraceError` for what is damaged."""
    has_arrivals: bool = True
    """If not, all of its requests arrive at 0."""
    nearly: Callable[[Head], str | None] = lambda head: None
    """Of a file that fits no format: what keeps it from this one, and what to do."""
    doubt: Callable[[Head], str | None] = lambda head: None
    """Of a file that is taken for one of this format: what speaks against that, and what to do."""
