"""Machines of a cluster and the servers on them, as ``mirage node status`` shows them. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from mirage.machines.claim import controller_words
from mirage.machines.seam import ROUTER


class MachineSeen(msgspec.Struct, frozen=True):
    """Machine that answers, with the address at which others reach it."""

    name: str
    address: str


class ServerSeen(msgspec.Struct, frozen=True, kw_only=True):
    """Server of a device, or router of a machine. Without an answer only the first three fields and
    `problem` have a value.
    """

    name: str
    """Name of the device; of a router, that of its machine after ``router@``."""
    machine: str
    router: bool
    url: str | None = None
    pid: int | None = None
    ready: bool | None = None
    lease_left_s: float | None = None
    """Seconds until its lease ends, if nobody renews it."""
    problem: str = ""
    """Reason why it did not answer; empty if it did."""


class ControllerSeen(msgspec.Struct, frozen=True):
    """Controller that claimed the newest epoch."""

    epoch: int
    machine: str
    pid: int
    since: float
    """Time of its start, in seconds since 1970."""
    ended: bool
    """True if the controller has given up its claim at its end, False if it runs or was killed."""


class ClusterSeen(msgspec.Struct, frozen=True):
    """Machines that answer, servers that were started on them, and the controller."""

    machines: list[MachineSeen]
    servers: list[ServerSeen]
    controller: ControllerSeen | None = None
    """Controller that claimed the newest epoch; None if none has yet, or one of another release."""


def lines(seen: ClusterSeen) -> Iterator[str]:
    """Line for each machine, for the controller if there is one, and for each server."""
    for machine in seen.machines:
        yield f"machine {machine.name} at {machine.address}"
    if (its := seen.controller) is not None:
        said = controller_words(its.pid, its.machine, its.since)
        yield f"controller of epoch {its.epoch}: {said}{', until it ended' if its.ended else ''}"
    for one in seen.servers:
        yield f"{server_named(one.name)} on {one.machine}: {_said(one)}"


def server_named(name: str) -> str:
    """Server of the device, or router, of that name, in words."""
    return "router" if is_router(name) else f"device {name}"


def is_router(name: str) -> bool:
    return name.startswith(ROUTER)


def _said(one: ServerSeen) -> str:
    if one.problem:
        return one.problem
    state = "ready" if one.ready else "starts"
    left = f"{one.lease_left_s:.0f} s of its lease are left"
    return f"{one.url or 'no address yet'}, process {one.pid}, {state}, {left}"
