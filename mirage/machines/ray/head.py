"""Address of the head of a Ray cluster, as Ray is started for it: fixed, or one that may change."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class HeadFound(NamedTuple):
    """Address of the head that a start of Ray is for."""

    address: str
    is_here: bool
    """True if this machine is the head."""


class HeadPlace(Protocol):
    """Source of the head's address, asked before each start of Ray and while Ray runs. It may make
    this machine the head."""

    def begin(self) -> HeadFound:
        """Return the head for the next start of Ray; call it before each one. If no machine is the
        head, the class `ClaimedHead` makes this machine the head, where that is allowed.

        Raises `CommandFailed` if no machine is the head after that, or if it cannot be found out.
        """

    def stays(self) -> bool:
        """Return True while Ray can go on with the head that `begin` returned; False once Ray has
        to be started anew.
        """

    def end(self) -> None:
        """Give up this machine's claim, if it has one. Call once Ray has ended here for good."""


class FixedHead:
    """A head whose address never changes."""

    def __init__(self, address: str, *, is_here: bool) -> None:
        self._found = HeadFound(address, is_here)

    def begin(self) -> HeadFound:
        """The head, which is always the same."""
        return self._found

    def stays(self) -> bool:
        """True: the head is never elsewhere."""
        return True

    def end(self) -> None:
        """Do nothing when Ray has ended here: there is no claim to give up."""
