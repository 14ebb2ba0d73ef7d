"""Holds exported pages between the process that let go of them and the one that takes them.

Pages in a depot count as free memory, so it keeps them for a moment only: what nobody took is
dropped, which frees it, and everything is while somebody allocates who does not ask a depot.
The file descriptors die with the process, and the memory behind them with the last of them.
"""

from __future__ import annotations

import logging
import os
import resource
import selectors
import socket
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import NamedTuple

from vmm.exchange import (
    AT_ONCE,
    COMMIT,
    OFFER,
    PAGES,
    VERSION,
    WANT,
    ExchangeError,
    close_all,
    hear,
    receive,
    say,
)
from vmm.orders import Orders

logger = logging.getLogger("vmm.depot")

LINGER_S = 1.0
"""After which a page that nobody took is dropped."""
PAUSE_S = 0.1
WANTED_FILES = 65536
"""Of the process; the depot takes half of what it gets."""


class Stored(NamedTuple):
    """One page: who let go of it, and when it is dropped (monotonic seconds)."""

    fd: int
    who: str
    until: float


@dataclass
class Counts:
    """In pages, since the start. `passed` are those that another than their giver took."""

    held: int = 0
    deposited: int = 0
    refused: int = 0
    withdrawn: int = 0
    passed: int = 0
    dropped: int = 0


@dataclass
class Guest:
    """One connected process. `pending` are pages that it has sent and may still hold itself."""

    socket: socket.socket
    who: str = ""
    key: str = ""
    room: int = 0
    """Pages of its offer that have not come yet."""
    pending: list[int] = field(default_factory=list)


class Depot:
    """A server at the Unix socket `path`, in a thread of its own from `start` to `stop`.

    A thread, since closing the last descriptor of a page is work of the driver: whoever started it
    never waits for that. All that is said to it is done there, one thing after the other, so
    that whoever finds it empty finds the memory of what it dropped free.

    `most` bounds the pages that it holds, by default by the file descriptors of this process.
    """

    def __init__(self, path: Path, most: int | None = None, linger_s: float = LINGER_S) -> None:
        self._path, self._linger_s = path, linger_s
        self._most = most
        self._counts = Counts()
        self._stores: dict[str, deque[Stored]] = {}
        self._guests: dict[int, Guest] = {}
        self._shut = 0
        self._orders = Orders()
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._door = _door()
        self._thread = threading.Thread(target=self._run, name="mirage-depot", daemon=True)

    # -- for the process that has it, from any thread -----------------------------------

    def start(self) -> None:
        """Listen. Raises `OSError`."""
        if self._most is None:
            self._most = raise_limit() // 2
        self._open_door(self._door)
        self._orders.open()
        self._selector.register(self._door, selectors.EVENT_READ, self._admit)
        self._selector.register(self._orders, selectors.EVENT_READ, self._orders.obey)
        self._thread.start()

    def listen(self) -> Future[None]:
        """Listen anew where somebody has removed the socket; the future raises `ValueError`."""
        return self._orders.give(self._listen_again)

    @property
    def serving(self) -> bool:
        """Life of the thread, from `start` to the end."""
        return self._thread.is_alive()

    def shut(self) -> Future[None]:
        """Drop everything and take nothing, until `open` was called as often; done when free."""
        return self._orders.give(self._begin_shut)

    def open(self) -> Future[None]:
        """Undo one `shut`."""
        return self._orders.give(self._end_shut)

    def counts(self) -> dict[str, int]:
        """See `Counts`."""
        return asdict(self._counts)

    def stop(self) -> None:
        """Drop everything and end. Idempotent, also without `start`."""
        if self._thread.is_alive():
            self._orders.give(self._end).result()
            self._thread.join()

    # -- in the thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                for key, _ in self._selector.select(self._drop_old()):
                    key.data()
        except Exception:
            logger.exception("the depot ends: pages are released and created from now on")
        finally:
            self._close()

    def _listen_again(self) -> None:
        try:
            door = _door()
        except OSError as error:
            raise ValueError(f"no socket can be made: {error}") from None
        try:
            self._open_door(door)
        except OSError as error:
            door.close()
            raise ValueError(f"no socket at {self._path}: {error}") from None
        self._selector.unregister(self._door)
        self._door.close()
        self._door = door
        self._selector.register(door, selectors.EVENT_READ, self._admit)

    def _open_door(self, door: socket.socket) -> None:
        door.bind(str(self._path))
        self._path.chmod(0o700)
        door.listen()

    def _begin_shut(self) -> None:
        self._shut += 1
        self._drop_all()

    def _end_shut(self) -> None:
        self._shut -= 1

    def _end(self) -> None:
        self._ended = True

    def _close(self) -> None:
        for guest in list(self._guests.values()):
            self._dismiss(guest)
        self._drop_all()
        self._selector.close()
        self._door.close()
        self._path.unlink(missing_ok=True)
        self._orders.close()

    # -- guests -------------------------------------------------------------------------

    def _admit(self) -> None:
        try:
            made, _ = self._door.accept()
        except OSError as error:  # no descriptors left, or it has gone already
            logger.warning("a process could not come to the depot: %s", error)
            time.sleep(PAUSE_S)  # it still knocks
            return
        made.setblocking(False)
        guest = self._guests[made.fileno()] = Guest(made)
        self._selector.register(made, selectors.EVENT_READ, lambda: self._attend(guest))

    def _attend(self, guest: Guest) -> None:
        try:
            if guest.key:
                self._answer(guest, *hear(guest.socket))
            else:
                self._greet(guest)
        except ExchangeError as error:
            logger.info("a process left the depot: %s: %s", guest.who or "unknown", error)
            self._dismiss(guest)
        except OSError as error:
            logger.warning("a process was sent away from the depot: %s: %s", guest.who, error)
            self._dismiss(guest)

    def _greet(self, guest: Guest) -> None:
        text, fds = receive(guest.socket)
        close_all(fds)
        words = text.decode(errors="replace").split(" ", 3)
        if len(words) != 4 or words[0] != VERSION:
            raise ExchangeError(f"{text[:80]!r} is no greeting")
        guest.key, guest.who = f"{words[1]} {words[2]}", words[3]

    def _answer(self, guest: Guest, word: bytes, count: int, fds: list[int]) -> None:
        if word == PAGES and len(fds) == count <= guest.room:
            guest.room -= count
            guest.pending += fds
            return
        close_all(fds)  # also of an offer that was taken and is no more, since all was dropped
        if word == OFFER:
            self._forget(guest)
            guest.room = min(count, self._room())
            self._counts.refused += count - guest.room
            say(guest.socket, OFFER, guest.room)
        elif word == COMMIT:
            kept = self._keep(guest)
            say(guest.socket, COMMIT, kept)
        elif word == WANT:
            self._hand_out(guest, count)
        elif word != PAGES:
            raise ExchangeError(f"{word!r} is not known")

    def _room(self) -> int:
        """Pages that may come: none while it is shut."""
        if self._shut or self._most is None:
            return 0
        promised = sum(guest.room + len(guest.pending) for guest in self._guests.values())
        return max(0, self._most - self._counts.held - promised)

    def _keep(self, guest: Guest) -> int:
        """What a guest sent and holds no more is there for all."""
        until = time.monotonic() + self._linger_s
        store = self._stores.setdefault(guest.key, deque())
        store.extend(Stored(fd, guest.who, until) for fd in guest.pending)
        kept = len(guest.pending)
        self._counts.deposited += kept
        self._counts.held += kept
        guest.room, guest.pending = 0, []
        return kept

    def _hand_out(self, guest: Guest, count: int) -> None:
        store = self._stores.get(guest.key, deque())
        pages = [store.popleft() for _ in range(min(count, AT_ONCE, len(store)))]
        self._counts.held -= len(pages)
        self._counts.withdrawn += len(pages)
        self._counts.passed += sum(page.who != guest.who for page in pages)
        fds = [page.fd for page in pages]
        try:
            say(guest.socket, WANT, len(fds), fds)
        finally:
            close_all(fds)

    def _dismiss(self, guest: Guest) -> None:
        del self._guests[guest.socket.fileno()]
        self._selector.unregister(guest.socket)
        self._forget(guest)
        guest.socket.close()

    def _forget(self, guest: Guest) -> None:
        """What it sent and did not complete: it has not let go of it, or has ended."""
        close_all(guest.pending)
        guest.room, guest.pending = 0, []

    # -- dropping -----------------------------------------------------------------------

    def _drop_old(self) -> float | None:
        """Some of what nobody took; seconds until there is more to drop, None if never.

        Not all at once: the others may be wanted meanwhile.
        """
        now = time.monotonic()
        for store in self._stores.values():
            for _ in range(AT_ONCE):
                if not store or store[0].until > now:
                    break
                self._drop(store)
        times = [store[0].until for store in self._stores.values() if store]
        return max(0.0, min(times) - now) if times else None

    def _drop_all(self) -> None:
        for store in self._stores.values():
            while store:
                self._drop(store)
        for guest in self._guests.values():
            self._forget(guest)

    def _drop(self, store: deque[Stored]) -> None:
        os.close(store.popleft().fd)
        self._counts.held -= 1
        self._counts.dropped += 1


def raise_limit(wanted: int = WANTED_FILES) -> int:
    """Let this process, and those that it starts, open more files; how many it may."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)


def _door() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
