"""The socket between an engine and the host pool: messages that never wait once it has joined."""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from mirage.tiers.contract import LentBy, Member
from mirage.tiers.messages import (
    VERSION,
    Frames,
    FromEngine,
    Join,
    Malformed,
    Sorry,
    ToEngine,
    Welcome,
    encode,
    to_engine,
)
from mirage.tiers.region import Region, Regions

JOIN_S = 5.0
PIECE = 2**18
"""Bytes that are read at a time."""
MOST_UNREAD = 2**23
"""Bytes that wait for a pool that does not read."""


class LineLost(Exception):
    """The pool is gone, or does not speak as agreed; the message says which."""


class Line:
    """Raises `LineLost` and `OSError` from all that it does, and is of no use then."""

    def __init__(self, made: socket.socket, frames: Frames) -> None:
        self.socket, self._frames = made, frames
        self._out = bytearray()
        self.locks: socket.socket | None = None
        """The line on which slabs are locked, if the engine wanted one."""

    @classmethod
    def join(cls, path: Path, member: Member) -> tuple[Self, Regions]:
        """Waits up to `JOIN_S`."""
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            made.settimeout(JOIN_S)
            made.connect(str(path))
            made.sendall(encode(_hello(member)))
            line = cls(made, Frames())
            regions = line._welcome()
            made.setblocking(False)
        except BaseException:
            made.close()
            raise
        return line, regions

    def _welcome(self) -> Regions:
        fds: list[int] = []
        try:
            while (body := self._frames.next()) is None:
                data, some, _, _ = socket.recv_fds(self.socket, PIECE, 3, socket.MSG_CMSG_CLOEXEC)
                fds += some
                if not data:
                    raise LineLost("it closed the connection")
                self._frames.feed(data)
            message = to_engine(body)
            if isinstance(message, Sorry):
                raise LineLost(message.why)
            if not isinstance(message, Welcome) or len(fds) != _files(message):
                raise LineLost(f"{type(message).__name__} with {len(fds)} files is no welcome")
            if message.locks:
                self.locks = socket.socket(fileno=fds.pop())
            host = Region(fds.pop(0))
            try:
                peer = Region(fds.pop()) if fds else None
            except (OSError, ValueError):
                host.close()
                raise
        except Malformed as error:
            raise LineLost(str(error)) from None
        finally:
            for fd in fds:
                socket.close(fd)
        lenders = tuple(LentBy(*lender) for lender in message.lenders)
        return Regions(host, peer, message.peer_bytes_per_s, lenders)

    def say(self, messages: Iterable[FromEngine]) -> None:
        """What cannot be sent now is sent later."""
        for message in messages:
            self._out += encode(message)
        self._flush()
        if len(self._out) > MOST_UNREAD:
            raise LineLost(f"it has not read {len(self._out)} bytes")

    def hear(self) -> Iterator[ToEngine]:
        """All that has come."""
        self._flush()
        while True:
            try:
                data = self.socket.recv(PIECE)
            except BlockingIOError:
                return
            if not data:
                raise LineLost("it closed the connection")
            self._frames.feed(data)
            try:
                while (body := self._frames.next()) is not None:
                    yield to_engine(body)
            except Malformed as error:
                raise LineLost(str(error)) from None

    def finish(self, patience_s: float) -> None:
        """Send what is left, if the pool reads it in time."""
        try:
            while self._out and select.select([], [self.socket], [], patience_s)[1]:
                self._flush()
        except OSError:
            self._out.clear()

    def close(self) -> None:
        self.socket.close()
        if self.locks is not None:
            self.locks.close()

    def _flush(self) -> None:
        try:
            while self._out:
                del self._out[: self.socket.send(self._out)]
        except BlockingIOError:
            pass


def _hello(member: Member) -> Join:
    return Join(
        VERSION,
        member.tenant,
        member.fingerprint,
        member.block_bytes,
        replicas=member.replicas,
        locks=member.locks,
    )


def _files(welcome: Welcome) -> int:
    """Descriptors that come with it."""
    return 1 + bool(welcome.peer_nbytes) + welcome.locks
