"""``mirage weights``: models in this machine's store, brought from other machines and sent to
them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from mirage.config import parse_bytes
from mirage.errors import InputRefused
from mirage.hub.shown import bar
from mirage.printed import json_object
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.serve.logs.progress import say
from mirage.serve.models.stored import secret_of_weights
from mirage.units import size
from mirage.weights.adding import add, looked_at
from mirage.weights.changes import StoreChanges
from mirage.weights.checking import verify
from mirage.weights.place import store_at
from mirage.weights.problems import PATIENCE_S, WeightsFailed, WeightsRefused, writing
from mirage.weights.store import WeightStore, check_name

HEADINGS = ("NAME", "ID", "SIZE", "HERE")
SCHEMA_VERSION = 1
SHORT = 12
"""Digits of an id that a list shows."""


class WeightsVerb(StrEnum):
    """Act of `mirage weights`."""

    LIST = "list"
    ADD = "add"
    REMOVE = "remove"
    VERIFY = "verify"
    PULL = "pull"
    SERVE = "serve"


NEEDS = {
    WeightsVerb.ADD: "a FOLDER",
    WeightsVerb.REMOVE: "a MODEL",
    WeightsVerb.PULL: "a MODEL",
}


def weights_command(
    verb: Annotated[WeightsVerb, typer.Argument(help="What to do.")],
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[FOLDER|MODEL]",
            help="With add: a model's folder. Else: a name in the store, or the start of an id.",
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Folder of the store.",
            show_default="mirage/weights in the user's cache",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(help="With add: the model's name.", show_default="the folder's"),
    ] = None,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from", metavar="URL", help="With pull: address of a machine that may have the model."
        ),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="With pull and serve: the secret of servers of weights, mode 0600.",
            show_default="derived from the secret of this machine's node",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="With serve: loopback or private address to listen on.")
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="With serve: port; 0 takes a free one.")
    ] = 8400,
    patience: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="With pull: end after this time without an answer or data from any source.",
        ),
    ] = PATIENCE_S,
    rate: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="With serve: upper limit in bytes a second, as 500MiB.",
            show_default="none",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="With list: print one JSON object instead.")
    ] = False,
) -> None:
    """List, add, remove and verify models of the store, pull one from other machines, serve them.

    A model is served as `model: weights:NAME`, or by its id. What was interrupted goes on where it
    ended.
    """
    if what is None and verb in NEEDS:
        raise InputRefused(f"weights {verb} needs {NEEDS[verb]}")
    if as_json and verb is not WeightsVerb.LIST:
        raise InputRefused(f"--json works only with list: leave it out with {verb}")
    here = store_at(store)
    with terminate_like_interrupt():
        match verb:
            case WeightsVerb.LIST:
                typer.echo(_object(here) if as_json else _table(here))
            case WeightsVerb.ADD:
                typer.echo(_add(here, Path(str(what)), name))
            case WeightsVerb.REMOVE:
                typer.echo(_remove(here, str(what)))
            case WeightsVerb.VERIFY:
                _verify(here, what)
            case WeightsVerb.PULL:
                told = secret_of_weights(secret)
                from mirage.weights.bringing import bring

                coming = bring(
                    here, str(what), sources or [], told, say, patience_s=patience, newest=True
                )
                typer.echo(asyncio.run(coming))
            case WeightsVerb.SERVE:
                _serve(here, secret, host, port, rate)


def _object(store: WeightStore) -> str:
    models = [
        {
            "names": one.names,
            "id": one.id,
            "bytes": one.bytes,
            "bytes_here": one.here,
            "whole": one.whole,
        }
        for one in store.models()
    ]
    return json_object(SCHEMA_VERSION, {"store": store.place, "models": models})


def _table(store: WeightStore) -> str:
    rows = [
        (
            ", ".join(one.names) or "-",
            one.id[:SHORT],
            size(one.bytes),
            "whole" if one.whole else size(one.here),
        )
        for one in store.models()
    ]
    widths = [max(map(len, column)) for column in zip(HEADINGS, *rows, strict=True)]
    lines = (
        (cell.ljust(w) for cell, w in zip(row, widths, strict=True)) for row in (HEADINGS, *rows)
    )
    return "\n".join("  ".join(line).rstrip() for line in lines)


def _add(store: WeightStore, folder: Path, name: str | None) -> str:
    found, named = looked_at(folder), name or folder.absolute().name
    check_name(named)
    with _changes(store, str(folder)) as changes, bar(named, found.bytes) as show:
        manifest = add(changes, found, named, show)
    return f"{named}: {manifest.id}, {size(manifest.bytes)} in {store.place}"


def _remove(store: WeightStore, wanted: str) -> str:
    model = _found(store, wanted)
    with _changes(store, wanted) as changes:
        return f"{wanted}: removed, {size(changes.remove(model))} are free again"


def _verify(store: WeightStore, wanted: str | None) -> None:
    """Compare the files of the store's whole models with their hashes: all models, or the one that
    is `wanted`. Raises `WeightsFailed` if a file is wrong, or if `wanted` is not whole.
    """
    models = store.ids() if wanted is None else [_found(store, wanted)]
    wrong = []
    with _changes(store, wanted or "verify") as changes:
        for model in models:
            if not store.is_whole(model):
                typer.echo(f"{model[:SHORT]}: not whole: pull or add it again")
                continue
            manifest = store.manifest(model)
            with bar(model[:SHORT], manifest.bytes) as show:
                told = verify(changes, manifest, show)
            for line in told or ["all of it is right"]:
                typer.echo(f"{model[:SHORT]}: {line}")
            wrong += told
    if wrong:
        raise WeightsFailed(f"{len(wrong)} files are wrong: pull or add their models again")
    if wanted is not None and not store.is_whole(models[0]):
        raise WeightsFailed(f"{wanted}: only a part of it is in {store.place}")


def _serve(store: WeightStore, secret: Path | None, host: str, port: int, rate: str | None) -> None:
    if (told := secret_of_weights(secret)) is None:
        raise InputRefused(
            "weights serve needs --secret FILE, or a machine that has joined a cluster (mirage "
            "node): whoever knows the secret may have weights"
        )
    try:
        most = None if rate is None else float(parse_bytes(rate))
    except ValueError as error:
        raise InputRefused(f"--rate: {error}") from None
    if most is not None and most <= 0:
        raise InputRefused(f"--rate {rate}: write more than nothing")
    from mirage.weights.running import serve_weights

    StoreChanges(store)
    listening: Callable[[str], None] = lambda url: typer.echo(f"weights of {store.place}: {url}")  # noqa: E731
    asyncio.run(serve_weights(store, told, host, port, most, listening))


def _found(store: WeightStore, wanted: str) -> str:
    if (model := store.found(wanted)) is None:
        raise WeightsRefused(f"{store.place} has no model {wanted!r}: mirage weights list has them")
    return model


@contextmanager
def _changes(store: WeightStore, what: str) -> Iterator[StoreChanges]:
    with writing(store.place, what):
        yield StoreChanges(store)
