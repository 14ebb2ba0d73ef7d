"""Command-line options that several commands share."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file; see docs/configuring.md.")
]

ServedWords = Annotated[
    list[str],
    typer.Argument(
        metavar="CONFIG|MODEL...",
        help="A YAML file (docs/configuring.md), or models: folders, or names at a hub as "
        "ORGANISATION/NAME[@REVISION].",
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object instead, whose keys docs/watching.md has."),
]
TrustOption = Annotated[
    list[str] | None,
    typer.Option(
        "--trust-remote-code",
        metavar="MODEL@COMMIT",
        help="MODEL whose own code may run, at the commit whose code you have read.",
        show_default=False,
    ),
]


def hardware_option(left_out: str) -> Any:
    """An option that names a hardware profile; `left_out` tells users which profile is the
    default.
    """
    return typer.Option(
        metavar="NAME|FILE",
        help="A name in configs/hardware, or a YAML file with the same keys.",
        show_default=left_out,
    )


def trace_format_option(formats: Iterable[str]) -> Any:
    """An option that names the format of a trace, one of `formats`."""
    names = ", ".join(formats)
    return typer.Option(
        metavar="NAME", help=f"Format of the trace, if its beginning does not show it: {names}."
    )
