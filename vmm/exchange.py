"""Pages handed to another process of the same device, instead of released here and created there.

A depot (`vmm.depot`) holds file descriptors of exported pages for whoever asks first. An
`Exchange` is one process's way to it. Whatever goes wrong on that way, pages are released and
created as without it: it costs one line in the log and some milliseconds, never an error.

Both ends speak over a `SOCK_SEQPACKET` socket: one message, one word, and its descriptors.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

from vmm.driver import Page, VmmError

logger = logging.getLogger("vmm.exchange")

VERSION = "mirage-depot-1"
AT_ONCE = 64
"""File descriptors in one message; the kernel takes 253."""
OFFER, PAGES, COMMIT, WANT = b"o", b"p", b"c", b"w"
WORD = struct.Struct("!cI")
"""What is meant, and how many pages."""
LONGEST = 512
"""Bytes of a message."""
TIMEOUT_S = 0.05
"""The longest wait for one answer of the depot: a step may be waiting for this one."""
REST_S = 5.0
"""Without the depot after it failed."""


class ExchangeError(Exception):
    """The other end does not speak as agreed, or has gone."""


class Sharing(Protocol):
    """A driver whose pages can go to other processes, as `vmm.cuda.CudaDriver` with `shareable`."""

    page_bytes: int

    def release(self, pages: Sequence[Page]) -> None: ...

    def export_page(self, page: Page) -> int: ...

    def import_page(self, fd: int) -> Page: ...


class Exchange:
    """A `vmm.pages.Supply`: the way of this process, `who`, to the depot at `path`.

    `device` names the GPU so that all processes mean the same one; pages only go to those that
    name the same, with pages of the same size. Calls come from one thread at a time.
    """

    def __init__(
        self,
        driver: Sharing,
        path: Path,
        device: str,
        who: str,
        timeout_s: float = TIMEOUT_S,
        rest_s: float = REST_S,
    ) -> None:
        self._driver, self._path, self._timeout_s, self._rest_s = driver, path, timeout_s, rest_s
        self._hello = f"{VERSION} {device} {driver.page_bytes} {who}".encode()
        self._socket: socket.socket | None = None
        self._not_before = 0.0
        self._failing = False

    def withdraw(self, count: int) -> list[Page]:
        """Up to `count` pages out of the depot; fewer, or none, if it has run empty.

        Old bytes are in them, perhaps another process's.
        """
        pages: list[Page] = []
        self._tried(lambda: self._withdraw(count, pages))
        return pages

    def deposit(self, pages: Sequence[Page]) -> None:
        """Release pages here; those that the depot takes exist on in it.

        Others get them only once nothing is left of them here. Raises as `Driver.release` does,
        and then the depot has none.
        """
        offered = bool(pages) and self._tried(lambda: self._send(pages))
        try:
            self._driver.release(pages)
        except VmmError:
            self.close()  # and the depot forgets what it was sent
            raise
        if offered:
            self._tried(self._commit)

    def close(self) -> None:
        """Leave the depot; what was not completed has no effect there. Idempotent."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    # -- one conversation ---------------------------------------------------------------

    def _withdraw(self, count: int, pages: list[Page]) -> bool:
        while (missing := min(AT_ONCE, count - len(pages))) > 0:
            _, fds = self._ask(WANT, missing)
            self._import(fds, pages)
            if len(fds) < missing:
                break
        return bool(pages)

    def _import(self, fds: Sequence[int], pages: list[Page]) -> None:
        try:
            for fd in fds:
                pages.append(self._driver.import_page(fd))
        finally:
            close_all(fds)

    def _send(self, pages: Sequence[Page]) -> bool:
        """As many as there is room for. They are not others' before `_commit`."""
        room, _ = self._ask(OFFER, len(pages))
        for start in range(0, room, AT_ONCE):
            fds: list[int] = []
            try:
                for page in pages[start : min(start + AT_ONCE, room)]:
                    fds.append(self._driver.export_page(page))
                say(self._there(), PAGES, len(fds), fds)
            finally:
                close_all(fds)
        return room > 0

    def _commit(self) -> bool:
        return self._ask(COMMIT, 0)[0] > 0

    def _ask(self, word: bytes, count: int) -> tuple[int, list[int]]:
        """The number, and the file descriptors, that the answer has."""
        there = self._there()
        say(there, word, count)
        answer, number, fds = hear(there)
        if answer != word or (number > count and word != COMMIT):
            close_all(fds)
            raise ExchangeError(f"{answer!r} {number} is no answer to {word!r} {count}")
        return number, fds

    def _there(self) -> socket.socket:
        if self._socket is None:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                made.settimeout(self._timeout_s)
                made.connect(str(self._path))
                made.send(self._hello)
            except OSError:
                made.close()
                raise
            self._socket = made
        return self._socket

    # -- what goes wrong ----------------------------------------------------------------

    def _tried(self, what: Callable[[], bool]) -> bool:
        """What came of it; False if it failed, and for a while after that."""
        if time.monotonic() < self._not_before:
            return False
        try:
            done = what()
        except (OSError, ExchangeError, VmmError) as error:
            self._failed(error)
            return False
        self._failing = False
        return done

    def _failed(self, error: Exception) -> None:
        self.close()
        self._not_before = time.monotonic() + self._rest_s
        if not self._failing:
            logger.warning(
                "pages are released and created, for the exchange failed: %s",
                str(error) or type(error).__name__,
            )
        self._failing = True


def say(there: socket.socket, word: bytes, count: int, fds: Iterable[int] = ()) -> None:
    """One message. The descriptors stay open here."""
    socket.send_fds(there, [WORD.pack(word, count)], list(fds))


def hear(there: socket.socket) -> tuple[bytes, int, list[int]]:
    """The next message. Raises `ExchangeError` at the end, or if some of it was lost."""
    text, fds = receive(there)
    if len(text) != WORD.size:
        close_all(fds)
        raise ExchangeError("the other end has gone" if not text else f"{text!r} is no word")
    word, count = WORD.unpack(text)
    return word, count, fds


def receive(there: socket.socket) -> tuple[bytes, list[int]]:
    """One message as it is. Raises `ExchangeError` if descriptors of it were lost."""
    # No child that this process starts shall hold memory by them.
    text, fds, flags, _ = socket.recv_fds(there, LONGEST, AT_ONCE, socket.MSG_CMSG_CLOEXEC)
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        close_all(fds)
        raise ExchangeError("a message was too long, or this process has no descriptors left")
    return text, fds


def close_all(fds: Iterable[int]) -> None:
    """What nobody else holds is free memory then."""
    for fd in fds:
        os.close(fd)
