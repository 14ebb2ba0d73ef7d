"""Epoch of a controller: a number that only one controller has, and that grows."""

from __future__ import annotations

from mirage.machines.seam import Machines

PREFIX = "epoch:"


async def newest_epoch(machines: Machines) -> int:
    """Epoch that was claimed last; 0 if none was. Raises `MachineAway`."""
    known = await machines.facts(PREFIX)
    return max((int(key.removeprefix(PREFIX)) for key in known), default=0)


async def claimed_epoch(machines: Machines, who: str, beyond: int = 0) -> int:
    """Claim the next epoch for `who`, greater than `beyond`, the newest that servers know. Raises
    `MachineAway`.

    Servers may know of a later one than the cluster does, if the head's folder was lost.
    """
    while True:
        number = max(beyond, await newest_epoch(machines)) + 1
        if await machines.put(f"{PREFIX}{number}", who.encode(), absent=True):
            return number
