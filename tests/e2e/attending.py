"""A roster without tenants: a router passes on what it is asked, and only looks at their states."""

from __future__ import annotations

from typing import cast

from mirage.control.roster.roster import Roster
from mirage.control.roster.rules import RosterRules
from mirage.serve.roster.attendance import Acts, Attendance


def nobody() -> Attendance:
    """No tenant is on the roster, and no order is ever given."""
    return Attendance(Roster(1 << 30, RosterRules()), cast(Acts, None))
