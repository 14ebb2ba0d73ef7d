"""Messages between the server, the holders of peers' memory and the engines.

For host memory the server is the holder: engines lock it where they would map a peer's memory, and
no descriptor comes with it. The form is that of `mirage.wire`. Offsets are those of
`mirage.tiers.contract.BlockPlace`, and each medium has lines of its own.
"""

from __future__ import annotations

from mirage.wire import Message


class LendMemory(Message, frozen=True):
    """Server to holder: make memory for these bytes."""

    offset: int
    nbytes: int


class ReturnMemory(Message, frozen=True):
    """Server to holder: the memory at `offset` is not needed any more."""

    offset: int


class Copy(Message, frozen=True):
    """Server to holder: copy bytes of the peer to host memory."""

    number: int
    offset: int
    target: int
    """Bytes from the start of the host pool's region."""
    nbytes: int


class Ready(Message, frozen=True):
    """Holder to server: engines may connect; with `why`, the reason why the GPU cannot lend."""

    why: str = ""


class LendFailed(Message, frozen=True):
    """Holder to server: there is no memory for a `LendMemory`."""

    offset: int
    why: str


class Returned(Message, frozen=True):
    """Holder to server: the memory is free again."""

    offset: int


class Copied(Message, frozen=True):
    """Holder to server: a copy has ended; `whole` is True if it succeeded."""

    number: int
    whole: bool


class Want(Message, frozen=True):
    """Engine to holder: request for the memory that has this byte."""

    offset: int


class Dropped(Message, frozen=True):
    """Engine to holder: the memory that begins at byte `offset` is no longer mapped or page-locked
    here."""

    offset: int


class Here(Message, frozen=True):
    """Holder to engine: memory of `nbytes` bytes from `offset` on; for a peer its file descriptor
    comes along."""

    offset: int
    nbytes: int


class Gone(Message, frozen=True):
    """Holder to engine: there is no memory at this byte."""

    offset: int


class Drop(Message, frozen=True):
    """Holder to engine: unmap or unlock the memory that begins at `offset`."""

    offset: int


FromServer = LendMemory | ReturnMemory | Copy
FromHolder = Ready | LendFailed | Returned | Copied
FromEngine = Want | Dropped
ToEngine = Here | Gone | Drop
