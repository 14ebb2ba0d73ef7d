"""Epoch of a controller: a number that only one controller has, and that grows. Its fact is the
controller's claim.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from mirage.errors import CommandFailed
from mirage.machines.claim import (
    RENEW_S,
    SILENT_S,
    Claimant,
    ClaimSight,
    ClaimState,
    ControllerClaim,
    controller_words,
)
from mirage.machines.seam import MachineAway, Machines, StaleEpoch
from mirage.processes.marks import boot_id, mark_of

PREFIX = "epoch:"
LOOK_S = 0.5
"""Seconds between two looks at the claim of another controller."""
END_S = 2.0
"""Longest time in seconds to give a claim up: the cluster may be away."""


class EpochClaim(NamedTuple):
    """Newest epoch of a cluster, 0 if none was claimed, and the claim of its controller."""

    number: int
    claim: ControllerClaim | None
    """None if no epoch was claimed, and for a claim in the form of another release."""


async def newest_claim(machines: Machines) -> EpochClaim:
    """Epoch that was claimed last, and its claim. Raises `MachineAway` if the cluster does not
    answer.
    """
    known = await machines.facts(PREFIX)
    number = max((int(key.removeprefix(PREFIX)) for key in known), default=0)
    claim = None
    with suppress(msgspec.DecodeError, KeyError):
        claim = msgspec.json.decode(known[f"{PREFIX}{number}"], type=ControllerClaim)
    return EpochClaim(number, claim)


async def newest_epoch(machines: Machines) -> int:
    """Epoch that was claimed last; 0 if none was. Raises `MachineAway` if the cluster does not
    answer.
    """
    return (await newest_claim(machines)).number


async def free_epoch(
    machines: Machines, by: Claimant, *, take_over: bool, say: Callable[[str], None]
) -> int:
    """Wait until the new controller `by` may claim the next epoch, and return the newest epoch. It
    may once the controller of the newest epoch has ended or is silent; with `take_over` it may
    immediately, and the other controller ends only when `by` has claimed an epoch.

    It waits up to `SILENT_S` seconds for a renewal, unless that controller is known to have ended.
    Raises `CommandFailed` if another controller renews its claim, and `MachineAway` if the cluster
    does not answer.
    """
    sight, told = ClaimSight(time.monotonic()), False
    while True:
        number, claim = await newest_claim(machines)
        if take_over:
            if claim is not None and not claim.ended:
                say(f"the controller that is {words_of(claim.by)}, is to end")
            return number
        dead = claim is not None and _is_dead(claim.by, by)
        match sight.sees(number, claim, time.monotonic(), is_dead=dead):
            case ClaimState.FREE:
                return number
            case ClaimState.HELD:
                raise _held(claim)
        if not told and claim is not None:
            wait = f"{SILENT_S:g} s without a renewal are awaited"
            say(f"another controller is {words_of(claim.by)}: {wait}")
            told = True
        await asyncio.sleep(LOOK_S)


async def claimed_epoch(machines: Machines, by: Claimant, over: int, beyond: int = 0) -> int:
    """Claim the next epoch for the controller `by`, and return it; it is greater than `beyond`, the
    newest epoch that servers know.

    `over` is the newest epoch that may be followed. Raises `CommandFailed` if another controller
    has claimed a later one, and `MachineAway` if the cluster does not answer. Servers may know of a
    later epoch than the cluster does, if the head's folder was lost.
    """
    value = msgspec.json.encode(ControllerClaim(by))
    while True:
        newest = await newest_claim(machines)
        if newest.number > over:
            raise _held(newest.claim)
        number = max(beyond, newest.number) + 1
        if await machines.put(f"{PREFIX}{number}", value, absent=True):
            return number


async def keep_claim(machines: Machines, epoch: int, by: Claimant) -> None:
    """Renew the claim of the controller `by` on an epoch every `RENEW_S` seconds. Never returns;
    raises `StaleEpoch` once another controller has claimed a later one.
    """
    renewals = 0
    while True:
        with suppress(MachineAway):
            if (newest := await newest_epoch(machines)) > epoch:
                raise StaleEpoch(newest)
            renewals += 1
            value = msgspec.json.encode(ControllerClaim(by, renewals))
            await machines.put(f"{PREFIX}{epoch}", value)
        await asyncio.sleep(RENEW_S)


async def give_up(machines: Machines, epoch: int, by: Claimant) -> None:
    """Note in the claim on `epoch` that its controller `by` ends, so that the next controller need
    not wait."""
    with suppress(MachineAway, TimeoutError):
        async with asyncio.timeout(END_S):
            value = msgspec.json.encode(ControllerClaim(by, ended=True))
            await machines.put(f"{PREFIX}{epoch}", value)


def this_claimant(machine: str) -> Claimant:
    """This process as a controller on `machine`, its machine's name in the cluster."""
    mark = mark_of(os.getpid())
    assert mark is not None
    return Claimant(machine, _place(), mark, time.time())


def words_of(one: Claimant) -> str:
    """Words about a controller: its process, its machine, and its start."""
    return controller_words(one.mark.pid, one.machine, one.since)


def _held(claim: ControllerClaim | None) -> CommandFailed:
    who = "has just begun" if claim is None else f"is {words_of(claim.by)}"
    return CommandFailed(
        f"the controller of this cluster {who}: run one only; end that one, or start this one "
        "with --take-over, which ends it"
    )


def _is_dead(one: Claimant, here: Claimant) -> bool:
    """True if the controller `one` ran on the machine of the controller `here`, and has ended. A
    controller ends with the node of its machine, so none is left from another boot or container.
    """
    if one.machine != here.machine:
        return False
    return one.place != here.place or mark_of(one.mark.pid) != one.mark


def _place() -> str:
    return f"{boot_id()} {Path('/proc/self/ns/pid').stat().st_ino}"
