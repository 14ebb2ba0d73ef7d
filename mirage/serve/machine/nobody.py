"""The machine's own table has no tenants: each device has those of its own."""

from __future__ import annotations

from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.states import LifeState
from mirage.serve.resizing import Resize
from mirage.serve.roster.attendance import Attendance


class NoTenants:
    """`Acts` of a roster without tenants, which orders none."""

    def start(self, name: str) -> None:
        """Never called."""

    def stop_one(self, name: str, why: str) -> None:
        """Never called."""

    def sleep(self, name: str) -> None:
        """Never called."""

    def wake(self, name: str) -> None:
        """Never called."""

    def shows(self, name: str, state: LifeState) -> None:
        """Unused, since no tenant is served here."""

    def gone(self, name: str) -> None:
        """Never called."""


def nobody() -> Attendance:
    """An attendance without tenants."""
    return Attendance(Roster(0, RosterRules()), NoTenants())


async def no_overview(*, reasons: bool) -> bytes:
    """Never asked: the router asks the devices."""
    return b"{}"


async def no_tiers(wanted: Resize) -> None:
    """Raises `ValueError`: each device has tiers of its own."""
    raise ValueError("several devices have tiers of their own: name one by ?device=")
