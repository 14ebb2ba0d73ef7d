"""``mirage fetch``: fetches hub models into the cache, where servers find them."""

from __future__ import annotations

from pathlib import Path

import typer

from mirage.config import read_yaml
from mirage.hub_name import HubName
from mirage.options import ServedWords, TrustOption
from mirage.processes.interrupt import terminate_like_interrupt
from mirage.serve.hubs import fetch_model, trusts_code
from mirage.serve.machine.declared import tenants_in
from mirage.serve.proposal.words import is_config, named
from mirage.serve.said import say


def fetch_command(words: ServedWords, trust: TrustOption = None) -> None:
    """Fetch models of a hub into its cache: those that CONFIG names, or MODELs by their names.

    A folder is printed for each. What was interrupted goes on where it ended.
    """
    with terminate_like_interrupt():
        for name, code in _wanted(words, trust or []):
            typer.echo(fetch_model(name, say, code=code))


def _wanted(words: list[str], trusted: list[str]) -> list[tuple[HubName, bool]]:
    """Hub models to fetch, each with true if its own code is trusted. Raises `InputRefused`."""
    if len(words) == 1 and is_config(words[0], folder=False, file=Path(words[0]).is_file()):
        path = Path(words[0])
        tenants = tenants_in(read_yaml(path), path)
        return [(tenant.hub, trusts_code(tenant)) for tenant in tenants if tenant.hub is not None]
    models = named(words, [None for _ in words], trusted)
    return [(one.hub, one.code) for one in models if one.hub is not None]
