"""Engine's end of peers' memory, which is mapped when it is first copied from or to, until it is
wanted back."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence

from mirage.tiers.contract import LentBy
from mirage.tiers.lending.engine_line import EngineLine, Taken
from vmm.driver import VmmError

logger = logging.getLogger("mirage.tiers")

Borrow = Callable[[int, int], Taken]
"""Function that maps a file descriptor's memory of so many bytes, as `vmm.cuda_slab.Slab` does. It
raises `VmmError`."""


class Borrower:
    """Peers' memory in an engine, by offsets of `BlockPlace`. One thread for each holder maps and
    unmaps."""

    def __init__(self, lenders: Sequence[LentBy], borrow: Borrow) -> None:
        """Connect to the lenders. Never raises: memory of a lender that cannot be reached does not
        exist here."""
        self._lines: list[tuple[LentBy, EngineLine[Taken]]] = []
        for lender in lenders:
            if (there := _connected(lender)) is not None:
                line = EngineLine(there, _mapping(borrow), _warn)
                self._lines.append((lender, line))

    def use(self, offset: int) -> int:
        """Return the address of the byte at `offset`, mapped until `let_go`. Raise `KeyError` if
        the lender refuses its memory, wants it back or does not answer, or if its line is lost."""
        return self._line(offset).use(offset)

    def let_go(self, offset: int) -> None:
        """End one use of the memory at `offset`; call it once for each `use`."""
        self._line(offset).let_go(offset)

    def close(self) -> None:
        """Close the lines; no copy may be in progress. A second call does nothing."""
        for _, line in self._lines:
            line.close()

    def _line(self, offset: int) -> EngineLine[Taken]:
        for lender, line in self._lines:
            if lender.offset <= offset < lender.offset + lender.nbytes:
                return line
        raise KeyError(f"offset {offset}: no peer has it")


def _connected(lender: LentBy) -> socket.socket | None:
    there = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        there.connect(lender.socket)
    except OSError as error:
        there.close()
        _warn(error.strerror or str(error))
        return None
    return there


def _mapping(borrow: Borrow) -> Callable[[int, int, Sequence[int]], Taken]:
    def take(offset: int, nbytes: int, fds: Sequence[int]) -> Taken:
        if not fds:
            raise VmmError("no file descriptor came with it")
        return borrow(fds[0], nbytes)

    return take


def _warn(why: str) -> None:
    logger.warning("a peer's memory is lost: %s; its KV blocks are computed anew", why)
