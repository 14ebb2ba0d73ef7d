"""``mirage ps``, ``mirage tenants`` and ``mirage logs``: a running server's tenants."""

from __future__ import annotations

import time
from collections import deque
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mirage.control.roster.states import LifeState
from mirage.errors import CommandFailed
from mirage.serve.admin.acts import DRAIN_S, target
from mirage.serve.admin.address import chosen
from mirage.serve.admin.client import AdminClient, Lines
from mirage.serve.admin.following import followed
from mirage.serve.admin.forms import ActTaken, OperatorAct
from mirage.serve.admin.shown import described, process_table

SocketOption = Annotated[
    Path | None,
    typer.Option(
        metavar="PATH",
        help="Admin socket of the server, as it printed it.",
        show_default="that of the only server of this user",
    ),
]
NameArgument = Annotated[str, typer.Argument(help="Of a tenant, as `mirage ps` has it.")]


class TenantVerb(StrEnum):
    """Act to carry out: an `OperatorAct`, or to look."""

    SHOW = "show"
    SLEEP = "sleep"
    WAKE = "wake"
    STOP = "stop"
    RESTART = "restart"
    DRAIN = "drain"


def ps_command(socket: SocketOption = None) -> None:
    """List the tenants of a running server: state, memory, requests, and what comes next.

    DEVICE is what a tenant holds of the device now, SHARE what it is sure of while it is awake.
    """
    typer.echo(process_table(_client(socket).tenants(), time.time()))


def tenants_command(
    verb: Annotated[TenantVerb, typer.Argument(help="What to do with it.")],
    name: NameArgument,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return once that is so, and not once it is ordered.")
    ] = False,
    drain: Annotated[
        float | None,
        typer.Option(
            min=0,
            max=1e6,
            metavar="SECONDS",
            help="For running requests to end, before it sleeps or stops.",
            show_default=f"{DRAIN_S:g} with drain, else roster.drain_s of the configuration",
        ),
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Show a tenant, put it to sleep, wake it, stop it, start it anew, or drain it.

    A request wakes and starts a tenant as well. What still runs when a drain is over waits until
    its tenant is awake again where it sleeps, and ends with an error where it stops.
    """
    client = _client(socket)
    if verb is TenantVerb.SHOW:
        typer.echo(described(client.tenant(name), time.time()))
        return
    act = OperatorAct(verb)
    if not wait:
        typer.echo(client.act(name, act, drain).will)
        return
    sleeps = client.tenants().server.policy == "mirage"
    with client.watch() as lines:
        taken = client.act(name, act, drain)
        typer.echo(taken.will)
        goal = target(act, sleeps=sleeps)
        if taken.state != goal:
            _until(taken, goal, lines)


def logs_command(
    name: NameArgument,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as it grows, until Ctrl-C.")
    ] = False,
    lines: Annotated[
        int | None, typer.Option("--lines", "-n", min=0, help="Only so many at its end.")
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Print the log of a tenant's engines: all since the server's start, or with --log-dir, ever.

    It is read where it lies, so in the server's file system.
    """
    log = Path(_client(socket).tenant(name).log)
    try:
        with log.open("rb") as file:
            typer.echo(b"".join(deque(file, lines)), nl=False)
            for part in followed(file, log) if follow else ():
                typer.echo(part, nl=False)
    except FileNotFoundError:
        raise CommandFailed(f"{log}: no log yet, its engine has not been started here") from None
    except BrokenPipeError:
        raise SystemExit(0) from None


def _client(named: Path | None) -> AdminClient:
    return AdminClient(chosen(named))


def _until(taken: ActTaken, goal: LifeState, lines: Lines) -> None:
    """Raises `CommandFailed` if it fails, or if the server ends.

    A state counts however short it is, but not one from before the act.
    """
    name = taken.tenant
    for change in lines:
        if change.tenant != name or change.revision < taken.revision:
            continue
        if change.state == goal:
            typer.echo(f"{name} is {goal}")
            return
        if change.state == LifeState.FAILED:
            raise CommandFailed(f"{name} has failed: {change.reason or 'see its log'}")
    raise CommandFailed(f"the server ended before {name} was {goal}")
