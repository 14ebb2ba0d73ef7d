"""Places of a layer's experts in its range. Pure."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

Span = tuple[int, int]
"""Part of a layer's range: offset and bytes, both whole pages."""


class Piece(NamedTuple):
    """Slices of one tensor, one for each expert: offset of the first slice in the layer's range,
    and bytes of each slice."""

    start: int
    nbytes: int


@dataclass(frozen=True)
class ExpertLayout:
    """Places of the `count` experts of each of `layers`, at the same offsets in all of them; each
    expert has a slice of every piece."""

    layers: tuple[int, ...]
    count: int
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of one expert over all tensors."""
        return sum(piece.nbytes for piece in self.pieces)

    @property
    def most(self) -> int:
        """Largest number of experts of each layer that can be given away: one stays."""
        return self.count - 1

    def spans(self, number: int) -> list[Span]:
        """Return the parts of a layer's range that one expert takes."""
        return [(piece.start + number * piece.nbytes, piece.nbytes) for piece in self.pieces]

    def outside(self, numbers: Collection[int], end: int) -> list[Span]:
        """Return the parts of a range before `end` that belong to none of these experts."""
        out: list[Span] = []
        at = 0
        for start, nbytes in sorted(span for number in numbers for span in self.spans(number)):
            if start > at:
                out.append((at, start - at))
            at = start + nbytes
        return [*out, (at, end - at)] if end > at else out
