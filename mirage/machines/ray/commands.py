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
from typing import Annotated

import typer

from mirage.errors import CommandFailed, InputRefused
from mirage.machines.epoch import newest_epoch
from mirage.machines.ray.connected import connected
from mirage.machines.ray.head import FixedHead, HeadPlace
from mirage.machines.ray.node import PORT, NodeFolder, NodeRecord
from mirage.machines.ray.store import NodeStore
from mirage.machines.seam import ROUTER, MachineAway
from mirage.processes.marks import MarkedProcess

ENDS_S = 60.0
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
        typer.Option(help="Name of this machine, as devices name it.", show_default="host name"),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Private address of this machine, at which others reach it.")
    ] = "",
    port: Annotated[int, typer.Option(help="Port of the head that is started.")] = PORT,
    store: Annotated[
        str | None,
        typer.Option(
            metavar="URL",
            help="Redis that has the head's tables and its address, redis://HOST:PORT: machines "
            "that start are the head one after the other, those that join follow it.",
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
        typer.Option(help="Folder of this machine.", show_default="~/.local/state/mirage/node"),
    ] = None,
) -> None:
    """Join machines to one cluster, show what runs there, and leave.

    `start` runs the head here until Ctrl-C, `join` a node of another machine's head; device
    servers go on then. With --store, `start` joins the head that is there, and is the
    next one. `leave` ends those of this machine, which drain, and its node.
    """
    there = NodeFolder(folder)
    if verb in (NodeVerb.START, NodeVerb.JOIN):
        _run(there, verb, head, name or socket.gethostname(), host, port, secret, store)
    elif verb is NodeVerb.STATUS:
        with connected(there):
            _print(asyncio.run(_lines()))
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
    """Run the node until a signal. Raises `InputRefused` and `CommandFailed`."""
    _check_host(host)
    if not NAME.fullmatch(name):
        raise InputRefused(f"--name {name}: letters, digits, . _ - alone, at most 63")
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
    """Raises `InputRefused` unless `host` is an address of this machine."""
    if not host:
        raise InputRefused("--host: name the private address at which others reach this machine")
    try:
        family = socket.AF_INET6 if ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as tried:
            tried.bind((host, 0))
    except (ValueError, OSError) as error:
        raise InputRefused(f"--host {host}: no address of this machine ({error})") from None


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


async def _lines() -> list[str]:
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    machines = RayMachines(0)
    there = sorted(await machines.there(), key=lambda one: one.name)
    lines = [f"machine {one.name} at {one.address}" for one in there]
    for device, machine in (await machines.devices()).items():
        try:
            told = await machines.told(device)
            said = "no server answers" if told is None else f"{told.url or 'no address yet'}"
            if told is not None:
                said += f", process {told.pid}, {'ready' if told.is_ready else 'starts'}"
                said += f", {told.left_s:.0f} s of its lease are left"
        except MachineAway as error:
            said = str(error)
        what = "router" if device.startswith(ROUTER) else f"device {device}"
        lines.append(f"{what} on {machine}: {said}")
    return lines


async def _left(machine: str) -> list[str]:
    from mirage.machines.ray.machines import RayMachines  # Ray reads the environment then

    machines = RayMachines(await newest_epoch(RayMachines(0)))
    await machines.leaves(machine)
    lines = []
    for device, its in (await machines.devices()).items():
        if its == machine:
            await machines.end(device)
            what = "router" if device.startswith(ROUTER) else f"device {device}"
            lines.append(f"{what}: its server drains and ends")
    return lines
