"""Steps of a move that wait for earlier ones, or cannot follow, because earlier steps were not
carried out.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mirage.control.placement.steps import MoveStep, MoveVerb

TAKES = (MoveVerb.BRING, MoveVerb.START, MoveVerb.WAKE)
"""Verbs of the steps by which a replica comes, which takes memory."""


def needed(steps: Sequence[MoveStep], number: int, machines: Mapping[str, str]) -> list[int]:
    """Numbers, from 0, of the earlier steps that have to end before step `number` begins; it may
    run beside all others.

    These are the steps of its own model, and those that free memory that it may need, on its device
    or on its machine. Starts on one device may run at the same time: its roster lets engines wait
    for the memory that a start takes and gives back. `machines` has the machine of each device;
    devices that it lacks count as one machine.
    """
    step = steps[number]
    return [
        n
        for n, one in enumerate(steps[:number])
        if one.model == step.model or (step.verb in TAKES and _frees(one, step, machines))
    ]


def hindrance(
    steps: Sequence[MoveStep], number: int, undone: Collection[int], machines: Mapping[str, str]
) -> str:
    """Return the reason why step `number`, counted from 0, cannot follow; empty if it can. The
    earlier steps `undone` failed or were left out, and replicas whose start failed were removed.

    A step cannot follow an undone step that it needs, unless that is the sleep of a replica that
    was removed. See `needed` for `machines`.
    """
    step = steps[number]
    opened = {(one.model, one.device) for one in steps if one.verb is MoveVerb.START}
    for one in (steps[n] for n in needed(steps, number, machines) if n in undone):
        if one.model == step.model or (one.model, one.device) not in opened:
            return f"{one.verb} {one.model} on {one.device} was not done"
    return ""


def _frees(one: MoveStep, other: MoveStep, machines: Mapping[str, str]) -> bool:
    """True if step `one` frees memory of the other step's device, or host memory of its machine."""
    if one.verb is MoveVerb.STOP:
        return machines.get(one.device) == machines.get(other.device)
    return one.verb is MoveVerb.SLEEP and one.device == other.device
