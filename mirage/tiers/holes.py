"""Free offsets of a region: best fit, and adjacent free ranges are merged. Pure."""

from __future__ import annotations

from typing import NamedTuple


class ByteRange(NamedTuple):
    """Range of bytes in a region."""

    offset: int
    nbytes: int


class Holes:
    """Free ranges of `span` bytes; all bytes are free at first."""

    def __init__(self, span: int) -> None:
        self._holes: list[ByteRange] = [ByteRange(0, span)] if span else []
        """Free ranges, sorted; no two of them touch."""

    @property
    def sizes(self) -> list[int]:
        """Bytes of each free range, in the order of their offsets."""
        return [hole.nbytes for hole in self._holes]

    def fit(self, nbytes: int) -> ByteRange | None:
        """Return the smallest free range that `nbytes` fit into, of equals the first; None if there
        is none."""
        fitting = [hole for hole in self._holes if hole.nbytes >= nbytes]
        return min(fitting, key=lambda hole: (hole.nbytes, hole.offset), default=None)

    def take(self, nbytes: int) -> int | None:
        """Take `nbytes` free bytes and return their offset; None if there is no room."""
        hole = self.fit(nbytes)
        if hole is None:
            return None
        self._holes.remove(hole)
        if hole.nbytes > nbytes:
            self._holes.append(ByteRange(hole.offset + nbytes, hole.nbytes - nbytes))
            self._holes.sort()
        return hole.offset

    def give(self, freed: ByteRange) -> None:
        """Make a range of bytes free again."""
        start, end = freed.offset, freed.offset + freed.nbytes
        kept = []
        for other in self._holes:
            if other.offset + other.nbytes == start:
                start = other.offset
            elif other.offset == end:
                end = other.offset + other.nbytes
            else:
                kept.append(other)
        self._holes = sorted([*kept, ByteRange(start, end - start)])
