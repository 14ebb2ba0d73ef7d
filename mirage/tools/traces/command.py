"""``mirage traces``: lists public traces, and fetches them."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn

from mirage.fetching import FetchError, UnreachableError, WantedFile, checksum_like, fetch
from mirage.printed import json_object
from mirage.processes.exits import exits
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.tools.report.progress import Progress, progress
from mirage.tools.traces import table
from mirage.units import size
from mirage.workload import public
from mirage.workload.formats.request import TraceError
from mirage.workload.public import TRACES, Public, PublicFile

SCHEMA_VERSION = 1


class Action(StrEnum):
    """Action of ``mirage traces``."""

    LIST = "list"
    FETCH = "fetch"


def traces_command(
    action: Annotated[Action, typer.Argument(help="List the traces, or fetch some.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="Names from `mirage traces list`."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder to keep them in.",
            show_default="mirage/traces in the user's cache folder, where --trace NAME looks",
        ),
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(
            envvar="MIRAGE_TRACES_MIRROR",
            metavar="URL",
            help="Fetch URL/FILE instead of the owner's address.",
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds to wait for a silent server.")
    ] = 60.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="With list: print one JSON object instead.")
    ] = False,
) -> None:
    """List public traces, or fetch some so that --trace NAME finds them.

    With names, `list` tells of each where it comes from, its checksum and its licence. What is
    there already is checked again.
    """
    with exits("interrupted; what has come is kept, and fetching goes on there"):
        if as_json and action is not Action.LIST:
            raise TraceError(f"--json works only with list: leave it out with {action}")
        folder = cache or public.folder()
        chosen = {name: public.named(name) for name in dict.fromkeys(names or ())}
        if action is Action.LIST:
            if as_json:
                typer.echo(json_object(SCHEMA_VERSION, table.plain(chosen or TRACES, folder)))
            else:
                _list(chosen, folder)
            return
        if not chosen:
            raise TraceError("fetch needs a name: `mirage traces list` has them")
        if mirror is not None and not mirror.startswith(("http://", "https://")):
            raise TraceError(f"mirror {mirror!r}: write an address as https://HOST/FOLDER")
        with terminate_like_interrupt():
            for name, wanted in chosen.items():
                typer.echo(_licence(name, wanted), err=True)
                for file in wanted.files:
                    _fetch(name, file, folder / file.file, mirror, timeout)
                typer.echo(folder / wanted.file)


def _list(chosen: dict[str, Public], folder: Path) -> None:
    console = Console()
    if chosen:
        table.show_each(chosen, folder, console)
    else:
        table.show_all(TRACES, folder, console)


def _licence(name: str, wanted: Public) -> str:
    return f"{name}: {wanted.about}. Licence: {wanted.licence}. Cite {wanted.cite}."


def _fetch(name: str, wanted: PublicFile, path: Path, mirror: str | None, timeout_s: float) -> None:
    if path.exists():
        _check(name, wanted, path)
        return
    urls = [f"{mirror.rstrip('/')}/{wanted.file}"] if mirror else wanted.urls
    try:
        with progress(name, None, DownloadColumn(), TransferSpeedColumn(), stays=True) as shown:
            file = WantedFile(wanted.file, wanted.checksum, wanted.bytes)
            fetch(file, path, urls, partial(_told, shown), timeout_s)
    except UnreachableError as error:
        raise UnreachableError(
            f"{name}: cannot be fetched ({error}): where there is a network, get {wanted.urls[0]} "
            f"and put it at {path}"
        ) from None


def _check(name: str, wanted: PublicFile, path: Path) -> None:
    found = checksum_like(wanted.checksum, path)
    if found != wanted.checksum:
        raise FetchError(
            f"{name}: {path} has {found}, not {wanted.checksum}: remove it and fetch it again"
        )


def _told(shown: Progress, have: int, total: int | None) -> None:
    shown.show(f"{size(have)} of {size(total)}" if total else size(have), have, total)
