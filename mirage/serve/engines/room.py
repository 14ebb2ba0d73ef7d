"""Share of the device that an engine has, or waits for, as its manager sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mirage.control.debts import Debtor
from mirage.serve.ends.restarts import Pause
from mirage.units import size


class ShareRoom(Protocol):
    """The tenant's share of the device."""

    async def called(self) -> None:
        """Returns when an engine shall start."""

    def serves(self, seconds: float) -> None:
        """An engine serves, so long after its start."""

    def ends(self) -> None:
        """The tenant's engine is about to end."""

    def ended(self, pause: Pause) -> None:
        """The engine has ended, or did not start; it may start again after that pause."""

    def lend(self) -> None:
        """The share is free for other tenants until `keep`."""

    def keep(self) -> None:
        """An engine is to start: lend it to nobody any more."""

    def is_free(self) -> bool:
        """True if others have given it back."""

    def has_hollow(self, nbytes: int) -> bool:
        """True if they have given back so much of it, and its weights are in host memory."""

    def debtors(self) -> list[Debtor]:
        """The others that have not."""

    def end(self, name: str, why: str) -> None:
        """End the engine of a debtor."""


def waiting_for(debtors: Iterable[Debtor]) -> str:
    """``"waits for memory that others hold: 12.0 MiB tenant 'a'"``."""
    named = ", ".join(f"{size(debtor.bytes)} tenant {debtor.name!r}" for debtor in debtors)
    return f"waits for memory that others hold: {named}" if named else "waits for memory"
