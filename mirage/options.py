"""What several commands have on their command lines, and do with it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from mirage.config import Config

ConfigPath = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="YAML file; see docs/operating.md.")
]


def hardware_option(left_out: str) -> Any:
    """An option that names a hardware profile; `left_out` says which is taken without it."""
    return typer.Option(
        metavar="NAME|FILE",
        help="A name in configs/hardware, or a YAML file with the same keys.",
        show_default=left_out,
    )


def warn(path: Path, config: Config) -> None:
    """Say on stderr what the file of a configuration should not say any more."""
    for line in config.warnings():
        typer.echo(f"mirage: warning: {path}: {line}", err=True)
