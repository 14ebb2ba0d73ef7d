"""Process that holds the memory which one GPU lends: `python -m mirage.tiers.lending.holder`.

It makes memory when the server lends it, hands it to engines that ask for it, copies blocks of it
to host memory, and releases it when the last engine has unmapped it. It ends with the server.
"""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import selectors
import signal
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from mirage.tiers.lending import messages as said
from mirage.tiers.lending.messages import FromEngine, FromHolder, FromServer
from mirage.tiers.lending.pieces import RangeMap
from mirage.tiers.region import Region
from mirage.wire import Broken, Channel
from vmm.cuda import CudaDriver
from vmm.cuda_slab import Slab
from vmm.driver import VmmError
from vmm.host import host_buffer

logger = logging.getLogger("mirage.tiers.holder")


Engine = Channel[FromEngine]

BOUNCE_BYTES = 8 << 20
"""Bytes of page-locked memory through which blocks are copied to host memory, which itself is not
page-locked."""


class Lent:
    """Piece of lent memory, and the engines that have it; `slab` is None if the GPU had no memory
    for it."""

    def __init__(self, slab: Slab | None, nbytes: int) -> None:
        self.slab, self.nbytes = slab, nbytes
        self.with_engines: set[Engine] = set()
        self.wanted_back = False


class Holder:
    """Memory that one GPU lends. `server` is the channel to `mirage serve`, `host` the host pool's
    region."""

    def __init__(
        self, driver: CudaDriver, server: Channel[FromServer], path: Path, host: Region
    ) -> None:
        """Listen at `path`. Raises `OSError` if no socket can be made there, and `VmmError` if the
        driver refuses memory or a stream."""
        self._driver, self._server, self._host = driver, server, host
        self._stream = driver.stream()
        self._bounce = host_buffer(BOUNCE_BYTES, driver.host_node)
        driver.pin(self._bounce.address, BOUNCE_BYTES)
        self._host_view = (ctypes.c_char * host.nbytes).from_buffer(host.memory)
        self._lent: RangeMap[Lent] = RangeMap()
        self._waiting: list[tuple[Engine, int]] = []
        """Engines, with the offset they want, for memory that the server has not lent yet."""
        self._selector = selectors.DefaultSelector()
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self._door.bind(str(path))
        path.chmod(0o700)
        self._door.listen()
        for there in (self._door, server):
            self._selector.register(there, selectors.EVENT_READ)

    def run(self) -> None:
        """Serve until the server has gone; then raise `Broken`."""
        while True:
            for key, events in self._selector.select():
                if key.fileobj is self._door:
                    self._admit()
                elif key.fileobj is self._server:
                    self._hear_server()
                else:
                    self._attend(key.data, events)

    # -- the server ---------------------------------------------------------------------

    def _hear_server(self) -> None:
        self._server.read()
        while (heard := self._server.next()) is not None:
            self._obey(heard[0])

    def _obey(self, message: FromServer) -> None:
        match message:
            case said.LendMemory(offset, nbytes):
                self._lend(offset, nbytes)
            case said.ReturnMemory(offset):
                self._want_back(offset)
            case said.Copy(number, offset, target, nbytes):
                self._answer(said.Copied(number, self._copied(offset, target, nbytes)))

    def _lend(self, offset: int, nbytes: int) -> None:
        slab = None
        try:
            slab = Slab.lend(self._driver, nbytes)
        except VmmError as error:
            self._answer(said.LendFailed(offset, str(error)))
        self._lent.add(offset, Lent(slab, nbytes))
        waiting, self._waiting = self._waiting, []
        for engine, wanted in waiting:
            self._give(engine, wanted)

    def _want_back(self, offset: int) -> None:
        lent = self._lent.get(offset)
        if lent is None:
            raise Broken(f"nothing was lent at {offset}")
        lent.wanted_back = True
        for engine in lent.with_engines:
            engine.tell(said.Drop(offset))
        self._settle(offset)

    def _settle(self, offset: int) -> None:
        """Release a piece, if it is wanted back and no engine has it."""
        lent = self._lent.get(offset)
        if lent is None or lent.with_engines or not lent.wanted_back:
            return
        if lent.slab is not None:
            lent.slab.close()
        self._lent.pop(offset)
        self._answer(said.Returned(offset))

    def _copied(self, offset: int, target: int, nbytes: int) -> bool:
        """Copy a block to host memory; True if that succeeded."""
        found = self._lent.at(offset)
        if found is None or found[1].slab is None or target + nbytes > self._host.nbytes:
            return False
        start, slab = found[0], found[1].slab
        address = ctypes.addressof(self._host_view) + target
        try:
            for done in range(0, nbytes, BOUNCE_BYTES):
                size = min(BOUNCE_BYTES, nbytes - done)
                source = slab.address + offset - start + done
                self._stream.copy(self._bounce.address, source, size)
                self._stream.synchronize()
                ctypes.memmove(address + done, self._bounce.address, size)
        except VmmError as error:
            logger.warning("%d bytes were not copied to host memory: %s", nbytes, error)
            return False
        return True

    def _answer(self, message: FromHolder) -> None:
        self._server.say(message)

    # -- engines ------------------------------------------------------------------------

    def _admit(self) -> None:
        with suppress(BlockingIOError):
            engine, _ = self._door.accept()
            Channel(engine, FromEngine, selector=self._selector)

    def _attend(self, engine: Engine, events: int) -> None:
        try:
            if events & selectors.EVENT_WRITE:
                engine.flush()
            engine.read()
            while (heard := engine.next()) is not None:
                self._hear(engine, heard[0])
        except Broken:
            self._dismiss(engine)

    def _hear(self, engine: Engine, message: FromEngine) -> None:
        match message:
            case said.Want(offset):
                self._give(engine, offset)
            case said.Dropped(offset):
                self._let_go(engine, offset)

    def _give(self, engine: Engine, wanted: int) -> None:
        found = self._lent.at(wanted)
        if found is None:
            self._waiting.append((engine, wanted))
            return
        start, lent = found
        if lent.slab is None or lent.wanted_back:
            engine.tell(said.Gone(wanted))
            return
        try:
            fd = lent.slab.export()
        except VmmError as error:
            logger.warning("a copy cannot be given to an engine: %s", error)
            engine.tell(said.Gone(wanted))
            return
        lent.with_engines.add(engine)
        try:
            engine.tell(said.Here(start, lent.nbytes), [fd])
        finally:
            os.close(fd)

    def _let_go(self, engine: Engine, offset: int) -> None:
        if (lent := self._lent.get(offset)) is not None:
            lent.with_engines.discard(engine)
            self._settle(offset)

    def _dismiss(self, engine: Engine) -> None:
        """Forget an engine that has ended, or that breaks the protocol; the driver unmaps its
        memory when it ends."""
        engine.close()
        self._waiting = [(other, wanted) for other, wanted in self._waiting if other is not engine]
        for offset in self._lent:
            self._let_go(engine, offset)


def main(words: Sequence[str] | None = None) -> None:
    """Serve until the server ends. `words` are the arguments, None for those of the command line:
    GPU, path, and two inherited descriptors."""
    parser = argparse.ArgumentParser(prog="holder")
    for name, kind in (("device", int), ("path", Path), ("server", int), ("host", int)):
        parser.add_argument(name, type=kind)
    given = parser.parse_args(words)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server ends first
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    with socket.socket(fileno=given.server) as there:
        server: Channel[FromServer] = Channel(there, FromServer)
        try:
            driver = CudaDriver(device=given.device, shareable=True)
            holder = Holder(driver, server, given.path, Region(given.host))
        except (VmmError, OSError) as error:
            server.say(said.Ready(str(error)))
            return
        server.say(said.Ready())
        with suppress(Broken):
            holder.run()
        os._exit(0)  # the driver ends with the process: all that is left was lent


if __name__ == "__main__":
    main()
