"""Host pool behind a Unix socket, in a thread of its own.

In its own thread it does not delay decisions about device memory, nor do these delay it. It never
waits for an engine: an engine that does not read is disconnected, and one message of each is
handled at a time. An engine that breaks the protocol is disconnected, without effect on others.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from mirage.tiers.acting import Acting
from mirage.tiers.blocks import Name
from mirage.tiers.core import Core
from mirage.tiers.counts import PoolState
from mirage.tiers.guests import Guest, SentAway
from mirage.tiers.ledger import Due, PriorityClass
from mirage.tiers.lending.lenders import Lenders
from mirage.tiers.orders import Orders

logger = logging.getLogger("mirage.tiers")

STATE_S = 0.1
"""Least time in seconds between two snapshots of the state, while something happens."""
PAUSE_S = 0.1
SAVED_AT_ONCE = 64
"""Number of blocks that `save` lets be copied to the tier below at a time: fewer than that tier
takes into its queue."""
SAVE_POLL_S = 0.002

T = TypeVar("T")


class PoolServer:
    """Server at the Unix socket `path` from `start` to `stop`. `tenants` has the entitlement of
    each tenant by its name.

    Calls may come from any thread.
    """

    def __init__(
        self,
        path: Path,
        core: Core,
        tenants: Mapping[str, Due],
        peer_bytes_per_s: float | None = None,
        lenders: Lenders | None = None,
    ) -> None:
        self._path, self._core, self._tenants = path, core, dict(tenants)
        self._peer_bytes_per_s, self._lenders = peer_bytes_per_s, lenders
        for tenant, due in tenants.items():
            core.enrol(tenant, due)
        self._guests: dict[int, Guest] = {}
        """Engines by the number of their file descriptor."""
        self._orders = Orders()
        self._ended = False
        self._state, self._pictured, self._changed = core.state(), 0.0, False
        self._thread = threading.Thread(target=self._run, name="mirage-tiers", daemon=True)

    def start(self) -> None:
        """Make the pool's memory, listen, and start the thread. Raise `OSError` or, for a GPU that
        cannot lend, `HolderRefused`; nothing is left then."""
        self._acting = Acting(self._core, self, self._peer_bytes_per_s, self._lenders)
        try:
            self._orders.open()
            self._door = _door_at(self._path)
        except OSError:
            self._orders.close()
            self._acting.close()
            raise
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._door, selectors.EVENT_READ)
        self._selector.register(self._orders, selectors.EVENT_READ)
        self._selector.register(self._acting.lockers, selectors.EVENT_READ)
        self._thread.start()

    def listen(self) -> Future[None]:
        """Make a new socket at `path`, after the caller found that its file was removed; the future
        raises `ValueError` if that fails, as when the file is still there."""
        return self._order(self._listen_again)

    def dead(self, tenant: str) -> Future[None]:
        """Note that all processes of a tenant's engine have surely ended: its pins and places
        become free."""
        return self._order(partial(self._bury, tenant))

    def enrol(self, tenant: str, due: Due) -> Future[None]:
        """Add a tenant."""
        return self._order(partial(self._admit_tenant, tenant, due))

    def declares(self, tenant: str, due: Due) -> Future[None]:
        """Set the entitlement of a tenant."""
        return self._order(partial(self._redeclare, tenant, due))

    def remove(self, tenant: str) -> Future[None]:
        """Remove a tenant, for which `dead` has been called, and erase its blocks."""
        return self._order(partial(self._remove, tenant))

    def resize(self, budget: int) -> Future[None]:
        """Set the budget in bytes, at most that of the start; the future raises `ValueError` if it
        is larger."""
        return self._order(partial(self._core.resize, budget))

    def resize_peer(self, device: str, budget: int) -> Future[None]:
        """Set the bytes that a peer lends; the future raises `ValueError` as `Core.resize_peer`
        does."""
        return self._order(partial(self._core.resize_peer, device, budget))

    def stand(self, tenant: str, standing: PriorityClass) -> Future[None]:
        """Set the priority class of a tenant."""
        return self._order(partial(self._core.stand, tenant, standing))

    def state(self) -> PoolState:
        """Return the last snapshot; it lacks at most changes of the last `STATE_S` seconds."""
        return self._state

    @property
    def serving(self) -> bool:
        """True while the thread runs, from `start` to the end."""
        return self._thread.is_alive()

    def save(self, seconds: float, most_bytes: int) -> int:
        """Copy the blocks that only host memory has to the tier below, those first that would be
        evicted last; return the number of blocks left.

        It copies as many as `seconds` allow and `most_bytes` bytes of a disk hold. Blocks are left
        for lack of time, or because the disk did not take them; blocks for which `most_bytes` do
        not suffice are not counted.
        """
        until = time.monotonic() + seconds
        names = self._unsaved(most_bytes)
        some, rest = names[:1], names[1:]  # alone: a disk that has failed takes one at first
        while some and time.monotonic() < until:
            self._order(partial(self._core.save, some)).result()
            while self._asked(lambda: self._core.sinking) and time.monotonic() < until:
                time.sleep(SAVE_POLL_S)
            some, rest = rest[:SAVED_AT_ONCE], rest[SAVED_AT_ONCE:]
        return len(self._unsaved(most_bytes)) + (self._asked(lambda: self._core.sinking) or 0)

    def _unsaved(self, most_bytes: int) -> list[Name]:
        return self._asked(lambda: self._core.unsaved(most_bytes)) or []

    def stop(self) -> None:
        """Stop the thread, if it runs. Engines go on as if nothing were stored. A second call does
        nothing."""
        if self.serving:
            self._order(self._end).result()
            self._thread.join()

    def sunk(self, name: Name, *, whole: bool) -> None:
        self._order(partial(self._core.sunk, name, whole=whole))

    def risen(self, name: Name, *, whole: bool) -> None:
        self._order(partial(self._core.risen, name, whole=whole))

    def moved(self, name: Name, *, whole: bool) -> None:
        self._order(partial(self._core.moved, name, whole=whole))

    def returned(self, offset: int) -> None:
        self._order(partial(self._core.returned, offset))

    def lent_in_vain(self, offset: int) -> None:
        self._order(partial(self._core.lent_in_vain, offset))

    def lost(self, device: str) -> None:
        self._order(partial(self._core.lost, device))

    def _order(self, what: Callable[[], None]) -> Future[None]:
        return self._orders.give(partial(self._do, what))

    def _asked(self, what: Callable[[], T]) -> T | None:
        """Return what `what` returns in the thread; None once the thread has ended."""
        answers: list[T] = []
        self._order(lambda: answers.append(what())).result()
        return answers[0] if answers else None

    # -- in the thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._ended:
                self._round()
        except Exception:
            logger.exception("the host pool failed: engines compute again what it held")
        finally:
            self._close()

    def _round(self) -> None:
        """Handle one message of each engine that has sent any, carry out orders, and send
        answers."""
        ready = self._selector.select(self._wait_s())
        for key, _ in ready:
            if key.fileobj is self._door:
                self._admit()
            elif key.fileobj is self._orders:
                self._orders.obey()
            elif key.fileobj is self._acting.lockers:
                self._do(self._acting.lockers.attend)
        came = {key.fd for key, events in ready if events & selectors.EVENT_READ}
        for fd, guest in list(self._guests.items()):
            if self._guests.get(fd) is guest and (fd in came or guest.has_more):
                self._attend(guest, read=fd in came)
        for guest in list(self._guests.values()):
            self._flush(guest)
        self._picture()

    def _wait_s(self) -> float | None:
        if any(guest.has_more or guest.has_news for guest in self._guests.values()):
            return 0
        return STATE_S if self._changed else None

    def _attend(self, guest: Guest, *, read: bool) -> None:
        self._changed = True
        try:
            if read:
                guest.read()
            guest.obey(self._core, self._acting, self._tenants)
        except SentAway as error:
            level = logging.ERROR if error.fault else logging.INFO
            logger.log(level, "%s left the host pool: %s", guest.who, error)
            self._dismiss(guest)
        self._tell()

    def _tell(self) -> None:
        """Carry out the core's orders, and pass its messages to the engines."""
        guests = {guest.number: guest for guest in self._guests.values()}
        for tell in self._acting.carry_out():
            if (guest := guests.get(tell.seeker.member)) is not None:
                guest.tell(tell)

    def _flush(self, guest: Guest) -> None:
        try:
            guest.send()
        except SentAway as error:
            logger.warning("%s was disconnected from the host pool: %s", guest.who, error)
            self._dismiss(guest)
            self._tell()

    def _admit(self) -> None:
        try:
            made, _ = self._door.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptor is left, or the engine has gone
            logger.warning("an engine could not connect to the host pool: %s", error)
            time.sleep(PAUSE_S)  # the connection still waits to be accepted
            return
        self._guests[made.fileno()] = Guest(made, self._selector)

    def _dismiss(self, guest: Guest) -> None:
        del self._guests[guest.fileno()]
        guest.close()
        if guest.number is not None and guest.polite:
            self._core.ended(guest.number)
        elif guest.number is not None:
            self._core.gone(guest.number)

    def _bury(self, tenant: str) -> None:
        for guest in list(self._guests.values()):
            if guest.tenant == tenant:
                self._dismiss(guest)
        self._acting.lockers.dead(tenant)
        self._core.dead(tenant)

    def _admit_tenant(self, tenant: str, due: Due) -> None:
        self._tenants[tenant] = due
        self._core.enrol(tenant, due)

    def _redeclare(self, tenant: str, due: Due) -> None:
        self._tenants[tenant] = due
        self._core.declares(tenant, due)

    def _remove(self, tenant: str) -> None:
        self._tenants.pop(tenant, None)
        self._core.wipe(tenant)

    def _do(self, what: Callable[[], None]) -> None:
        self._changed = True
        what()
        self._tell()

    def _picture(self) -> None:
        now = time.monotonic()
        if self._changed and now >= self._pictured + STATE_S:
            self._state, self._pictured, self._changed = self._core.state(), now, False

    def _listen_again(self) -> None:
        try:
            door = _door_at(self._path)
        except OSError as error:
            raise ValueError(f"no socket at {self._path}: {error}") from None
        self._selector.unregister(self._door)
        self._door.close()
        self._door = door
        self._selector.register(door, selectors.EVENT_READ)

    def _end(self) -> None:
        self._ended = True

    def _close(self) -> None:
        self._state = replace(self._core.state(), serving=False, used_bytes=0)
        for guest in list(self._guests.values()):
            guest.close()
        self._guests.clear()
        self._selector.close()
        self._door.close()
        self._path.unlink(missing_ok=True)
        self._acting.close()
        self._orders.close()


def _door_at(path: Path) -> socket.socket:
    """Return a listening socket at `path`. Raise `OSError`; nothing is left open then."""
    door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        door.bind(str(path))
        path.chmod(0o700)
        door.listen()
    except OSError:
        door.close()
        raise
    return door
