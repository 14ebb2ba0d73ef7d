"""LoRA adapters of tenants, in two places of the configuration.

Adapters in ``engine_args.lora_modules`` are loaded when the engine starts. vLLM takes ``name=path``
or a JSON object with name and path; in YAML the object may be written as such. A path is relative
to the configuration's folder, as a model's is. Adapters in ``adapters`` are loaded while the engine
runs (`mirage.serve.adapting`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mirage.config import Config, ConfigError, TenantSection, resolved
from mirage.errors import InputRefused
from mirage.folder.adapter import read_adapter
from mirage.paths import expanded
from mirage.serve.adapting.allowed import check_allowed

MODULES, ENABLE, RANK = "lora_modules", "enable_lora", "max_lora_rank"
VLLMS_RANK = 16
"""Largest rank of adapters that vLLM takes if ``max_lora_rank`` is not given."""
RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""Values that vLLM takes for ``max_lora_rank``."""


def adapters_of(engine_args: Mapping[str, Any]) -> dict[str, str]:
    """Folder of each adapter in ``lora_modules``, which an engine loads at its start, by name.

    Raises `ValueError` for an entry without a name or path, and for a name that comes twice.
    """
    adapters: dict[str, str] = {}
    for module in _modules(engine_args):
        if module["name"] in adapters:
            raise ValueError(f"lora_modules names {module['name']!r} twice: names must differ")
        adapters[module["name"]] = module["path"]
    return adapters


def beside(config: Config, folder: Path) -> Config:
    """Configuration in which the paths in ``lora_modules`` are absolute; relative ones count from
    `folder`.

    Raises `ConfigError` for an entry without a name or path, and for an unknown variable or home in
    a path.
    """
    return config.model_copy(update={"tenants": [_beside(t, folder) for t in config.tenants]})


def check(config: Config) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    """Check the adapters of all tenants.

    Returns the adapters that each tenant's engine loads at its start, and the reason for each
    tenant that is refused, both by the tenant's name. A tenant is refused if its adapters lack
    ``enable_lora``, if the name of one is taken or comes twice, or if vLLM could not load one. One
    in `adapters` has to lie in ``adapter_folders`` as well.
    """
    owners = dict(config.names)
    found: dict[str, dict[str, str]] = {}
    refused: dict[str, str] = {}
    for tenant in config.tenants:
        try:
            found[tenant.name] = _checked(tenant, owners, config.adapter_folders)
        except ValueError as error:
            refused[tenant.name] = str(error)
            continue
        names = (*found[tenant.name], *tenant.adapters)
        owners |= dict.fromkeys(names, f"an adapter of tenant {tenant.name!r}")
    return found, refused


def takes_adapters(tenant: TenantSection) -> bool:
    """True if the tenant's engine can load adapters."""
    return any(_given(tenant.engine_args, ENABLE))


def with_declared(tenant: TenantSection) -> TenantSection:
    """The tenant as if its engine loaded all its adapters at its start, so that vLLM checks them
    all.
    """
    if not tenant.adapters:
        return tenant
    declared = [{"name": name, "path": str(path)} for name, path in tenant.adapters.items()]
    modules = [*_modules(tenant.engine_args), *declared]
    kept = {each: value for each, value in tenant.engine_args.items() if _named(each) != MODULES}
    engine_args = kept | {MODULES: [json.dumps(module) for module in modules]}
    return tenant.model_copy(update={"engine_args": engine_args})


def _checked(
    tenant: TenantSection, owners: Mapping[str, str], allowed: Sequence[Path]
) -> dict[str, str]:
    """Folders of the adapters that the tenant's engine loads at its start, by name, after a check
    of all adapters of the tenant.

    `owners` maps each name that is taken to words about its owner; `allowed` are the folders in
    which adapters in `adapters` have to lie. Raises `ValueError` with the reason to refuse the
    tenant.
    """
    at_start = adapters_of(tenant.engine_args)
    if (at_start or tenant.adapters) and not takes_adapters(tenant):
        key = MODULES if at_start else "adapters"
        raise ValueError(f"{key} needs enable_lora: set engine_args.enable_lora true")
    if twice := at_start.keys() & tenant.adapters.keys():
        raise ValueError(f"adapter {min(twice)!r} is in adapters and lora_modules: name it once")
    every = {name: Path(path) for name, path in at_start.items()} | tenant.adapters
    for name, folder in every.items():
        if name in owners:
            raise ValueError(f"adapter {name!r} has the name of {owners[name]}: rename it")
        if problem := _problem(folder, tenant.engine_args):
            raise ValueError(f"adapter {name!r}: {problem}")
    for name, folder in tenant.adapters.items():
        try:
            check_allowed(folder, allowed)
        except ValueError as error:
            raise ValueError(f"adapter {name!r}: {error}") from None
    return at_start


def _problem(folder: Path, engine_args: Mapping[str, Any]) -> str | None:
    """Reason why vLLM could not load the adapter in `folder`; None if none is known."""
    try:
        rank = read_adapter(folder).rank
    except ConfigError as error:
        return str(error)
    given = [value for value in _given(engine_args, RANK) if value is not None]
    most = str(given[-1] if given else VLLMS_RANK)
    if not most.isdecimal() or rank <= int(most):  # what is no number vLLM refuses
        return None
    if (enough := next((each for each in RANKS if each >= rank), None)) is None:
        return f"its rank is {rank}, and vLLM takes {RANKS[-1]} at most"
    return f"its rank is {rank}: set engine_args.max_lora_rank to {enough}"


def _beside(tenant: TenantSection, folder: Path) -> TenantSection:
    arguments = dict(tenant.engine_args)
    try:
        modules = _modules(arguments)
    except ValueError as error:
        raise _error(tenant, str(error)) from None
    if not modules:
        return tenant
    arguments = {each: value for each, value in arguments.items() if _named(each) != MODULES}
    try:
        paths = [resolved(folder, expanded(module["path"])) for module in modules]
    except InputRefused as error:
        raise _error(tenant, f"lora_modules: {error}") from None
    absolute = [m | {"path": str(path)} for m, path in zip(modules, paths, strict=True)]
    arguments[MODULES] = [json.dumps(module) for module in absolute]
    return tenant.model_copy(update={"engine_args": arguments})


def _error(tenant: TenantSection, message: str) -> ConfigError:
    return ConfigError(f"tenant {tenant.name!r}: {message}")


def _named(written: str) -> str:
    """vLLM's name of an argument that may be written with hyphens, as on a command line."""
    return str(written).lstrip("-").replace("-", "_")


def _given(engine_args: Mapping[str, Any], name: str) -> list[Any]:
    return [value for written, value in engine_args.items() if _named(written) == name]


def _modules(engine_args: Mapping[str, Any]) -> list[dict[str, Any]]:
    written = _given(engine_args, MODULES)
    items = [item for value in written for item in (value if isinstance(value, list) else [value])]
    return [_module(item) for item in items if item not in (None, "")]


def _module(item: Any) -> dict[str, Any]:
    """Adapter as the object that vLLM's JSON has. Raises `ValueError` for other values.

    Text with a comma is not read as ``name=path``; vLLM does the same.
    """
    module = item
    if isinstance(item, str) and "=" in item and "," not in item:
        name, _, path = item.partition("=")
        module = {"name": name, "path": path}
    elif isinstance(item, str):
        with suppress(ValueError):
            module = json.loads(item)
    if isinstance(module, dict) and all(_is_text(module.get(key)) for key in ("name", "path")):
        return module
    raise ValueError(f"lora_modules has {item!r}: write name=path, or an object with name and path")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)
