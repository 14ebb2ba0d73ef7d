"""``mirage fetch``: fetches hub models into the cache, where servers find them."""

from __future__ import annotations

from pathlib import Path

import typer

from mirage.config import read_yaml
from mirage.errors import InputRefused
from mirage.hub_name import HubName
from mirage.options import ServedWords, TrustOption
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.serve.logs.progress import say
from mirage.serve.machine.declared import tenants_in
from mirage.serve.models.hubs import fetch_model, trusts_code
from mirage.serve.proposal.words import TRUST, is_config, named


def fetch_command(words: ServedWords, trust: TrustOption = None) -> None:
    """Fetch models of a hub into its cache: those that CONFIG names, or MODELs by their names.

    A folder is printed for each. What was interrupted goes on where it ended.
    """
    with terminate_like_interrupt():
        for name, code in _wanted(words, trust or []):
            typer.echo(fetch_model(name, say, code=code))


def _wanted(words: list[str], trusted: list[str]) -> list[tuple[HubName, bool]]:
    """Hub models to fetch, each with True if its own code may run; a CONFIG says so itself.

    Raises `InputRefused` for an invalid CONFIG, and for one beside `trusted` models. With models as
    `words`, raises it for a word that names no hub model, for two models of one name, and for a
    model in `trusted` that is not among `words` or has no commit.
    """
    if len(words) == 1 and is_config(words[0], folder=False, file=Path(words[0]).is_file()):
        if trusted:
            raise InputRefused(
                f"{TRUST} works only with models, and {words[0]} is a file: leave it out"
            )
        path = Path(words[0])
        tenants = tenants_in(read_yaml(path), path)
        return [(tenant.hub, trusts_code(tenant)) for tenant in tenants if tenant.hub is not None]
    models = named(words, [None for _ in words], trusted)
    return [(one.hub, one.code) for one in models if one.hub is not None]
