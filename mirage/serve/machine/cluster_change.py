"""Change of a cluster's file: what may change while it is served, and where its tenants go."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from mirage.config import ConfigError
from mirage.control.placement.facts import PlaceMachine, PlacementFacts
from mirage.control.placement.host_room import refused_places
from mirage.control.placement.rules import PlacementRules
from mirage.control.placement.steps import MoveVerb
from mirage.errors import CommandFailed
from mirage.serve.apply.difference import TLS, changed_keys, difference
from mirage.serve.machine.applied import AboveChange
from mirage.serve.machine.change import MachineChange, machine_change, places_in
from mirage.serve.machine.cluster import KnownCluster, ServedCluster
from mirage.serve.machine.first import STAYS, Stays, TenantPlaced, first_placement

Places = Mapping[str, tuple[str, ...]]


class ClusterNow(NamedTuple):
    """State of a cluster at the beginning of an apply."""

    tenants: dict[str, frozenset[str]]
    """Tenants that each device shall have."""
    stand_ins: frozenset[tuple[str, str]]
    lost: frozenset[str]
    """Devices whose machines are lost."""
    facts: PlacementFacts
    """Facts with the host memory of all machines that have told of it."""
    host_bytes: Mapping[str, int]
    """Bytes of host memory of each machine that has told of it, also if it has no device yet."""


class ClusterChange(NamedTuple):
    """Difference between what is served and a wanted file."""

    plan: ServedCluster
    known: KnownCluster
    change: MachineChange
    decided: dict[str, TenantPlaced]
    """Places of new tenants that name no device."""
    above: AboveChange


def above_change(before: ServedCluster, after: ServedCluster) -> AboveChange:
    """Changed keys that concern no device. Raises `CommandFailed` if others have changed that are
    fixed while the cluster is served.
    """
    change = difference(before.common, after.common)
    if TLS in change.fixed:
        raise CommandFailed(
            f"{TLS} cannot come or go while routers run: mirage node leave ends that of a machine"
        )
    keys = [key for key in change.fixed if key.split(".")[0] != "device"]
    added = tuple(name for name in after.machine_of if name not in before.machine_of)
    stay = {name: one for name, one in _devices(after).items() if name not in added}
    keys += changed_keys(_devices(before), stay, "devices")
    if keys:
        raise CommandFailed(
            f"{', '.join(keys)} cannot change while this controller runs: start mirage serve "
            "--cluster again, which what is served does not notice; a device server that runs has "
            "its own new keys once mirage node leave has ended it"
        )
    rules = before.file.placement, after.file.placement
    return AboveChange(change.http, tuple(changed_keys(*rules, "placement")), added)


def cluster_change(
    before: ServedCluster, after: ServedCluster, known: KnownCluster, now: ClusterNow
) -> ClusterChange:
    """Change from what is served to the file `after`, of whose models `known` has the facts.

    Tenants that are served and name no device stay. Raises `CommandFailed` for changed keys that
    are fixed, and for a new or moving tenant for which its machine has no host memory;
    `ConfigError` for a tenant that does not fit the device to which it moves. Whether new tenants
    fit is left to the devices' dry runs and `check_away`.
    """
    above = above_change(before, after)
    had = now.tenants | dict.fromkeys(above.devices, frozenset[str]())
    own = places_in(
        {d: {n for n in names if (n, d) not in now.stand_ins} for d, names in now.tenants.items()}
    )
    facts = with_memory(known.facts, now.facts, now.host_bytes, before, after)
    named = after.file.named
    decided = _decided(facts, named, own, now.lost, after.file.placement.rules)
    places = {name: named[name] or own.get(name) or decided[name].devices for name in after.models}
    nowhere = {name for name in before.models if name not in own}
    for name in _without_room(facts, had, places, nowhere):
        del places[name]
    change = machine_change(had, places, now.stand_ins)
    _check_starts(after, known, change)
    return ClusterChange(after, known._replace(facts=facts), change, decided, above)


def with_memory(
    facts: PlacementFacts,
    weighed: PlacementFacts,
    host_bytes: Mapping[str, int],
    before: ServedCluster,
    after: ServedCluster,
) -> PlacementFacts:
    """Facts of the file `after` with the host memory of machines that was counted in `weighed` for
    the file `before`, without the part that added devices take. Machines that the file `before`
    does not have get their `host_bytes`, where these are known, less what their devices take.
    """
    known = {one.name: one for one in weighed.machines}

    def counted(one: PlaceMachine) -> PlaceMachine:
        if one.name not in known:
            has = host_bytes.get(one.name)
            return one if has is None else replace(one, nbytes=max(0, has - after.taken(one.name)))
        nbytes = known[one.name].nbytes + before.taken(one.name) - after.taken(one.name)
        return replace(one, nbytes=max(0, nbytes))

    return replace(facts, machines=tuple(map(counted, facts.machines)))


def check_away(change: ClusterChange, before: ServedCluster, devices: Collection[str]) -> None:
    """Raise `ConfigError` if a new or changed tenant does not fit one of `devices`, whose servers
    are away and cannot check it in a dry run.
    """
    had = {one.name: one for one in before.file.common.tenants}
    anew = {t.name for t in change.plan.file.common.tenants if t != had.get(t.name)}
    for device in devices:
        _check_fit(change.plan, change.known, device, change.change.tenants[device] & anew)


def _decided(
    facts: PlacementFacts,
    named: Places,
    own: Places,
    lost: Collection[str],
    rules: PlacementRules,
) -> dict[str, TenantPlaced]:
    """Places of tenants that have none, and that name no device: on devices that are not lost, or
    on any if all are."""
    anew = [name for name, at in named.items() if not at and name not in own]
    if not anew:
        return {}
    pins = {name: tuple(named[name] or own.get(name, ())) for name in named}
    there = tuple(one for one in facts.devices if one.name not in lost) or facts.devices
    left = {one.name for one in there}
    models = tuple(
        replace(one, pins=tuple(d for d in pins[one.name] if d in left))
        for one in facts.models
        if not pins[one.name] or left & {*pins[one.name]}
    )
    first = first_placement(replace(facts, devices=there, models=models), Stays({}, STAYS), rules)
    return {name: first.places[name] for name in anew}


def _without_room(
    facts: PlacementFacts,
    tenants: Mapping[str, Collection[str]],
    places: Places,
    nowhere: Collection[str],
) -> Iterator[str]:
    """Tenants of `nowhere`, which were left out before, for which there still is no host memory.

    Raises `CommandFailed` if there is none for another tenant.
    """
    served = {d: [n for n in names if n in places] for d, names in tenants.items()}
    wanted = {d: [n for n, at in places.items() if d in at] for d in tenants}
    refused = refused_places(facts, served, wanted)
    if new := [one.words for one in refused if one.model not in nowhere]:
        raise CommandFailed(new[0])
    yield from {one.model for one in refused}


def _check_starts(plan: ServedCluster, known: KnownCluster, change: MachineChange) -> None:
    """Raise `ConfigError` if a tenant does not fit the device to which it moves."""
    for step in change.steps:
        if step.verb is MoveVerb.START:
            _check_fit(plan, known, step.device, {step.model})


def _check_fit(
    plan: ServedCluster, known: KnownCluster, device: str, tenants: Collection[str]
) -> None:
    for name, why in plan.unfit(device, tenants, known.models).items():
        raise ConfigError(f"device {device!r}: tenant {name!r}: {why}")


def _devices(plan: ServedCluster) -> dict[str, dict[str, object]]:
    """Sections of the devices with their machines, by device."""
    return {
        name: section | {"machine": plan.machine_of[name]}
        for name, section in plan.sections.items()
    }
