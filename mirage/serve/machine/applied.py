"""Answer to an apply on several devices, put together from the devices' answers. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from mirage.control.placement.steps import MoveVerb
from mirage.control.roster.states import LifeState
from mirage.serve.apply import said
from mirage.serve.apply.forms import ABSENT, ApplyTold, DeviceAwaits
from mirage.serve.machine.change import MachineChange
from mirage.serve.machine.first import TenantPlaced

OF_DEVICES = frozenset({said.NOTHING, said.NO_STATE})
"""Lines of devices' answers that are left out, because they would be wrong for the whole."""
AWAY = "its server is away, and begins with that when it is back"
SETTLED = {MoveVerb.START: LifeState.READY.value, MoveVerb.STOP: ABSENT}


def machine_told(
    change: MachineChange,
    http: tuple[str, ...],
    decided: Mapping[str, TenantPlaced],
    parts: Mapping[str, ApplyTold | None],
    revision: int,
    *,
    dry_run: bool,
) -> ApplyTold:
    """Answer for all devices: the changes that were made, or with `dry_run`, that would be.

    `http` are limits of clients that change. `decided` are the places of new tenants that name no
    device. `parts` are the answers of devices, None for one whose server is away.
    """
    told = {name: part for name, part in parts.items() if part is not None}
    awaits = {name: dict(part.awaited) for name, part in told.items()}
    for step in change.steps:
        if (state := SETTLED.get(step.verb)) is not None:
            awaits.setdefault(step.device, {})[step.model] = state
    revisions = {name: part.revision for name, part in told.items()}
    lines = list(_lines(change, decided, parts, dry_run=dry_run))
    lines += said.of_http(http, dry_run=dry_run)
    return ApplyTold(
        applied=bool(lines) and not dry_run,
        revision=revision,
        added=change.added,
        changed=tuple({c.name: c for part in told.values() for c in part.changed}.values()),
        removed=change.removed,
        roster=tuple(dict.fromkeys(key for part in told.values() for key in part.roster)),
        http=http,
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
    *,
    dry_run: bool,
) -> Iterator[str]:
    for name, at in decided.items():
        yield f"{name}: on {' and '.join(at.devices)}, {at.why}"
    for device, part in parts.items():
        if part is None:
            yield f"{device}: {AWAY}"
        else:
            yield from (f"{device}: {line}" for line in part.lines if line not in OF_DEVICES)
    verb = "would go" if dry_run else "goes"
    for name in change.moved:
        before, after = (" and ".join(one.devices[name]) for one in (change.before, change.after))
        yield f"{name}: {verb} from {before} to {after}, and is there before it leaves"
