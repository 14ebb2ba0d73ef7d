"""The memory hierarchy below the device, as `mirage serve` has it (`tiers` in a configuration)."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

from mirage.config import Config, ConfigError
from mirage.serve.registry import EngineState, Registry
from mirage.tiers.core import Core
from mirage.tiers.counts import PoolState
from mirage.tiers.policies import POLICIES
from mirage.tiers.server import PoolServer
from mirage.tiers.standing import Standings

logger = logging.getLogger("mirage.serve.tiers")


class Tiers:
    """Nothing at all where none is configured: then KV blocks live on the device alone."""

    def __init__(self, config: Config, socket: Path) -> None:
        self._priorities = {tenant.name: tenant.priority for tenant in config.tenants}
        self._standings = Standings()
        self._pool: PoolServer | None = None
        if (host := config.host_tier) is not None:
            core = Core(host.bytes, POLICIES[host.policy])
            self._pool = PoolServer(socket, core, self._priorities)

    def start(self) -> None:
        """Before any engine. Raises `ConfigError`."""
        if self._pool is None:
            return
        try:
            self._pool.start()
        except OSError as error:
            why = error.strerror or str(error)
            raise ConfigError(
                f"tiers.host: no host pool can be made ({why}): lower its bytes, or leave it out"
            ) from None

    async def stop(self) -> None:
        """After all engines; its memory is free then. Idempotent."""
        if self._pool is not None:
            await asyncio.to_thread(self._pool.stop)

    async def dead(self, tenant: str) -> None:
        """All processes of a tenant's engine have ended: nothing writes or reads for it now."""
        if self._pool is not None:
            await asyncio.wrap_future(self._pool.dead(tenant))

    def watch(self, registry: Registry) -> None:
        """Tell the pool what the tenants do."""
        if self._pool is None:
            return
        failed = [n for n, b in registry.backends.items() if b.state is EngineState.FAILED]
        changes = self._standings.changes(
            self._priorities, registry.reports, failed, time.monotonic()
        )
        for tenant, standing in changes.items():
            logger.info("class tenant=%s class=%s", tenant, standing.name.lower())
            self._pool.stand(tenant, standing)

    def state(self) -> PoolState | None:
        """Of the host pool; None without one."""
        return None if self._pool is None else self._pool.state()
