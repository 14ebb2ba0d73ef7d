"""Fitting of new tenants into a device: their bytes, and the tenants that would yield to them.
Pure.

The tenants are tried one after the other on copies of the roster's members; nothing is changed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from copy import copy
from math import inf
from typing import NamedTuple

from mirage.control.roster.member import DrainGoal, RosterMember
from mirage.control.roster.needs import StateBytes, SwitchTimes
from mirage.control.roster.room import DeviceRoom
from mirage.control.roster.roster import Roster
from mirage.control.roster.specs import TenantSpec
from mirage.control.roster.states import Life, LifeState

NO_TIMES = SwitchTimes(0.0, 0.0, 0.0, 0.0, 0.0)


class Fitting(NamedTuple):
    """Outlook of one tenant that is to come. Bytes are of the device."""

    name: str
    nbytes: int
    """Bytes that its start takes."""
    spare: int
    """Bytes that would be left free after its start without another order; if negative, bytes that
    are missing."""
    yields: tuple[str, ...] = ()
    """Names of the tenants that would yield now."""
    comes: bool = True
    """True if it would come now; False if it has to wait until others have been awake for long
    enough."""


def fitting(
    roster: Roster, coming: Mapping[str, StateBytes], removed: Collection[str], now: float
) -> list[Fitting]:
    """Return the outlook of all tenants in `coming` at `now` (seconds), in their order, after the
    `removed` have gone."""
    members = {
        name: copy(member)
        for name, member in roster.members.items()
        if name not in removed and name not in coming
    }
    room = DeviceRoom(roster.device_bytes, members, roster.rules)
    found = []
    for name, own in coming.items():
        one = RosterMember(TenantSpec(name), own, NO_TIMES, Life(), queued_at=-inf)
        spare = room.free + room.coming - one.need
        chosen = room.yielding(one, now)
        names = tuple(yielding.member.name for yielding in chosen or ())
        found.append(Fitting(name, one.need, spare, names, comes=chosen is not None))
        for member, goal in chosen or ():
            _yields(members, member, goal)
        if chosen is not None:
            one.life, one.nbytes = Life(LifeState.STARTING), own.start
            members[name] = one
    return found


def _yields(members: dict[str, RosterMember], member: RosterMember, goal: DrainGoal) -> None:
    if goal is DrainGoal.STOP:
        del members[member.name]
    else:
        member.life, member.nbytes = Life(LifeState.SLEEPING), member.own.asleep
