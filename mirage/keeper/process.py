"""Process that holds the masters in memory files: `python -m mirage.keeper.process`.

Engines ask for a master at its socket, and map it. The process ends when the server tells it to, or
when the server's connection ends and the lease after that is over without a new server. Memory that
engines have mapped stays theirs.
"""

from __future__ import annotations

import argparse
import logging
import os
import selectors
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path

from mirage.keeper import memfds
from mirage.keeper import messages as said
from mirage.keeper.books import (
    DropMaster,
    GiveMaster,
    KeeperBooks,
    KeeperDeed,
    LetFill,
    TurnAway,
)
from mirage.keeper.messages import FromAsking, ToKeeper
from mirage.protocol import LEASE_MARGIN_S
from mirage.wire import Broken, Channel

logger = logging.getLogger("mirage.keeper")

Asking = Channel[FromAsking]


class WeightKeeper:
    """Keeper of masters. `server` is the channel to `mirage serve`; engines connect at `path`.

    Raises `OSError` if it cannot listen there.
    """

    def __init__(self, server: Channel[ToKeeper], path: Path, books: KeeperBooks) -> None:
        self._server, self._path, self._books = server, path, books
        self._files: dict[str, int] = {}
        """Descriptors of the masters, by the weights' identity."""
        self._members: dict[int, Asking] = {}
        """Engines by the numbers of their sockets; a number is used again once its socket is
        closed.
        """
        self._wanted: dict[int, said.AskMaster] = {}
        self._brought: dict[int, list[int]] = {}
        """Descriptors that engines brought along, until they are masters or the engine ends."""
        self._told: said.MastersTold | None = None
        self._lease_s, self._until = 0.0, inf
        """Seconds of the lease; monotonic time of its end, infinite while there is a server."""
        self._ended = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(server, selectors.EVENT_READ)
        self._listen()
        server.say(said.KeeperReady())

    def run(self) -> None:
        """Serve until the server says `EndKeeper`, or has gone and the lease is over."""
        while not self._ended and time.monotonic() < self._until:
            left = None if self._until == inf else max(0.0, self._until - time.monotonic())
            for key, events in self._selector.select(left):
                if key.fileobj is self._door:
                    self._admit()
                elif key.fileobj is self._server:
                    self._attend_server()
                else:
                    self._attend(key.data, events)
            self._tell()

    # -- the server ---------------------------------------------------------------------

    def _attend_server(self) -> None:
        try:
            self._hear_server()
        except Broken:
            self._selector.unregister(self._server)
            self._server.close()
            self._until = time.monotonic() + self._lease_s

    def _changes_server(self, member: int) -> None:
        """Take the connection of `member` as that of the new server. Raises `Broken` if there is a
        server.
        """
        if self._until == inf:
            raise Broken("there is a server")
        came = self._members.pop(member)
        there = came.socket.dup()
        came.close()
        self._brought.pop(member, None)
        there.setblocking(True)
        self._server = Channel(there, ToKeeper)
        self._selector.register(self._server, selectors.EVENT_READ)
        self._until, self._told = inf, None
        self._server.tell(said.KeeperReady())

    def _hear_server(self) -> None:
        self._server.read()
        while (heard := self._server.next()) is not None:
            match heard[0]:
                case said.KeeperLease(seconds):
                    self._lease_s = seconds + LEASE_MARGIN_S if seconds else 0.0
                case said.EndKeeper():
                    self._ended = True
                case said.ListenAgain():
                    self._selector.unregister(self._door)
                    self._door.close()
                    self._listen()
                case said.KeepFor(tenants):
                    self._carry_out(self._books.keeps_for(tenants))
                case said.ForgetTenant(tenant):
                    self._carry_out(self._books.forgets(tenant))

    def _listen(self) -> None:
        self._path.unlink(missing_ok=True)
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._door.bind(str(self._path))
        self._path.chmod(0o700)
        self._door.listen()
        self._selector.register(self._door, selectors.EVENT_READ)

    def _tell(self) -> None:
        if self._until < inf:
            return
        books = self._books
        told = said.MastersTold(
            books.tenants, len(books.masters), books.used_bytes, books.idle_bytes
        )
        if told != self._told:
            self._told = told
            self._server.tell(told)

    # -- engines ------------------------------------------------------------------------

    def _admit(self) -> None:
        with suppress(BlockingIOError):
            engine, _ = self._door.accept()
            made: Asking = Channel(engine, FromAsking, selector=self._selector, most_descriptors=1)
            self._members[made.fileno()] = made

    def _attend(self, engine: Asking, events: int) -> None:
        member = engine.fileno()
        try:
            if events & selectors.EVENT_WRITE:
                engine.flush()
            if not events & selectors.EVENT_READ:
                return
            engine.read()
            while (heard := engine.next()) is not None:
                if isinstance(heard[0], said.NewServer):
                    self._changes_server(member)
                    return
                self._brought.setdefault(member, []).extend(heard[1])
                self._hear(member, heard[0])
        except (Broken, KeyError):  # KeyError: the engine has no master
            self._dismiss(member)

    def _hear(self, member: int, message: FromAsking) -> None:
        match message:
            case said.AskMaster(tenant, identity, nbytes):
                if member in self._wanted:
                    raise Broken("it asks twice")
                self._wanted[member] = message
                self._carry_out(self._books.asked(member, tenant, identity, nbytes))
            case said.MasterFilled():
                try:
                    self._seal(member)
                except OSError as error:
                    raise Broken(f"its master cannot be sealed: {error}") from None
            case said.MasterUnfit(why):
                logger.warning("weights of %s are not kept: %s", self._wanted[member].tenant, why)
                self._carry_out(self._books.unfit(member, why))

    def _seal(self, member: int) -> None:
        """Seal the master that `member` has filled, and hand it to the members that wait.

        Raises `OSError` if a writable mapping is left, `KeyError` if `member` fills none.
        """
        nbytes = memfds.seal(self._files[self._books.filled_by(member)])
        deeds = self._books.filled(member, nbytes)
        self._members[member].tell(said.MasterSealed())
        self._carry_out(deeds)

    def _dismiss(self, member: int) -> None:
        """Close the connection of an engine that has ended or broke the protocol; note it in the
        books.
        """
        self._members.pop(member).close()
        self._wanted.pop(member, None)
        for fd in self._brought.pop(member, ()):
            os.close(fd)
        self._carry_out(self._books.gone(member))

    # -- what the books want ------------------------------------------------------------

    def _carry_out(self, deeds: Sequence[KeeperDeed]) -> None:
        for deed in deeds:
            match deed:
                case DropMaster(identity):
                    if (fd := self._files.pop(identity, None)) is not None:
                        os.close(fd)
                case GiveMaster(member, identity):
                    self._give(member, identity)
                case LetFill(member, identity):
                    self._let_fill(member, identity)
                case TurnAway(member, why):
                    self._members[member].tell(said.NoMaster(why))

    def _give(self, member: int, identity: str) -> None:
        if self._brought[member]:  # it brought the master along
            self._members[member].tell(said.MasterSealed())
        else:
            self._members[member].tell(said.MasterHere(), [self._files[identity]])

    def _let_fill(self, member: int, identity: str) -> None:
        try:
            if self._brought[member]:
                self._files[identity] = self._brought[member].pop()
                self._seal(member)
                return
            self._files[identity] = memfds.new_file(self._wanted[member].nbytes)
        except OSError as error:
            self._members[member].tell(said.NoMaster(f"it has no memory file ({error})"))
            self._carry_out(self._books.gone(member))
            return
        self._members[member].tell(said.FillMaster(), [self._files[identity]])


def main(words: Sequence[str] | None = None) -> None:
    """Run the keeper with the arguments `words`, by default those of this process.

    Returns when `WeightKeeper.run` does.
    """
    parser = argparse.ArgumentParser(prog="keeper")
    kinds = (("path", Path), ("server", int), ("idle_bytes", int), ("most_bytes", int))
    for name, kind in kinds:
        parser.add_argument(name, type=kind)
    given = parser.parse_args(words)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the server ends first
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=given.server) as there:
        server: Channel[ToKeeper] = Channel(there, ToKeeper)
        books = KeeperBooks(given.idle_bytes, given.most_bytes)
        with suppress(Broken):
            WeightKeeper(server, given.path, books).run()


if __name__ == "__main__":
    main()
