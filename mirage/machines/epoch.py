"""Epoch of a controller: the next number, which nobody else has."""

from __future__ import annotations

from mirage.machines.seam import Machines

PREFIX = "epoch:"


async def newest_epoch(machines: Machines) -> int:
    """Epoch that was claimed last; 0 if none was. Raises `MachineAway`."""
    known = await machines.facts(PREFIX)
    return max((int(key.removeprefix(PREFIX)) for key in known), default=0)


async def claimed_epoch(machines: Machines, who: str, beyond: int = 0) -> int:
    """Claim the next epoch for `who`, one `beyond` that of servers. Raises `MachineAway`.

    Servers may know of a later one than the cluster does: that of a head whose folder was lost.
    """
    while True:
        number = max(beyond, await newest_epoch(machines)) + 1
        if await machines.put(f"{PREFIX}{number}", who.encode(), absent=True):
            return number
