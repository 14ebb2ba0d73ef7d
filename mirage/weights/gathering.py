"""Missing chunks of a model, and the choice of the run that a source sends next. Pure.

A machine that has received a chunk sends it on. So a receiver first takes chunks that the fewest
sources have, and among those others than other receivers take: then one source sends each chunk
only once, and the receivers pass them on to each other. A source sends one run at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

MOST_CHUNKS, MOST_PART = 16, 1 / 32
"""Most chunks of a run, and its largest part of all chunks missing at first. After a run the source
may serve another receiver.
"""
MOST_WRONG = 3
"""Number of wrong chunks after which nothing more is taken from a source."""
PAUSES_S = 0.1, 0.2, 0.5, 1.0, 2.0, 5.0
"""Seconds before a source that failed is asked again, by the number of failures in a row."""
SHORT = 3
"""Number of `PAUSES_S`, from the first on, that are used for a source that only had nothing to send
yet."""

Chunks = Mapping[str, Collection[int]]
"""Numbers of chunks, by the hash of their file's content."""


class ChunkRun(NamedTuple):
    """Consecutive chunks of one file."""

    file: str
    """Hash of the file's content."""
    begin: int
    end: int


@dataclass
class _SourceState:
    """Knowledge about one source: the chunks that it has, and how it answered."""

    have: dict[str, frozenset[int]] = field(default_factory=dict)
    pauses: int = 0
    """Number of times in a row that it failed or had nothing to send."""
    why: str = ""
    """Last failure; empty if the source has answered since."""
    closed: bool = False
    wrong: set[tuple[str, int]] = field(default_factory=set)

    @property
    def told(self) -> str:
        """Reason why the source sends nothing more."""
        if self.wrong:
            return f"sent {len(self.wrong)} wrong chunks, run mirage weights verify there"
        return self.why or "has not all of it"


class Gathering:
    """Missing chunks of one model, and `sources` of them by address.

    Among chunks that equally many sources have, the order depends on `seed`, which differs for each
    receiver; without a seed it is the order of files and numbers.
    """

    def __init__(self, missing: Chunks, sources: Sequence[str], seed: str | None = None) -> None:
        self.missing = {file: set(chunks) for file, chunks in missing.items() if chunks}
        self._free = {file: set(chunks) for file, chunks in self.missing.items()}
        order = [(file, chunk) for file in self.missing for chunk in sorted(self.missing[file])]
        self._most = most = max(1, min(MOST_CHUNKS, int(len(order) * MOST_PART)))
        if seed is not None:
            order.sort(key=lambda one: (_drawn(seed, one[0], one[1] // most), one))
        self._rank = {one: place for place, one in enumerate(order)}
        self._sources = {source: _SourceState() for source in sources}

    @property
    def done(self) -> bool:
        """True if no chunk is missing."""
        return not any(self.missing.values())

    @property
    def open(self) -> list[str]:
        """Sources that are not closed, and may still send chunks."""
        return [name for name, state in self._sources.items() if not state.closed]

    @property
    def told(self) -> str:
        """All sources with the reasons why they send nothing, for one line."""
        return "; ".join(f"{name} {state.told}" for name, state in self._sources.items())

    def heard(self, source: str, have: Chunks) -> None:
        """Note the chunks that a source has reported to have."""
        state = self._sources[source]
        state.have = {file: frozenset(chunks) for file, chunks in have.items()}
        state.why = ""

    def failed(self, source: str, why: str, *, closed: bool = False) -> None:
        """Note that a request to a source failed for the reason `why`, empty for a busy source. The
        source counts as having no chunks until `heard` is called for it. With `closed` it is never
        asked again.
        """
        state = self._sources[source]
        state.why, state.have = why, {}
        state.closed |= closed

    def pause_s(self, source: str) -> float:
        """Seconds to wait before asking a source that failed, or had nothing to take. Each call
        counts as one more failure.
        """
        state = self._sources[source]
        state.pauses += 1
        pauses = PAUSES_S if state.why else PAUSES_S[:SHORT]
        return pauses[min(state.pauses, len(pauses)) - 1]

    def take(self, source: str) -> ChunkRun | None:
        """Next run of chunks for a source to send, reserved for it until `left`; None if it has no
        free one.
        """
        state = self._sources[source]
        free = self._free_of(state)
        if not free:
            return None
        file, begin = min(free, key=lambda one: (self._owners(*one), self._rank.get(one, 0)))
        owners, end = self._owners(file, begin), begin + 1
        while end - begin < self._most and (file, end) in free:
            if self._owners(file, end) != owners:
                break
            end += 1
        self._free[file] -= set(range(begin, end))
        return ChunkRun(file, begin, end)

    def got(self, source: str, file: str, chunk: int) -> None:
        """Note that a right chunk has arrived and is in the store."""
        self.missing[file].discard(chunk)
        self._free[file].discard(chunk)
        self._sources[source].pauses = 0

    def again(self, file: str, chunks: Collection[int]) -> None:
        """Note that chunks which had arrived are missing after all."""
        self.missing.setdefault(file, set()).update(chunks)
        self._free.setdefault(file, set()).update(chunks)

    def wrong(self, source: str, file: str, chunk: int) -> None:
        """Note that a wrong chunk has arrived from a source, which is closed after `MOST_WRONG`."""
        state = self._sources[source]
        state.wrong.add((file, chunk))
        state.closed |= len(state.wrong) >= MOST_WRONG

    def left(self, run: ChunkRun) -> None:
        """Free the missing chunks of a run that is over, or that other sources may send too."""
        self._free[run.file] |= self.missing[run.file].intersection(range(run.begin, run.end))

    def _free_of(self, state: _SourceState) -> set[tuple[str, int]]:
        if state.closed:
            return set()
        found = {(f, n) for f, free in self._free.items() for n in free & state.have.get(f, set())}
        return found - state.wrong

    def _owners(self, file: str, chunk: int) -> int:
        """Number of sources that have a chunk."""
        return sum(chunk in state.have.get(file, ()) for state in self._sources.values())


def _drawn(seed: str, file: str, part: int) -> bytes:
    """Sort key of a part of a file, in an order that differs for each seed."""
    return hashlib.sha256(f"{seed} {file} {part}".encode()).digest()
