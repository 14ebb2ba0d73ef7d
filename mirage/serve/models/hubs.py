"""Folders of the models that a configuration names, from a hub or from the store of weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mirage.arguments.check import ArgumentRefused, normalised
from mirage.config import Config, TenantSection
from mirage.folder import reading
from mirage.folder.model_config import NAME, ModelConfig
from mirage.hub import fetched, outline
from mirage.hub.fetched import HubModel, Say
from mirage.hub.listing import HubUnreachable
from mirage.hub.place import HubRefused, this_hub
from mirage.hub_name import HubName
from mirage.serve.models.stored import brought, in_store
from mirage.units import size

CODE = "trust_remote_code"
NO_FOLDERS: Mapping[str, Path] = {}


class HubFolders:
    """Folders of models of a hub or of the store of weights, by the models' names as the
    configuration has them.

    A `known` model keeps its folder: a branch stands for one commit as long as a server runs.
    """

    def __init__(self, known: Mapping[str, Path] = NO_FOLDERS) -> None:
        self.known = dict(known)

    def fetch(self, config: Config, say: Say) -> None:
        """Fetch the models of `config` that are not known, before anything is started.

        Raises `HubRefused` and `WeightsRefused` for errors that the user can correct, else
        `CommandFailed`.
        """
        for tenant in self._unknown(config):
            code = trusts_code(tenant)
            if tenant.hub is not None:
                folder = fetch_model(tenant.hub, say, code=code)
            else:
                folder = brought(config.weights, tenant, say, code=code)
            self.known[str(tenant.model)] = folder

    def placed(self, config: Config) -> Config:
        """`config` with folders in place of names; unknown models are looked up in cache and store.

        Raises `HubRefused` or `WeightsRefused` for a model that was not fetched.
        """
        for tenant in self._unknown(config):
            if tenant.hub is not None:
                why = f"here nothing is fetched (mirage fetch {tenant.model} does)"
                folder = fetched.in_cache(tenant.hub, this_hub(), why)
            else:
                folder = in_store(config.weights, tenant, code=trusts_code(tenant))
            self.known[str(tenant.model)] = folder
        return with_folders(config, self.known)

    def _unknown(self, config: Config) -> Iterator[TenantSection]:
        for tenant in config.tenants:
            if _is_named(tenant) and str(tenant.model) not in self.known:
                yield tenant


def fetch_model(name: HubName, say: Say, *, code: bool) -> Path:
    """Folder of a hub model, which is fetched if the cache lacks it; `code` is true to fetch the
    model's own Python code as well. Raises `HubRefused` for reasons that the user can remove, else
    `CommandFailed`."""
    folder = fetched.folder(name, this_hub(), say, code=code)
    _check_code(name, folder, code=code)
    return folder


def with_folders(config: Config, known: Mapping[str, Path]) -> Config:
    """`config` with `known` folders in place of names. Raises `HubRefused` for a hub model whose
    own code may run, if the configuration does not name its commit or the code is of another
    repository.
    """
    tenants = [_with_folder(tenant, known) for tenant in config.tenants]
    return config.model_copy(update={"tenants": tenants})


def _with_folder(tenant: TenantSection, known: Mapping[str, Path]) -> TenantSection:
    if not _is_named(tenant):
        return tenant
    folder = known[str(tenant.model)]
    if tenant.hub is not None:
        _check_code(tenant.hub, folder, code=trusts_code(tenant))
    return tenant.model_copy(update={"model": folder})


def _is_named(tenant: TenantSection) -> bool:
    return tenant.hub is not None or tenant.stored is not None


@contextmanager
def outlined(config: Config, told: Callable[[str], None]) -> Iterator[Config]:
    """Context with `config` in which hub models are folders that describe their weights without
    containing them, and models of the store are their folders there.

    No weights are fetched; `told` gets a line for each hub model. Raises `HubRefused` and
    `WeightsRefused` for errors that the user can correct, else `CommandFailed`.
    """
    with TemporaryDirectory(prefix="mirage-hub-") as place:
        known: dict[str, Path] = {}
        for tenant in config.tenants:
            if not _is_named(tenant) or str(tenant.model) in known:
                continue
            if tenant.hub is None:
                code = trusts_code(tenant)
                known[str(tenant.model)] = in_store(config.weights, tenant, code=code)
                continue
            known[str(tenant.model)], line = _outline(tenant.hub, tenant, Path(place))
            told(line)
        yield with_folders(config, known)


def _outline(name: HubName, tenant: TenantSection, place: Path) -> tuple[Path, str]:
    """Folder that describes a hub model, and a line about the files to fetch."""
    hub, code = this_hub(), trusts_code(tenant)
    try:
        model = fetched.found(name, hub, code=code)
    except HubUnreachable as error:
        cached = fetched.in_cache(name, hub, str(error))
        return cached, f"{name}: commit {cached.name} is in the cache; {error}"
    return outline.outline(model, place), _words(model)


def _words(model: HubModel) -> str:
    cache, begin = model.commit.hub.cache, f"{model.commit.name}: commit {model.commit.id}"
    if not model.missing:
        return f"{begin} is in the cache ({cache})"
    files = f"{len(model.missing)} of {len(model.weights)} files of weights"
    return f"{begin}, {size(model.bytes)} to fetch ({files}) into {cache}"


def trusts_code(tenant: TenantSection) -> bool:
    """True if the tenant's arguments let the model's own code run. Raises `HubRefused` if they do
    and a hub model is named without its commit."""
    try:
        wanted = normalised(tenant.engine_args).get(CODE) not in (None, False)
    except ArgumentRefused:  # said where arguments are checked
        return False
    if wanted and tenant.hub is not None and not tenant.hub.pinned:
        raise HubRefused(
            f"tenant {tenant.name!r}: {CODE} runs code of {tenant.hub.repository}, and what "
            f"{tenant.hub.revision!r} names may change: name the commit whose code you have read, "
            f"as {tenant.hub.repository}@ and its 40 digits"
        )
    return wanted


def _check_code(name: HubName, folder: Path, *, code: bool) -> None:
    """Raise `HubRefused` if the model's code would come from another repository."""
    if not code:
        return
    said = reading.read(folder / NAME, ModelConfig).auto_map or {}
    values = [one for value in said.values() for one in _texts(value)]
    if other := next((value for value in values if "--" in value), None):
        raise HubRefused(
            f"{name}: its code is of another repository ({other.split('--')[0]}), whose commit "
            "nobody names: leave trust_remote_code out"
        )


def _texts(value: object) -> list[str]:
    return [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, str)]


def from_cache(config: Config) -> Config:
    """`config` with folders in place of names, for commands that only read models.

    Raises `HubRefused` or `WeightsRefused` for a model that is not in the cache or the store.
    """
    return HubFolders().placed(config)
