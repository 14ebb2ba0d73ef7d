"""Server's end of holders, the processes that own peers' memory: starts, orders, and their ends."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from mirage.tiers.blocks import Name
from mirage.tiers.contract import LentBy
from mirage.tiers.holes import ByteRange
from mirage.tiers.lending.messages import (
    Copied,
    Copy,
    FromHolder,
    FromServer,
    LendFailed,
    LendMemory,
    Ready,
    Returned,
    ReturnMemory,
)
from mirage.wire import Broken, Channel

logger = logging.getLogger("mirage.tiers")

PROGRAM = (sys.executable, "-m", "mirage.tiers.lending.holder")
START_S = 60.0
"""Longest time in seconds until a holder is ready."""
END_S = 10.0


class HolderRefused(Exception):
    """Error: a GPU cannot lend; the message is one line that begins with the peer's name."""


class Owner(Protocol):
    """Pool, which is told the outcomes of orders to holders, and their ends. Calls may come from
    any thread, also after the pool's end."""

    def moved(self, name: Name, *, whole: bool) -> None: ...

    def returned(self, offset: int) -> None: ...

    def lent_in_vain(self, offset: int) -> None: ...

    def lost(self, device: str) -> None: ...


class Lenders:
    """Holders of peers' memory. `gpus` has the numbers of GPUs by the peers' names; `path` returns
    a holder's socket path."""

    def __init__(
        self,
        gpus: Mapping[str, int],
        path: Callable[[str], Path],
        program: Sequence[str] = PROGRAM,
    ) -> None:
        self._gpus, self._path, self._program = gpus, path, program
        self._lenders: dict[str, _Lender] = {}

    def start(
        self, owner: Owner, host_fd: int, starts: Mapping[str, int], sizes: Mapping[str, int]
    ) -> tuple[LentBy, ...]:
        """Start a holder for each peer and return the lenders; `starts` has the offset at which
        each peer's memory begins in the pool, and `sizes` its bytes, by the peer's name.

        Raise `HolderRefused` if a GPU cannot lend; then all holders are ended.
        """
        try:
            for name, gpu in self._gpus.items():
                words = [*self._program, str(gpu), str(self._path(name))]
                self._lenders[name] = _Lender(name, words, owner, host_fd, min(starts.values()))
            for lender in self._lenders.values():
                lender.begin()
        except HolderRefused:
            self.end()
            raise
        first = min(starts.values())
        return tuple(
            LentBy(str(self._path(name)), starts[name] - first, sizes[name]) for name in self._gpus
        )

    def lend(self, device: str, memory: ByteRange) -> bool:
        """Order the holder of a device to make `memory`; False if the holder has ended."""
        return self._lenders[device].lend(memory)

    def take_back(self, device: str, memory: ByteRange) -> bool:
        """Order the holder of a device to release lent `memory`; False if the holder has ended, and
        the memory with it."""
        return self._lenders[device].take_back(memory.offset)

    def move(self, device: str, name: Name, source: ByteRange, target: int) -> bool:
        """Order the holder of a device to copy a block to host memory; False if the holder has
        ended."""
        return self._lenders[device].move(name, source, target)

    def pids(self) -> dict[str, int]:
        """Return the process numbers of the holders, by the peer's name."""
        return {name: lender.pid for name, lender in self._lenders.items()}

    def end(self) -> None:
        """End all holders; nothing is copied any more when it returns. A second call does
        nothing."""
        for lender in self._lenders.values():
            lender.end()
        for name in self._lenders:
            self._path(name).unlink(missing_ok=True)
        self._lenders.clear()


class _Lender:
    """One holder, as a child process. Offsets are those of the pool; the holder is told offsets
    counted from `first`."""

    def __init__(
        self, device: str, words: Sequence[str], owner: Owner, host_fd: int, first: int
    ) -> None:
        self._device, self._owner, self._first = device, owner, first
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel: Channel[FromHolder] = Channel(ours, FromHolder)
        with theirs:
            fds = (theirs.fileno(), host_fd)
            words = [*words, *map(str, fds)]
            try:
                self._process = subprocess.Popen(words, pass_fds=fds, stdin=subprocess.DEVNULL)
            except OSError as error:
                self._channel.close()
                raise HolderRefused(f"{device}: {error.strerror}") from None
        self._lock = threading.Lock()
        """Lock of `_ended`, `_moving`, `_returning` and `_moves`, and of what is put into
        `_letters`."""
        self._ended = False
        self._moving: dict[int, Name] = {}
        self._returning: set[int] = set()
        self._moves = 0
        self._letters: SimpleQueue[FromServer | None] = SimpleQueue()
        """Messages that a thread sends, so that the pool does not wait for a holder."""
        self._threads: list[threading.Thread] = []
        self._wanted = False
        """True once the server wants the holder to end."""

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self) -> None:
        """Wait until the holder is ready, and start the threads. Raise `HolderRefused` if it cannot
        lend."""
        self._channel.socket.settimeout(START_S)
        try:
            message = self._channel.wait()[0]
        except Broken as error:
            raise HolderRefused(f"{self._device}: its holder did not start ({error})") from None
        if not isinstance(message, Ready) or message.why:
            raise HolderRefused(f"{self._device}: {getattr(message, 'why', message)}")
        self._channel.socket.settimeout(None)
        for what in (self._listen, self._write):
            thread = threading.Thread(target=what, name=f"mirage-{self._device}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def lend(self, memory: ByteRange) -> bool:
        return self._send(LendMemory(memory.offset - self._first, memory.nbytes))

    def take_back(self, offset: int) -> bool:
        with self._lock:
            if self._ended:
                return False
            self._returning.add(offset)
            self._letters.put(ReturnMemory(offset - self._first))
            return True

    def move(self, name: Name, source: ByteRange, target: int) -> bool:
        with self._lock:
            if self._ended:
                return False
            self._moves += 1
            self._moving[self._moves] = name
            at = source.offset - self._first
            self._letters.put(Copy(self._moves, at, target, source.nbytes))
            return True

    def end(self) -> None:
        self._wanted = True
        self._letters.put(None)
        self._channel.shut()  # the holder ends by that
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        self._channel.close()

    def _send(self, message: FromServer) -> bool:
        with self._lock:
            if not self._ended:
                self._letters.put(message)
            return not self._ended

    # -- threads ------------------------------------------------------------------------

    def _write(self) -> None:
        with suppress(Broken):  # the other thread hears of its end
            while (message := self._letters.get()) is not None:
                self._channel.say(message)

    def _listen(self) -> None:
        try:
            while True:
                self._heard(self._channel.wait()[0])
        except Broken as error:
            self._lose(str(error))

    def _heard(self, message: FromHolder) -> None:
        match message:
            case LendFailed(offset, why):
                logger.warning("peer %s lends less than it may: %s", self._device, why)
                self._owner.lent_in_vain(offset + self._first)
            case Returned(offset):
                with self._lock:
                    self._returning.discard(offset + self._first)
                self._owner.returned(offset + self._first)
            case Copied(number, whole):
                with self._lock:
                    name = self._moving.pop(number)
                self._owner.moved(name, whole=whole)
            case _:
                raise Broken(f"{type(message).__name__} is nothing that a holder says")

    def _lose(self, why: str) -> None:
        """Report failure for all orders that were not answered: the holder has ended."""
        with self._lock:
            self._ended = True
            moving, returning = list(self._moving.values()), list(self._returning)
        self._letters.put(None)
        if self._wanted:
            return
        logger.error("peer %s is lost: %s; its KV blocks are computed anew", self._device, why)
        self._process.kill()  # in case it lives and only broke the protocol
        self._owner.lost(self._device)
        for name in moving:
            self._owner.moved(name, whole=False)
        for offset in returning:
            self._owner.returned(offset)
        self._process.wait()  # else a zombie is left while the server runs
