"""Connections of a supervisor (lines) to all routers of its device: the device's own, and those of
other machines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import msgspec

from mirage.serve.ends.ending import Ending
from mirage.serve.roster.attendance import Attendance
from mirage.serve.routed.messages import FromRouter, TableSeen
from mirage.serve.routing.line import EndVerdict, RouterLine

OWN = ""


class RouterLines:
    """Lines by the routers' machines, by name; the name is empty for the device's own router."""

    def __init__(self, attendance: Attendance) -> None:
        self._attendance = attendance
        self._lines: dict[str, RouterLine] = {}

    def __iter__(self) -> Iterator[RouterLine]:
        return iter(list(self._lines.values()))

    def __contains__(self, line: RouterLine) -> bool:
        return self._lines.get(line.guest) is line

    def get(self, guest: str) -> RouterLine | None:
        """Line to the router of machine `guest`; None if it is not connected."""
        return self._lines.get(guest)

    @property
    def own(self) -> RouterLine | None:
        """Line to the device's own router; None if it is not connected."""
        return self._lines.get(OWN)

    @property
    def guests(self) -> list[str]:
        """Names of the machines whose routers are connected, sorted; without the device's own."""
        return sorted(guest for guest in self._lines if guest != OWN)

    def seen(self, otherwise: int) -> int:
        """Revision that all routers have seen; `otherwise` if no router is connected."""
        return min((line.seen for line in self._lines.values()), default=otherwise)

    def say(self, message: msgspec.Struct) -> None:
        """Send a message to all routers."""
        for line in self:
            line.say(message)

    def comes(self, line: RouterLine) -> None:
        """Add the line of a router that has connected."""
        self._lines[line.guest] = line

    def goes(self, line: RouterLine) -> None:
        """Remove the line of a router that has gone, with its requests."""
        del self._lines[line.guest]
        for count in line.end():
            self._count(count.tenant, count.life)

    def hear(self, line: RouterLine, message: FromRouter) -> None:
        """Act on a message of a router."""
        line.hear(message)
        if isinstance(message, TableSeen):
            for count in message.counts:
                self._count(count.tenant, count.life)

    async def ended(self, tenant: str, ending: Ending) -> EndVerdict:
        """Tell all routers that a tenant's engine has ended; return their verdicts joined: which of
        its requests may have caused the end.
        """
        verdicts = await asyncio.gather(*(line.ended(tenant, ending) for line in self))
        words = dict.fromkeys(one.words for one in verdicts if one.words)
        bodies = frozenset(body for one in verdicts for body in one.bodies)
        return EndVerdict("; ".join(words), bodies)

    def _count(self, tenant: str, life: int) -> None:
        running = sum(line.counted(tenant, life) for line in self._lines.values())
        self._attendance.counted(tenant, life, running)
