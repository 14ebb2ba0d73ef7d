"""A roster without tenants, for routers whose tests need none."""

from __future__ import annotations

from typing import cast

from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.serve.roster.attendance import Acts, Attendance


def nobody() -> Attendance:
    """Attendance of a roster without tenants, which gives no orders."""
    return Attendance(Roster(1 << 30, RosterRules()), cast(Acts, None))
