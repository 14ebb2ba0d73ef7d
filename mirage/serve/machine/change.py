"""Change from the tenants that devices have now to those of another file. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from mirage.control.placement.placed import DevicePlacement
from mirage.control.placement.steps import MoveStep, MoveVerb

FILE = "the file has it so"


class MachineChange(NamedTuple):
    """Tenants that are added and removed, all together, and then steps for those that move.

    A tenant starts on its new devices before it leaves the old ones.
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    tenants: dict[str, frozenset[str]]
    """Tenants of each device after the additions and removals, before the steps."""
    steps: tuple[MoveStep, ...]
    before: DevicePlacement
    """Placement before the steps."""
    after: DevicePlacement

    @property
    def moved(self) -> list[str]:
        """Names of the tenants that steps move."""
        return list(dict.fromkeys(step.model for step in self.steps))


def machine_change(
    present: Mapping[str, Collection[str]],
    wanted: Mapping[str, Collection[str]],
    stand_ins: Collection[tuple[str, str]] = (),
) -> MachineChange:
    """Change from `present`, the tenants of each device, to `wanted`, the devices of each
    tenant.

    `stand_ins`, each a tenant and a device, serve for lost devices: they stay, unless their tenant
    is removed.
    """
    stay = {(n, d) for n, d in stand_ins if n in wanted and d not in wanted[n]}
    present = {d: {n for n in names if (n, d) not in stay} for d, names in present.items()}
    there = places_in(present)
    added = tuple(name for name in wanted if name not in there)
    tenants = {
        device: frozenset(
            {name for name in names if name in wanted}
            | {n for n in added if device in wanted[n]}
            | {n for n, at in stay if at == device}
        )
        for device, names in present.items()
    }
    stays = {name: devices for name, devices in there.items() if name in wanted}
    return MachineChange(
        added,
        tuple(sorted(there.keys() - wanted.keys())),
        tenants,
        tuple(step for name in stays for step in _steps(name, stays[name], wanted[name])),
        DevicePlacement.of_names({**stays, **{name: wanted[name] for name in added}}),
        DevicePlacement.of_names(wanted),
    )


def places_in(present: Mapping[str, Collection[str]]) -> dict[str, tuple[str, ...]]:
    """Devices of each tenant, from the tenants of each device; devices keep their order."""
    there: dict[str, tuple[str, ...]] = {}
    for device, names in present.items():
        for name in names:
            there[name] = (*there.get(name, ()), device)
    return there


def _steps(model: str, has: Collection[str], wanted: Collection[str]) -> Iterator[MoveStep]:
    for device in wanted:
        if device not in has:
            yield MoveStep(MoveVerb.START, model, device, FILE)
            yield MoveStep(MoveVerb.ROUTE, model, device, FILE)
    for device in has:
        if device not in wanted:
            yield MoveStep(MoveVerb.DRAIN, model, device, FILE)
            yield MoveStep(MoveVerb.STOP, model, device, FILE)
