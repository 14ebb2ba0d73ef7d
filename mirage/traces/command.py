"""``mirage traces``: what public traces there are, and getting them."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from mirage.processes.interrupt import terminate_like_interrupt
from mirage.traces import table
from mirage.traces.download import FetchError, UnreachableError, checksum, fetch
from mirage.traces.progress import counting
from mirage.workload import public
from mirage.workload.formats.request import TraceError
from mirage.workload.public import TRACES, Public

INTERRUPTED, FAILED, REFUSED = 130, 1, 2
"""Exit codes: Ctrl-C, a file that could not be had, a name or address that is none."""


class Action(StrEnum):
    """What to do."""

    LIST = "list"
    FETCH = "fetch"


def traces_command(
    action: Annotated[Action, typer.Argument(help="Say what there is, or get it.")],
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]…", help="As `mirage traces list` has them."),
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
        float, typer.Option(min=0.1, help="Seconds to wait for a server that says nothing.")
    ] = 60.0,
) -> None:
    """List public traces, or fetch some so that --trace NAME finds them.

    With names, `list` tells of each where it comes from, its checksum and its licence. What is
    there already is checked again.
    """
    try:
        folder = cache or public.folder()
        chosen = {name: public.named(name) for name in dict.fromkeys(names or ())}
        if action is Action.LIST:
            _list(chosen, folder)
            return
        if not chosen:
            raise TraceError("fetch needs a name: `mirage traces list` has them")
        if mirror is not None and not mirror.startswith(("http://", "https://")):
            raise TraceError(f"mirror {mirror!r}: write an address as https://HOST/FOLDER")
        with terminate_like_interrupt():
            for name, wanted in chosen.items():
                _fetch(name, wanted, folder / wanted.file, mirror, timeout)
    except TraceError as error:
        raise _exit(f"error: {error}", REFUSED) from None
    except FetchError as error:
        raise _exit(f"error: {error}", FAILED) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        raise _exit(f"error: {where}{error.strerror or error}", FAILED) from None
    except KeyboardInterrupt:
        raise _exit(
            "interrupted; what has come is kept, and fetching goes on there", INTERRUPTED
        ) from None


def _list(chosen: dict[str, Public], folder: Path) -> None:
    console = Console()
    if chosen:
        table.show_each(chosen, folder, console)
    else:
        table.show_all(TRACES, folder, console)


def _fetch(name: str, wanted: Public, path: Path, mirror: str | None, timeout_s: float) -> None:
    if path.exists():
        _check(name, wanted, path)
        return
    urls = [f"{mirror.rstrip('/')}/{wanted.file}"] if mirror else wanted.urls
    typer.echo(f"{name}: {wanted.about}. Licence: {wanted.licence}. Cite {wanted.cite}.", err=True)
    try:
        with counting(name) as progress:
            fetch(wanted, path, urls, progress, timeout_s)
    except UnreachableError as error:
        raise UnreachableError(
            f"{name}: cannot be fetched ({error}): where there is a network, get {wanted.urls[0]} "
            f"and put it at {path}"
        ) from None
    typer.echo(path)


def _check(name: str, wanted: Public, path: Path) -> None:
    found = checksum(wanted, path)
    if found != wanted.checksum:
        raise FetchError(
            f"{name}: {path} has {found}, not {wanted.checksum}: remove it and fetch it again"
        )
    typer.echo(path)


def _exit(message: str, code: int) -> typer.Exit:
    typer.echo(f"mirage: {message}", err=True)
    return typer.Exit(code)
