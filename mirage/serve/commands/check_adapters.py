"""Lines of `mirage check` about the adapters of tenants. Pure."""

from __future__ import annotations

from collections.abc import Collection

from mirage.config import Config
from mirage.serve.adapting.adapters import takes_adapters


def adapter_lines(config: Config, served: Collection[str]) -> list[str]:
    """A line for each tenant in `served` whose engine can load adapters while it runs.

    Empty unless the configuration has `adapter_folders`.
    """
    if not config.adapter_folders:
        return []
    some = [one for one in config.tenants if one.name in served and takes_adapters(one)]
    where = ", ".join(map(str, config.adapter_folders))
    return [
        f"{one.name}: its engine loads {_named(one.adapters)}; others may come while it runs, "
        f"from {where}"
        for one in some
    ]


def _named(names: Collection[str]) -> str:
    kind = "adapter" if len(names) == 1 else "adapters"
    return f"{kind} {', '.join(names)} when it has started" if names else "no adapter"
