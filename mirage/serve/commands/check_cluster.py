"""File for `mirage serve --cluster`, as `mirage check` examines it: its keys, without a cluster."""

from __future__ import annotations

from collections.abc import Iterator

from mirage.config import ConfigError
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.logs.logs import LogFormat
from mirage.serve.machine.cluster import (
    LEASE_S,
    ClusterOptions,
    ServedCluster,
    served_cluster,
)

OPTIONS = ClusterOptions((), "", 0, LogFormat.TEXT, LEASE_S, ())
"""Stand-in for the options of `mirage serve --cluster`, since a check starts no process."""
THERE = (
    "keys and names of devices are right; models were not read: mirage serve --cluster has each "
    "machine check its own"
)


def checked_cluster(source: ConfigSource, written: Written) -> ServedCluster:
    """Cluster that a file describes; neither its models nor other files are read.

    Raises `ConfigError` for wrong keys or names, and if ``--memory`` is given.
    """
    if source.memory is not None:
        raise ConfigError("--memory cannot be used with a cluster: write memory in each of devices")
    plan = served_cluster(source, written, OPTIONS)
    for device in plan.machine_of:
        source.declared(plan.written(device, _named(plan, device)))
    return plan


def told_cluster(plan: ServedCluster) -> Iterator[str]:
    """Lines about a checked file: the tenants of each device."""
    for device, machine in plan.machine_of.items():
        yield f"{device} on {machine}: {', '.join(_named(plan, device)) or 'no tenant names it'}"
    if free := [name for name, devices in plan.file.named.items() if not devices]:
        yield f"placed at the start: {', '.join(free)}"
    yield THERE


def names_of(plan: ServedCluster) -> list[str]:
    """Names that requests may use, as far as the file has them: of tenants, aliases, adapters."""
    config = plan.common
    return [*config.names, *(name for tenant in config.tenants for name in tenant.adapters)]


def _named(plan: ServedCluster, device: str) -> list[str]:
    return [name for name, devices in plan.file.named.items() if device in devices]
