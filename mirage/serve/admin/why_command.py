"""``mirage why``: why memory moved, and what that cost and saved."""

from __future__ import annotations

from typing import Annotated

import typer

from mirage.config import parse_span
from mirage.errors import InputRefused
from mirage.options import JsonOption
from mirage.printed import json_object
from mirage.serve.admin.address import chosen
from mirage.serve.admin.client import AdminClient
from mirage.serve.admin.commands import SocketOption
from mirage.serve.admin.explained import explanation
from mirage.serve.admin.forms import FORM_VERSION, LONGEST_S


def why_command(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[TENANT]", help="Loans of one tenant; without it, of all."),
    ] = None,
    last: Annotated[
        str, typer.Option(metavar="SPAN", help="Loans of the last 90s, 10m or 2h.")
    ] = "1h",
    as_json: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Say why tenants hold what they hold, who lent memory to whom, and what that cost and saved.

    The cost is measured: the time for which steps of the lender waited for its layers. What is
    saved is estimated, beside what the borrower's own share could hold.
    """
    told = AdminClient(chosen(socket)).why(name, _seconds(last))
    typer.echo(json_object(FORM_VERSION, told) if as_json else explanation(told))


def _seconds(text: str) -> float:
    """Seconds of a span such as ``10m``. Raises `InputRefused` for any other text, and for more
    than `LONGEST_S` seconds.
    """
    try:
        seconds = parse_span(text)
    except ValueError:
        seconds = None
    if seconds is None or seconds > LONGEST_S:
        raise InputRefused(f"--last {text!r}: write a time up to {LONGEST_S} s, as 90s, 10m or 2h")
    return float(seconds)
