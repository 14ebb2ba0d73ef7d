"""An engine's end of peers' memory: mapped when it is first copied from or to, until it is
wanted back."""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from mirage.tiers.contract import LentBy
from mirage.tiers.lending.messages import Any, Drop, Dropped, Ended, Gone, Here, Want, hear, say
from mirage.tiers.lending.pieces import Pieces, Sized
from vmm.driver import VmmError

logger = logging.getLogger("mirage.tiers")

WANT_S = 1.0
"""Most seconds that a copy waits for memory which the engine has not mapped yet."""


class Mapped(Sized, Protocol):
    """`vmm.cuda_slab.Slab`."""

    address: int

    def close(self) -> None: ...


Borrow = Callable[[int, int], Mapped]
"""Maps a file descriptor's memory of so many bytes. Raises `VmmError`."""


class Borrower:
    """All holders' memory, by offsets of `Place`. A thread for each holder maps and unmaps."""

    def __init__(self, lenders: Sequence[LentBy], borrow: Borrow) -> None:
        """Never raises: what cannot be reached is not there."""
        self._lines = [(lender, _Line(lender, borrow)) for lender in lenders]

    def use(self, offset: int) -> int:
        """The address of a byte, mapped until it is `let_go` of. Raises `KeyError`."""
        return self._line(offset).use(offset)

    def let_go(self, offset: int) -> None:
        """Once for each `use`."""
        self._line(offset).let_go(offset)

    def close(self) -> None:
        """With no copy under way. Idempotent."""
        for _, line in self._lines:
            line.close()

    def _line(self, offset: int) -> _Line:
        for lender, line in self._lines:
            if lender.offset <= offset < lender.offset + lender.nbytes:
                return line
        raise KeyError(f"offset {offset}: no peer has it")


class _Line:
    """To one holder."""

    def __init__(self, lender: LentBy, borrow: Borrow) -> None:
        self._borrow = borrow
        self._mapped: Pieces[Mapped] = Pieces()
        self._uses: Counter[int] = Counter()
        """Copies under way, by the first offset."""
        self._dropping: set[int] = set()
        self._gone: set[int] = set()
        """Bytes that were wanted, and that the holder has not."""
        self._lost = self._silent = False
        """Whether the holder has gone, or owes the answer that was waited for in vain."""
        self._change = threading.Condition()
        """Around all of it."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._socket.connect(lender.socket)
        except OSError as error:
            self._lose(error.strerror or str(error))
            return
        self._thread = threading.Thread(target=self._listen, name="mirage-peer", daemon=True)
        self._thread.start()

    def use(self, offset: int) -> int:
        with self._change:
            found = self._mapped.at(offset)
            if found is None:
                self._want(offset)
                found = self._mapped.at(offset)
            if found is None or found[0] in self._dropping:
                raise KeyError(f"offset {offset}: a peer has it no more, or does not answer")
            start, piece = found
            self._uses[start] += 1
            return piece.address + offset - start

    def let_go(self, offset: int) -> None:
        with self._change:
            found = self._mapped.at(offset)
            assert found is not None, offset
            self._uses[found[0]] -= 1
            self._settle(found[0])

    def close(self) -> None:
        with self._change:
            self._lost = True
            self._uses.clear()
            for start in self._mapped:
                self._settle(start)
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # and the thread ends
        if (thread := getattr(self, "_thread", None)) is not None:
            thread.join()
        self._socket.close()

    def _want(self, offset: int) -> None:
        """Wait until it is mapped, or is known not to be.

        A holder that hangs costs one wait: nothing more is asked until it is heard again.
        """
        if self._lost or self._silent:
            return
        self._gone.discard(offset)
        with suppress(OSError):
            say(self._socket, Want(offset))
            self._silent = not self._change.wait_for(
                lambda: self._lost or offset in self._gone or self._mapped.at(offset), WANT_S
            )

    # -- in the thread ------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                message, fds = hear(self._socket)
            except Ended as error:
                self._lose(str(error))
                return
            try:
                with self._change:
                    self._silent = False
                    self._heard(message, fds)
                    self._change.notify_all()
            finally:
                for fd in fds:
                    os.close(fd)

    def _heard(self, message: Any, fds: list[int]) -> None:
        match message:
            case Here(offset, nbytes) if fds:
                self._map(offset, nbytes, fds[0])
            case Gone(offset):
                self._gone.add(offset)
            case Drop(offset):
                self._dropping.add(offset)
                self._settle(offset)

    def _map(self, offset: int, nbytes: int, fd: int) -> None:
        if self._lost or self._mapped.get(offset) is not None:
            return
        try:
            self._mapped.add(offset, self._borrow(fd, nbytes))
        except VmmError as error:
            self._lose(f"its memory cannot be mapped ({error})")

    def _settle(self, start: int) -> None:
        """Unmap it, if it is to go and no copy is under way."""
        if self._uses[start] or not (self._lost or start in self._dropping):
            return
        piece = self._mapped.pop(start)
        self._dropping.discard(start)
        del self._uses[start]
        try:
            if piece is not None:
                piece.close()
        except VmmError as error:
            logger.warning("a peer's memory cannot be unmapped: %s", error)
            return
        if not self._lost:
            with suppress(OSError):
                say(self._socket, Dropped(start))

    def _lose(self, why: str) -> None:
        """It is not asked again; what copies use stays mapped until they end."""
        with self._change:
            if not self._lost:
                logger.warning("a peer's memory is lost: %s; its KV blocks are computed anew", why)
            self._lost = True
            for start in self._mapped:
                self._settle(start)
            self._change.notify_all()
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
