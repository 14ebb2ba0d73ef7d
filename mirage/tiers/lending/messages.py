"""What the server, the holders of peers' memory and the engines say to each other.

One message is one packet of a Unix socket (`SOCK_SEQPACKET`). Offsets are those of
`mirage.tiers.contract.Place` on medium PEER.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence

import msgspec

LONGEST = 2**16
"""Bytes of a message."""


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Written as a list that begins with the class's name."""


class Lend(Message, frozen=True):
    """Server to holder: make memory for these bytes."""

    offset: int
    nbytes: int


class Return(Message, frozen=True):
    """Server to holder: nobody needs what was made for them."""

    offset: int


class Copy(Message, frozen=True):
    """Server to holder: bytes of the peer to host memory."""

    number: int
    offset: int
    target: int
    """Bytes from the start of the host pool's region."""
    nbytes: int


class Ready(Message, frozen=True):
    """Holder to server: engines may come; or why none can."""

    why: str = ""


class Failed(Message, frozen=True):
    """Holder to server: there is no memory for a `Lend`."""

    offset: int
    why: str


class Returned(Message, frozen=True):
    """Holder to server: nobody has it, and it is free memory."""

    offset: int


class Copied(Message, frozen=True):
    """Holder to server."""

    number: int
    whole: bool


class Want(Message, frozen=True):
    """Engine to holder: the memory that has this byte."""

    offset: int


class Dropped(Message, frozen=True):
    """Engine to holder: what begins there is not mapped here any more."""

    offset: int


class Here(Message, frozen=True):
    """Holder to engine: memory of these bytes; a file descriptor comes with it."""

    offset: int
    nbytes: int


class Gone(Message, frozen=True):
    """Holder to engine: there is none at this byte."""

    offset: int


class Drop(Message, frozen=True):
    """Holder to engine: let go of what begins there."""

    offset: int


Any = (
    Lend | Return | Copy | Ready | Failed | Returned | Copied | Want | Dropped | Here | Gone | Drop
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Any)


class Ended(Exception):
    """The other end is gone, or speaks otherwise than agreed."""


def say(there: socket.socket, message: Any, fds: Sequence[int] = ()) -> None:
    """One message. The descriptors stay open here. Raises `OSError`."""
    socket.send_fds(there, [_encoder.encode(message)], list(fds))


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
        return _decoder.decode(data), fds
    except (Ended, msgspec.DecodeError) as error:
        for fd in fds:
            os.close(fd)
        raise Ended(str(error)) from None
