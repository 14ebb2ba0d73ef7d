"""Roster without tenants, for the table that the process above the device servers sends to the
router: the tenants are in the tables of the device servers.
"""

from __future__ import annotations

from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.states import LifeState
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.resizing import Resize


class NoTenants:
    """Executor of the orders (`Acts`) of a roster without tenants, which gives none."""

    def start(self, name: str) -> None:
        """Do nothing: never called."""

    def stop_one(self, name: str, why: str) -> None:
        """Do nothing: never called."""

    def sleep(self, name: str) -> None:
        """Do nothing: never called."""

    def wake(self, name: str) -> None:
        """Do nothing: never called."""

    def shows(self, name: str, state: LifeState) -> None:
        """Do nothing: never called."""

    def gone(self, name: str) -> None:
        """Do nothing: never called."""


def nobody() -> Attendance:
    """Attendance without tenants."""
    return Attendance(Roster(0, RosterRules()), NoTenants())


async def no_overview(*, reasons: bool) -> bytes:
    """Empty overview, with `reasons` or without: it is never asked for, since the router asks the
    devices."""
    return b"{}"


async def no_tiers(wanted: Resize) -> None:
    """Raise `ValueError`: tiers belong to the devices."""
    raise ValueError("several devices have tiers of their own: name one by ?device=")
