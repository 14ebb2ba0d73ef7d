"""What the server, the holders of peers' memory and the engines say to each other.

Of host memory the server is the holder: engines lock what they would map of a peer, and no
descriptor comes with it.

One message is one packet of a Unix socket (`SOCK_SEQPACKET`), in JSON. Offsets are those of
`mirage.tiers.contract.Place`, each medium over lines of its own.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import get_args

LONGEST = 2**16
"""Bytes of a message."""


@dataclass(frozen=True, slots=True)
class Lend:
    """Server to holder: make memory for these bytes."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Return:
    """Server to holder: nobody needs what was made for them."""

    offset: int


@dataclass(frozen=True, slots=True)
class Copy:
    """Server to holder: bytes of the peer to host memory."""

    number: int
    offset: int
    target: int
    """Bytes from the start of the host pool's region."""
    nbytes: int


@dataclass(frozen=True, slots=True)
class Ready:
    """Holder to server: engines may come; or why none can."""

    why: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """Holder to server: there is no memory for a `Lend`."""

    offset: int
    why: str


@dataclass(frozen=True, slots=True)
class Returned:
    """Holder to server: nobody has it, and it is free memory."""

    offset: int


@dataclass(frozen=True, slots=True)
class Copied:
    """Holder to server."""

    number: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Want:
    """Engine to holder: the memory that has this byte."""

    offset: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Engine to holder: what begins there is neither mapped nor locked here any more."""

    offset: int


@dataclass(frozen=True, slots=True)
class Here:
    """Holder to engine: memory of these bytes; a file descriptor comes with that of a peer."""

    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class Gone:
    """Holder to engine: there is none at this byte."""

    offset: int


@dataclass(frozen=True, slots=True)
class Drop:
    """Holder to engine: let go of what begins there."""

    offset: int


Any = (
    Lend | Return | Copy | Ready | Failed | Returned | Copied | Want | Dropped | Here | Gone | Drop
)

_KINDS = {kind.__name__: kind for kind in get_args(Any)}


class Ended(Exception):
    """The other end is gone, or speaks otherwise than agreed."""


def say(there: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """One message. The descriptors stay open here. Raises `OSError`."""
    socket.send_fds(there, [_encode(message)], list(fds))


def hear(there: socket.socket) -> tuple[Any, list[int]]:
    """The next one; its descriptors are the caller's. Raises `Ended` and `BlockingIOError`."""
    try:
        data, fds, flags, _ = socket.recv_fds(there, LONGEST, 1, socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        raise
    except OSError as error:
        raise Ended(error.strerror or str(error)) from None
    try:
        if not data:
            raise Ended("it has gone")
        if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
            raise Ended("a message was too long, or this process has no descriptors left")
        return _decode(data), fds
    except Ended:
        for fd in fds:
            os.close(fd)
        raise


def _encode(message: Any) -> bytes:
    """A list that begins with the class's name."""
    return json.dumps([type(message).__name__, *astuple(message)]).encode()


def _decode(data: bytes) -> Any:
    try:
        kind, *values = json.loads(data)
        message: Any = _KINDS[kind](*values)
    except (ValueError, TypeError, KeyError) as error:
        raise Ended(f"{error} in {data[:80]!r}") from None
    return message
