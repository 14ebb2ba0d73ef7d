"""Engine's end of a connection to the owner of memory: a piece is mapped or page-locked when it
is first needed, until it is wanted back.

A thread listens to the line, because the engine's own thread may be at rest.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

from mirage.tiers.lending.messages import Drop, Dropped, Gone, Here, ToEngine, Want
from mirage.tiers.lending.pieces import RangeMap, Sized
from mirage.wire import Broken, Channel
from vmm.driver import VmmError

logger = logging.getLogger("mirage.tiers")

WANT_S = 1.0
"""Longest time in seconds that a copy waits for memory which the engine has not taken yet."""


class Taken(Sized, Protocol):
    """Memory that this process has mapped or page-locked."""

    @property
    def address(self) -> int: ...

    def close(self) -> None:
        """Unmap or unlock the taken memory; no copy may be in progress. Raises `VmmError` if the
        driver refuses."""


T = TypeVar("T", bound=Taken)


class EngineLine(Generic[T]):
    """Pieces of memory that an engine takes and uses, over a connection to their owner (the line).

    `take` is called with a piece's offset, its bytes, and the descriptors that came with it, and
    returns the taken memory. `tell` is called once with a reason if the line is lost. With
    `lasting`, a piece that is wanted back may be used again while another copy uses it.
    """

    def __init__(
        self,
        there: socket.socket,
        take: Callable[[int, int, Sequence[int]], T],
        tell: Callable[[str], None],
        *,
        lasting: bool = False,
    ) -> None:
        """Start the thread; the socket belongs to the line from now on. If `take` raises
        `VmmError`, the line is lost."""
        self._channel: Channel[ToEngine] = Channel(there, ToEngine, most_descriptors=1)
        self._take, self._tell, self._lasting = take, tell, lasting
        self._taken: RangeMap[T] = RangeMap()
        self._uses: Counter[int] = Counter()
        """Number of copies in progress, by the offset at which their piece begins."""
        self._dropping: set[int] = set()
        self._gone: set[int] = set()
        """Offsets that were asked for, and whose memory the owner has refused."""
        self._lost = self._silent = False
        """True if the other end has gone; True if it did not answer in time."""
        self._change = threading.Condition()
        """Lock of all fields, and the signal that they have changed."""
        self._thread = threading.Thread(target=self._listen, name="mirage-memory", daemon=True)
        self._thread.start()

    def use(self, offset: int) -> int:
        """Return the address of the byte at `offset`, valid until `let_go`. Raise `KeyError` if the
        owner refuses its memory, wants it back or does not answer within `WANT_S` seconds, or if
        the line is lost."""
        with self._change:
            found = self._taken.at(offset)
            if found is None:
                self._want(offset)
                found = self._taken.at(offset)
            if found is None or (found[0] in self._dropping and not self._lasting):
                raise KeyError(f"offset {offset}: it is not to be had, or nobody answers")
            start, piece = found
            self._uses[start] += 1
            return piece.address + offset - start

    def let_go(self, offset: int) -> None:
        """End one use of the piece with the byte at `offset`; call it once for each `use`."""
        with self._change:
            found = self._taken.at(offset)
            assert found is not None, offset
            self._uses[found[0]] -= 1
            self._settle(found[0])

    def close(self) -> None:
        """Close the line; no copy may be in progress. A second call does nothing."""
        with self._change:
            self._lost = True
            self._uses.clear()
            for start in self._taken:
                self._settle(start)
        self._channel.shut()  # and the thread ends
        self._thread.join()
        self._channel.close()

    def _want(self, offset: int) -> None:
        """Ask for a byte's memory, and wait until it is taken or known to be unavailable.

        An owner that hangs costs one wait: nothing more is asked until it sends a message again.
        """
        if self._lost or self._silent:
            return
        self._gone.discard(offset)
        with suppress(Broken):
            self._channel.say(Want(offset))
            self._silent = not self._change.wait_for(
                lambda: self._lost or offset in self._gone or self._taken.at(offset), WANT_S
            )

    # -- in the thread ------------------------------------------------------------------

    def _listen(self) -> None:
        while True:
            try:
                message, fds = self._channel.wait()
            except Broken as error:
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

    def _heard(self, message: ToEngine, fds: Sequence[int]) -> None:
        match message:
            case Here(offset, nbytes):
                self._begin(offset, nbytes, fds)
            case Gone(offset):
                self._gone.add(offset)
            case Drop(offset):
                self._dropping.add(offset)
                self._settle(offset)

    def _begin(self, offset: int, nbytes: int, fds: Sequence[int]) -> None:
        if self._lost or self._taken.get(offset) is not None:
            return
        try:
            self._taken.add(offset, self._take(offset, nbytes, fds))
        except VmmError as error:
            self._lose(f"its memory cannot be used ({error})")

    def _settle(self, start: int) -> None:
        """Unmap or unlock the piece that begins at `start`; if that succeeds and the line is not
        lost, tell its owner. Do nothing while a copy uses the piece, or while its owner does not
        want it back and the line is not lost."""
        if self._uses[start] or not (self._lost or start in self._dropping):
            return
        piece = self._taken.pop(start)
        self._dropping.discard(start)
        del self._uses[start]
        try:
            if piece is not None:
                piece.close()
        except VmmError as error:
            logger.warning("memory that is wanted back cannot be given back: %s", error)
            return
        if not self._lost:
            with suppress(Broken):
                self._channel.say(Dropped(start))

    def _lose(self, why: str) -> None:
        """Ask for nothing any more; memory that copies use stays until they end."""
        with self._change:
            if not self._lost:
                self._tell(why)
            self._lost = True
            for start in self._taken:
                self._settle(start)
            self._change.notify_all()
        self._channel.shut()
