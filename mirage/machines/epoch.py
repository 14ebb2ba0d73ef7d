"""Epoch of a controller: the next number, which nobody else has."""

from __future__ import annotations

from mirage.machines.seam import Machines

PREFIX = "epoch:"


async def claimed_epoch(machines: Machines, who: str) -> int:
    """Claim the next epoch for `who`. Raises `MachineAway`."""
    while True:
        known = await machines.facts(PREFIX)
        number = max((int(key.removeprefix(PREFIX)) for key in known), default=0) + 1
        if await machines.put(f"{PREFIX}{number}", who.encode(), absent=True):
            return number
