"""Attendance of a machine's own table, which has no tenants: each device has its own table."""

from __future__ import annotations

from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.control.roster.states import LifeState
from mirage.serve.resizing import Resize
from mirage.serve.roster.attendance import Attendance


class NoTenants:
    """`Acts` of a roster without tenants, which gives no orders."""

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
