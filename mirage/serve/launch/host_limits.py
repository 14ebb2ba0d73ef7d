"""Limits of Linux on memory and addresses, compared with the needs of a configuration."""

from __future__ import annotations

import os
from typing import NamedTuple

from mirage.arguments.check import blamed
from mirage.config import Config, ConfigError
from mirage.units import GIB, size, sizes
from vmm.host_memory import address_bytes, host_memory, promised_bytes

ENGINE_ADDRESSES = 12 * GIB // 5
"""Bytes of addresses that an engine's libraries and threads take, beside those reserved for the
device; somewhat less than the smallest engine was seen to take.
"""


class HostParts(NamedTuple):
    """Bytes of host memory that a configuration takes, by use."""

    device: int
    """Memory of a device of kind host; else 0."""
    peers: int
    """Host memory that stands in for peers, if no GPU is named for them."""
    pool: int
    """Host pool, ``tiers.host.bytes``."""


def check_limits(config: Config) -> None:
    """Raise `ConfigError` if a limit of Linux is below the needs of the configuration.

    The limits are those of memory that Linux promises, and of a process's addresses. An engine
    reserves addresses for at least its share, on a GPU too.
    """
    _check_promised(config)
    share = max((tenant.share or 100.0 for tenant in config.tenants), default=0.0)
    needed = ENGINE_ADDRESSES + int(config.device.memory * share / 100)
    if (most := address_bytes()) is not None and most < needed:
        allowed, wanted = sizes(most, needed)
        raise ConfigError(
            f"a process may have {allowed} of addresses (ulimit -v), an engine takes {wanted}: "
            "raise it (ulimit -v unlimited, or LimitAS of the service)"
        )


def _check_promised(config: Config) -> None:
    """Raise `ConfigError` if device and tiers exceed the memory that Linux promises
    (CommitLimit).
    """
    taken = sum(host_parts(config))
    if (promised := promised_bytes()) is not None and promised < taken:
        wanted, there = sizes(taken, promised)
        raise ConfigError(
            f"device and tiers take {wanted} of host memory, Linux promises {there} "
            "more (CommitLimit in /proc/meminfo): lower them, or set vm.overcommit_memory to 0"
        )


def host_parts(config: Config) -> HostParts:
    """Host memory that the configuration takes, by use."""
    host, peer = config.host_tier, config.tiers.peer
    return HostParts(
        device=config.device.memory if config.device.kind == "host" else 0,
        peers=peer.bytes if host and peer and not peer.gpus else 0,
        pool=host.bytes if host else 0,
    )


def with_causes(error: str, oom_kills: int = 0) -> str:
    """Error over which a process ended, with circumstances that may have caused it: environment
    variables that the error quotes, and `oom_kills` processes that the kernel killed meanwhile or,
    if that is 0, a limit of addresses."""
    error += blamed(error, os.environ)
    if oom_kills:
        memory = host_memory()
        return (
            f"{error} (the kernel's OOM killer ended {oom_kills} processes meanwhile: "
            f"{memory.whose} {size(memory.bytes)})"
        )
    most = address_bytes()
    return error if most is None else f"{error} (ulimit -v allows {size(most)} of addresses)"
