"""Folders of the models that a configuration names in the store of weights."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from mirage.config import TenantSection, WeightsSection
from mirage.hub.fetched import Say
from mirage.machines.ray.node import NodeFolder, derived
from mirage.weights.place import store_at
from mirage.weights.problems import WeightsRefused
from mirage.weights.secret import read_secret
from mirage.weights.store import ID


async def bring_model(
    section: WeightsSection,
    model: str,
    say: Say,
    progress: Callable[[int, int], None] = lambda here, missing: None,
) -> Path:
    """Folder of a model by name or id, which is brought from the sources of `section` if it is not
    whole.

    Several processes of a machine may call this at the same time, and again after a failure: data
    that has come is kept. `progress` is called with the bytes that have come, and with all that
    were missing. Raises `WeightsRefused` for errors that the user can correct, else
    `WeightsFailed`.
    """
    store = store_at(section.store)
    secret = _secret(section)
    from mirage.weights.bringing import bring

    return await bring(store, model, section.sources, secret, say, progress)


def secret_of_weights(file: Path | None) -> str | None:
    """The secret that servers of weights ask for: that in `file`, or one derived from the secret of
    this machine's node, if it has joined a cluster.

    None if there is neither. Raises `WeightsRefused` or `InputRefused` if the secret that there is
    cannot be read.
    """
    if file is not None:
        return read_secret(file)
    node = NodeFolder()
    return derived(node.secret(), "weights") if node.secret_file.exists() else None


def _secret(section: WeightsSection) -> str | None:
    """Secret that servers of weights ask for, None if it is not needed. Raises `WeightsRefused` if
    `section` has sources, and there is no secret.
    """
    secret = secret_of_weights(section.secret)
    if section.sources and secret is None:
        raise WeightsRefused(
            "weights: sources need secret: name the file with it, or join a cluster (mirage node)"
        )
    return secret


def brought(section: WeightsSection, tenant: TenantSection, say: Say, *, code: bool) -> Path:
    """Folder of a tenant's model in the store, brought there if need be, for a server that starts.
    `code`: the model's own Python code will run.

    Raises `WeightsRefused` for errors that the user can correct, else `WeightsFailed`.
    """
    check_code(tenant, code=code)
    return asyncio.run(bring_model(section, str(tenant.stored), say))


def in_store(section: WeightsSection, tenant: TenantSection, *, code: bool) -> Path:
    """Folder of a tenant's model in the store. `code`: the model's own Python code will run. Raises
    `WeightsRefused` unless the model is whole there."""
    check_code(tenant, code=code)
    _secret(section)
    store, wanted = store_at(section.store), str(tenant.stored)
    model = store.found(wanted)
    if model is None or not store.is_whole(model):
        raise WeightsRefused(
            f"tenant {tenant.name!r}: {wanted} is not whole in the store ({store.place}), and here "
            f"nothing is brought: mirage weights pull or add does, `mirage serve` too"
        )
    return store.folder(model)


def is_here(section: WeightsSection, model: str) -> bool:
    """True if the model is whole in the store; false also if the name is ambiguous."""
    store = store_at(section.store)
    try:
        found = store.found(model)
    except WeightsRefused:  # two models begin so: which is meant is said when it is brought
        return False
    return found is not None and store.is_whole(found)


def check_code(tenant: TenantSection, *, code: bool) -> None:
    """Raise `WeightsRefused` if the model's own code would run (`code`), and the tenant names the
    model otherwise than by its id.
    """
    if code and not ID.fullmatch(str(tenant.stored)):
        raise WeightsRefused(
            f"tenant {tenant.name!r}: trust_remote_code runs code of {tenant.stored!r}, and what a "
            "name means may change: write weights: and the 64 digits of the id"
        )
