"""Tables of public traces on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from mirage.units import MIB
from mirage.workload.public import Public


def show_all(known: Mapping[str, Public], folder: Path, console: Console) -> None:
    """Print one line for each trace, and the folder of fetched ones."""
    table = Table(
        "name", "what it is", "MiB", "licence", "here", box=SIMPLE_HEAD, padding=(0, 1, 0, 0)
    )
    table.columns[0].no_wrap = True
    table.columns[2].justify = "right"
    for name, one in known.items():
        there = "yes" if (folder / one.file).is_file() else ""
        table.add_row(name, one.about, _size(one), one.licence, there)
    console.print(table)
    console.out(f"Kept in {folder}. `mirage traces list NAME` tells more.", highlight=False)


def show_each(chosen: Mapping[str, Public], folder: Path, console: Console) -> None:
    """Print all that is known of each chosen trace, line by line."""
    for name, one in chosen.items():
        path = folder / one.file
        rows = {
            "what it is": one.about,
            "format": one.format,
            "address": ", ".join(one.urls),
            "bytes": f"{one.bytes:,}" if one.bytes else "not known before it is fetched",
            "checksum": f"{one.checksum} ({one.checked})",
            "licence": one.licence,
            "cite": one.cite,
            "file": f"{path}{'' if path.is_file() else ' (not fetched)'}",
        }
        console.out(name, highlight=False)
        for key, value in rows.items():
            console.out(f"  {key + ':':<12}{value}", highlight=False)


def plain(wanted: Mapping[str, Public], folder: Path) -> dict[str, Any]:
    """All that is known of each trace, as plain values."""
    traces = [
        {
            "name": name,
            "about": one.about,
            "format": one.format,
            "urls": one.urls,
            "bytes": one.bytes,
            "checksum": one.checksum,
            "checked": one.checked,
            "licence": one.licence,
            "cite": one.cite,
            "file": folder / one.file,
            "here": (folder / one.file).is_file(),
        }
        for name, one in wanted.items()
    ]
    return {"folder": folder, "traces": traces}


def _size(one: Public) -> str:
    return f"{one.bytes / MIB:,.1f}" if one.bytes else ""
