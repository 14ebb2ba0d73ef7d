"""The command ``mirage top`` and its options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from mirage.errors import InputRefused
from mirage.serve.admin.commands import SocketOption
from mirage.tools.top.app import TopApp
from mirage.tools.top.server import WatchedServer


def top_command(
    every: Annotated[
        float,
        typer.Option(min=0.2, max=60, metavar="SECONDS", help="Seconds between two readings."),
    ] = 1.0,
    socket: SocketOption = None,
) -> None:
    """Show the tenants of a running server as they go: memory by role, rates, latencies, decisions.

    Arrows choose a tenant; s, w, d and x have it sleep, wake, drain or stop. A server that goes
    away is asked again until it is back.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise InputRefused("mirage top needs a terminal: use `mirage ps`, or GET /mirage/overview")
    server = WatchedServer(socket)
    server.overview()
    TopApp(server, every).run()
