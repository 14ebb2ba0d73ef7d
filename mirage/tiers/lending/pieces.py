"""Pieces of a row of offsets, which can be found by any byte in them. Pure."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar


class Sized(Protocol):
    """Piece of memory with a size in bytes."""

    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=Sized)


class RangeMap(Generic[T]):
    """Pieces of memory by the offsets at which they begin; they never overlap."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._by_start: dict[int, T] = {}

    def __iter__(self) -> Iterator[int]:
        """Yield the offsets at which the pieces begin, in order."""
        return iter(list(self._starts))

    def add(self, offset: int, piece: T) -> None:
        """Add a piece at `offset`."""
        self._by_start[offset] = piece
        insort(self._starts, offset)

    def pop(self, offset: int) -> T | None:
        """Remove the piece that begins at an offset, and return it; None if there is none."""
        piece = self._by_start.pop(offset, None)
        if piece is not None:
            self._starts.remove(offset)
        return piece

    def get(self, offset: int) -> T | None:
        """Return the piece that begins at an offset; None if there is none."""
        return self._by_start.get(offset)

    def at(self, offset: int) -> tuple[int, T] | None:
        """Return the piece that contains the byte at `offset`, after the offset at which it begins;
        None if there is none."""
        place = bisect_right(self._starts, offset)
        if not place:
            return None
        start = self._starts[place - 1]
        piece = self._by_start[start]
        return (start, piece) if offset < start + piece.nbytes else None
