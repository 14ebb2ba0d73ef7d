"""A first placement: who names no device goes where most is free. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple


class PlaceWish(NamedTuple):
    """One tenant that wants a place."""

    name: str
    percent: float | None
    """Share of a device; None is ``auto``, which counts as nothing here."""
    named: tuple[str, ...] = ()
    """Devices that it names; none leaves the choice open."""


class TenantPlaced(NamedTuple):
    """Devices that serve one tenant: with several, each has a replica."""

    devices: tuple[str, ...]
    why: str


class _Room:
    """Shares that a device has given so far."""

    def __init__(self) -> None:
        self.percent, self.tenants = 0.0, 0

    def takes(self, wish: PlaceWish) -> None:
        self.percent += wish.percent or 0.0
        self.tenants += 1


def placed(devices: Sequence[str], wishes: Iterable[PlaceWish]) -> dict[str, TenantPlaced]:
    """Place of each tenant, in the order of `wishes`.

    Named ones first, then large shares before small ones: each where the most is free, of equals
    where the fewest tenants are, of those the first. More than 100 per cent come and go.
    """
    rooms = {name: _Room() for name in devices}
    wanted = {wish.name: wish for wish in wishes}
    found: dict[str, TenantPlaced] = {}
    for wish in wanted.values():
        for name in wish.named:
            rooms[name].takes(wish)
        if wish.named:
            found[wish.name] = TenantPlaced(wish.named, "named in the file")
    for wish in sorted(wanted.values(), key=lambda wish: -(wish.percent or 0.0)):
        if not wish.named:
            found[wish.name] = _emptiest(wish, rooms)
    return {name: found[name] for name in wanted}


def _emptiest(wish: PlaceWish, rooms: Mapping[str, _Room]) -> TenantPlaced:
    name = min(rooms, key=lambda one: (rooms[one].percent, rooms[one].tenants))
    free = 100 - rooms[name].percent
    rooms[name].takes(wish)
    told = f"{max(0.0, free):g} %"
    if wish.percent is not None:
        told += f", its share is {wish.percent:g} %"
    more = wish.percent is not None and wish.percent > free
    why = f"the most is free there ({told})" + (": tenants come and go there" if more else "")
    return TenantPlaced((name,), why)
