"""Answer to an apply on several devices, put together from the devices' answers. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from mirage.control.placement.steps import MoveVerb
from mirage.control.roster.states import LifeState
from mirage.serve.apply import said
from mirage.serve.apply.forms import ABSENT, ApplyTold, DeviceAwaits
from mirage.serve.machine.change import MachineChange
from mirage.serve.machine.first import TenantPlaced

OF_DEVICES = frozenset({said.NOTHING, said.NO_STATE})
"""Lines of single devices' answers that are left out, because they may not hold for all devices
together.
"""
AWAY = "its server is away, and begins with that when it is back"
SETTLED = {MoveVerb.START: LifeState.READY.value, MoveVerb.STOP: ABSENT}


class AboveChange(NamedTuple):
    """Changed keys that concern no single device."""

    http: tuple[str, ...] = ()
    """Changed keys of the limits of clients."""
    placement: tuple[str, ...] = ()
    """Changed keys of the rules of placement."""
    devices: tuple[str, ...] = ()
    """Names of devices that are added."""


def machine_told(
    change: MachineChange,
    above: AboveChange,
    decided: Mapping[str, TenantPlaced],
    parts: Mapping[str, ApplyTold | None],
    revision: int,
    *,
    dry_run: bool,
    away: Collection[str] = (),
    label: Callable[[str], str] = str,
) -> ApplyTold:
    """Answer for all devices: the changes that were made, or with `dry_run`, that would be.

    `decided` has the devices that were chosen for new tenants that name none. `parts` are the
    answers of devices, None for one whose server is away. `awaited` of the answer lacks tenants
    that move from or to devices `away`. `label` returns the name of a device for sentences.
    """
    told = {name: part for name, part in parts.items() if part is not None}
    awaits = {name: dict(part.awaited) for name, part in told.items()}
    held = {step.model for step in change.steps if step.device in away}
    for step in change.steps:
        if step.model not in held and (state := SETTLED.get(step.verb)) is not None:
            awaits.setdefault(step.device, {})[step.model] = state
    revisions = {name: part.revision for name, part in told.items()}
    limits = said.of_keys(above.http, dry_run=dry_run)
    lines = [
        line
        for line in _lines(change, decided, parts, label, dry_run=dry_run)
        if not any(line.endswith(f": {one}") for one in limits)  # said once for all devices
    ]
    lines += limits
    lines += said.of_keys(above.placement, dry_run=dry_run)
    added = "would be added" if dry_run else "added; its server starts once its machine is there"
    lines += [f"device {name}: {added}" for name in above.devices]
    return ApplyTold(
        applied=bool(lines) and not dry_run,
        revision=revision,
        added=change.added,
        changed=tuple({c.name: c for part in told.values() for c in part.changed}.values()),
        removed=change.removed,
        roster=tuple(dict.fromkeys(key for part in told.values() for key in part.roster)),
        http=above.http,
        placement=above.placement,
        fitting=tuple(one for part in told.values() for one in part.fitting),
        awaited={name: state for each in awaits.values() for name, state in each.items()},
        lines=tuple(lines) or (said.NOTHING,),
        devices={
            name: DeviceAwaits(
                revision=revisions.get(name, 0),
                awaited=each,
                what_if=told[name].what_if if name in told else None,
            )
            for name, each in awaits.items()
        },
    )


def _lines(
    change: MachineChange,
    decided: Mapping[str, TenantPlaced],
    parts: Mapping[str, ApplyTold | None],
    label: Callable[[str], str],
    *,
    dry_run: bool,
) -> Iterator[str]:
    for name, at in decided.items():
        yield f"{name}: on {' and '.join(at.devices)}, {at.why}"
    for device, part in parts.items():
        if part is None:
            yield f"{label(device)}: {AWAY}"
        else:
            yield from (f"{label(device)}: {line}" for line in part.lines if line not in OF_DEVICES)
    verb = "would go" if dry_run else "goes"
    for name in change.moved:
        before, after = (" and ".join(one.devices[name]) for one in (change.before, change.after))
        yield f"{name}: {verb} from {before} to {after}, and is there before it leaves"
