"""``mirage stop``: tells a server to stop after its running requests, or kills immediately the
processes that a killed server left.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from mirage.errors import CommandFailed, InputRefused
from mirage.processes.marks import MarkedProcess, mark_of
from mirage.serve.admin.address import Credentials, listener, listening, refuse_several
from mirage.serve.admin.client import AdminClient
from mirage.serve.adoption.left import LeftRun, left_runs
from mirage.serve.rundir.parent_folders import places

PATIENCE_S = 120.0
"""Seconds for a server to end: more than a drain, the grace of engines and saving KV blocks to a
disk take by default.
"""


def stop_command(
    socket: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH",
            help="Admin socket of the server, as it printed it; it need not live any more.",
            show_default="the only server of this user, or else all that killed ones left",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0, max=1e6, metavar="SECONDS", help="Time for the server to end.")
    ] = PATIENCE_S,
) -> None:
    """Stop a server with its engines, in order, or end the engines that a killed one has left.

    Exit code 0 once all has ended, 1 if a server takes longer than the timeout, 2 if there is
    nothing to stop, or several servers of which none is named.
    """
    if socket is not None:
        who = listener(str(socket))
        if who is not None:
            _stop(socket, who, timeout)
        else:
            _end([run for run in left_runs() if _has(run, socket)], f"at {socket}")
        return
    living = listening()
    refuse_several(living)
    for path, who in living.items():
        _stop(path, who, timeout)
    if not living:
        _end(left_runs(), f"of this user in {places().sockets}")


def _stop(path: Path, who: Credentials, timeout_s: float) -> None:
    """Send SIGTERM to the server `who` at the admin socket `path`, and wait until it has ended.

    Raises `CommandFailed` if it takes longer than `timeout_s`, or ended before the signal.
    """
    mark = mark_of(who.pid)
    process = None if mark is None else MarkedProcess.found(mark)
    if process is None:
        raise CommandFailed(f"process {who.pid} has just ended: run the command again")
    names = ", ".join(tenant.name for tenant in AdminClient(path).tenants().tenants)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(timeout_s)
    except TimeoutError:
        raise CommandFailed(
            f"process {who.pid} was told to stop and has not ended in {timeout_s:g} s: wait, or "
            "give a longer --timeout"
        ) from None
    typer.echo(f"process {who.pid} has ended, with {names}")


def _end(runs: list[LeftRun], where: str) -> None:
    """End the runs that killed servers left, and print their tenants. Raises `InputRefused` if
    there are none.
    """
    if not runs:
        raise InputRefused(f"no server {where} runs, and none has left an engine: nothing to stop")
    for run in runs:
        names = ", ".join(run.end()) or "no engine"
        typer.echo(f"process {run.record.server.pid} was killed; it had left {names}: ended")


def _has(run: LeftRun, socket: Path) -> bool:
    """True if the socket belongs to this run; if it does not, the run's locks are released."""
    if Path(run.record.folders[-1]) == socket.absolute().parent:
        return True
    run.let_go()
    return False
