"""`mirage node`: this machine joins a cluster, shows it, and leaves it."""

from __future__ import annotations

import asyncio
import re
import signal
import socket
from collections.abc import Iterable
from enum import StrEnum
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from mirage.errors import CommandFailed, InputRefused
from mirage.machines.epoch import newest_claim, newest_epoch
from mirage.machines.ray.connected import connected
from mirage.machines.ray.head import FixedHead, HeadPlace
from mirage.machines.ray.node import PORT, NodeFolder, NodeRecord
from mirage.machines.ray.store import NodeStore
from mirage.machines.seam import MachineAway
from mirage.machines.seen import (
    ClusterSeen,
    ControllerSeen,
    MachineSeen,
    ServerSeen,
    is_router,
    lines,
    server_named,
)
from mirage.printed import json_object
from mirage.processes.marks import MarkedProcess
from mirage.weights.secret import is_private

if TYPE_CHECKING:
    from mirage.machines.ray.machines import RayMachines

ENDS_S = 60.0
SCHEMA_VERSION = 1
NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
"""Pattern of machines' names: those that a label of Ray may have."""


class NodeVerb(StrEnum):
    """Action of `mirage node`."""

    START = "start"
    JOIN = "join"
    STATUS = "status"
    LEAVE = "leave"


def node_command(
    verb: Annotated[NodeVerb, typer.Argument(help="What to do.")],
    head: Annotated[
        str | None,
        typer.Argument(metavar="[HOST:PORT]", help="Head to join.", show_default=""),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            help="Name of this machine, as `machine` of a device names it.",
            show_default="host name",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Private address of this machine, at which others reach it.")
    ] = "",
    port: Annotated[int, typer.Option(help="With start: port of the head.")] = PORT,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Redis (redis://HOST:PORT) that keeps the head's tables and address: if the head "
            "is lost, another machine that ran `start` becomes the head, and all others join it.",
            show_default="the folder",
        ),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Copy of the cluster's secret.",
            show_default="the one in the folder",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder of this machine; other commands read MIRAGE_NODE_FOLDER only.",
            show_default="MIRAGE_NODE_FOLDER, or ~/.local/state/mirage/node",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With status: print one JSON object instead.")
    ] = False,
) -> None:
    """Join machines to one cluster, show what runs there, and leave.

    `start` runs the head here until Ctrl-C, `join` a node of another machine's head; device
    servers go on then. With --store, `start` joins the head that is there, and is the
    next one. `leave` ends those of this machine, which drain, and its node.
    """
    if as_json and verb is not NodeVerb.STATUS:
        raise InputRefused(f"--json works only with status: leave it out with {verb}")
    there = NodeFolder(folder)
    if verb in (NodeVerb.START, NodeVerb.JOIN):
        _run(there, verb, head, name or socket.gethostname(), host, port, secret, store)
    elif verb is NodeVerb.STATUS:
        with connected(there):
            seen = asyncio.run(_seen())
        _print([json_object(SCHEMA_VERSION, seen)] if as_json else lines(seen))
    else:
        with connected(there) as node:
            _print(asyncio.run(_left(node.name)))
        _end(node)


def _run(
    there: NodeFolder,
    verb: NodeVerb,
    head: str | None,
    name: str,
    host: str,
    port: int,
    secret: Path | None,
    store: str | None,
) -> None:
    """Run the node until a signal. Raises `InputRefused` for invalid arguments, and `CommandFailed`
    if the node cannot run.
    """
    _check_host(host)
    if not NAME.fullmatch(name):
        raise InputRefused(f"--name {name}: use at most 63 letters, digits and . _ -")
    starts = verb is NodeVerb.START
    if not starts and (head is None) == (store is None):
        raise InputRefused(
            "mirage node join HOST:PORT: name the head as its start says, or the Redis that has "
            "its address: mirage node join --store redis://HOST:PORT"
        )
    kept = None if store is None else NodeStore.of(store)
    if secret is not None:
        there.take_secret(secret)
    elif starts:
        there.make_secret()
    place: HeadPlace
    if kept is not None:
        from mirage.machines.ray.claim import ClaimedHead  # it needs a client of Redis

        place = ClaimedHead(kept, there.tables(), f"{host}:{port}" if starts else None)
    else:
        place = FixedHead(head or f"{host}:{port}", is_here=starts)
    if starts:
        joins = f"{host}:{port}" if kept is None else "this --store"
        _print([f"others join with {joins} and a copy of {there.secret_file}"])
    there.run(name, host, place, _say, port, kept)


def _check_host(host: str) -> None:
    """Raises `InputRefused` unless `host` is an address of this machine that the Internet cannot
    reach.
    """
    if not host:
        raise InputRefused("--host: name the private address at which others reach this machine")
    try:
        private = is_private(host)
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as tried:
            tried.bind((host, 0))
    except (ValueError, OSError) as error:
        raise InputRefused(f"--host {host}: no address of this machine ({error})") from None
    if not private:
        raise InputRefused(
            f"--host {host}: machines talk without TLS: write a loopback or private address of "
            "this machine"
        )


def _end(node: NodeRecord) -> None:
    """End the node's process. Raises `CommandFailed` if it does not end in time."""
    if (process := MarkedProcess.found(node.process)) is None:
        return
    try:
        process.send_signal(signal.SIGTERM)
        process.wait(ENDS_S)
    except TimeoutError as error:
        raise CommandFailed(f"the node of Ray does not end: {error}") from None
    finally:
        process.close()


def _say(line: str) -> None:
    print(line, flush=True)


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        _say(line)


async def _seen() -> ClusterSeen:
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    machines = RayMachines(0)
    there = sorted(await machines.there(), key=lambda one: one.name)
    devices = await machines.devices()
    return ClusterSeen(
        [MachineSeen(one.name, one.address) for one in there],
        [await _server(machines, device, machine) for device, machine in devices.items()],
        await _controller(machines),
    )


async def _controller(machines: RayMachines) -> ControllerSeen | None:
    epoch, claim = await newest_claim(machines)
    if claim is None:
        return None
    by = claim.by
    return ControllerSeen(epoch, by.machine, by.mark.pid, by.since, claim.ended)


async def _server(machines: RayMachines, device: str, machine: str) -> ServerSeen:
    silent = ServerSeen(
        name=device, machine=machine, router=is_router(device), problem="no server answers"
    )
    try:
        told = await machines.told(device)
    except MachineAway as error:
        return msgspec.structs.replace(silent, problem=str(error))
    if told is None:
        return silent
    return msgspec.structs.replace(
        silent,
        url=told.url or None,
        pid=told.pid,
        ready=told.is_ready,
        lease_left_s=told.left_s,
        problem="",
    )


async def _left(machine: str) -> list[str]:
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    return await left(RayMachines(await newest_epoch(RayMachines(0))), machine)


async def left(machines: RayMachines, machine: str) -> list[str]:
    """Hide a machine from the controller, and have its servers drain and end; return lines about
    that. Raises `MachineAway` if the cluster or an agent does not answer, and `StaleEpoch` if a
    newer controller has given orders.
    """
    await machines.leaves(machine)
    told = []
    for device, its in (await machines.devices()).items():
        if its == machine:
            await machines.end(device)
            told.append(f"{server_named(device)}: its server drains and ends")
    return told
