"""Messages between the server, the holders of peers' memory and the engines.

Of host memory the server is the holder: engines lock what they would map of a peer, and no
descriptor comes with it.

The form is that of `mirage.wire`. Offsets are those of `mirage.tiers.contract.BlockPlace`, each
medium over lines of its own.
"""

from __future__ import annotations

from mirage.wire import Message


class LendMemory(Message, frozen=True):
    """Server to holder: make memory for these bytes."""

    offset: int
    nbytes: int


class ReturnMemory(Message, frozen=True):
    """Server to holder: the memory made for blocks is not needed any more."""

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


class LendFailed(Message, frozen=True):
    """Holder to server: there is no memory for a `LendMemory`."""

    offset: int
    why: str


class Returned(Message, frozen=True):
    """Holder to server: the memory is free again."""

    offset: int


class Copied(Message, frozen=True):
    """Holder to server: a copy has ended."""

    number: int
    whole: bool


class Want(Message, frozen=True):
    """Engine to holder: the memory that has this byte."""

    offset: int


class Dropped(Message, frozen=True):
    """Engine to holder: what begins there is neither mapped nor locked here any more."""

    offset: int


class Here(Message, frozen=True):
    """Holder to engine: memory of these bytes; a file descriptor comes with that of a peer."""

    offset: int
    nbytes: int


class Gone(Message, frozen=True):
    """Holder to engine: there is none at this byte."""

    offset: int


class Drop(Message, frozen=True):
    """Holder to engine: let go of what begins there."""

    offset: int


FromServer = LendMemory | ReturnMemory | Copy
FromHolder = Ready | LendFailed | Returned | Copied
FromEngine = Want | Dropped
ToEngine = Here | Gone | Drop
