"""Share of the device that an engine has or waits for, as its manager sees it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from mirage.control.debts import Debtor
from mirage.serve.ends.restarts import Pause
from mirage.units import size


class ShareRoom(Protocol):
    """Share of one tenant, which others may use while the tenant has no engine."""

    async def called(self) -> None:
        """Return when an engine has to start."""

    def serves(self, seconds: float) -> None:
        """Note that the engine serves, `seconds` after its start began."""

    def ends(self) -> None:
        """Note that the tenant's engine is about to end."""

    def ended(self, pause: Pause) -> None:
        """Note that the engine has ended or did not start; it may start again after `pause`."""

    def lend(self) -> None:
        """Let other tenants use the share until `keep` is called."""

    def keep(self) -> None:
        """Stop lending the share, since an engine is to start."""

    def is_free(self) -> bool:
        """True if other tenants have given all of the share back."""

    def has_hollow(self, nbytes: int) -> bool:
        """True if `nbytes` of the share are free, and the weights are in host memory."""

    def debtors(self) -> list[Debtor]:
        """Tenants that have yet to give back memory of this share."""

    def end(self, name: str, why: str) -> None:
        """End the engine of debtor `name`, for the reason `why`."""


def waiting_for(debtors: Iterable[Debtor]) -> str:
    """Words such as ``"waits for memory that others hold: 12.0 MiB tenant 'a'"``."""
    named = ", ".join(f"{size(debtor.bytes)} tenant {debtor.name!r}" for debtor in debtors)
    return f"waits for memory that others hold: {named}" if named else "waits for memory"
