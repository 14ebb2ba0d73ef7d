"""Objects of a device that belong to single tenants, added and removed in one place."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from mirage.config import TenantSection
from mirage.serve.device.managed_engines import Share
from mirage.serve.engines.errors import EngineFailed
from mirage.serve.engines.manager import EngineManager
from mirage.serve.registry.registry import Registry, TenantServer
from mirage.serve.rundir.folders import RunDir


class DeviceTenants:
    """All tenants of a device by name, with their managers, shares and first starts."""

    def __init__(self, registry: Registry, rundir: RunDir) -> None:
        self._registry, self._rundir = registry, rundir
        self.sections: dict[str, TenantSection] = {}
        """Sections of all declared tenants, and of removed ones until they have ended."""
        self.managers: dict[str, EngineManager] = {}
        """Managers of all tenants but the refused ones."""
        self.shares: dict[str, Share] = {}
        self.starts: dict[str, asyncio.Event] = {}
        """Events that are set once a tenant's first start has succeeded or failed, or is not to
        come.
        """
        self.failures: dict[str, EngineFailed] = {}
        """Errors of first starts that failed."""
        self._has_failed = asyncio.Event()
        self.refused: dict[str, str] = {}
        """Reasons why tenants were refused."""

    def make(
        self,
        tenant: TenantSection,
        manager: EngineManager,
        share: Share,
        adapters: Mapping[str, str],
    ) -> None:
        """Add a tenant that is served."""
        name = tenant.name
        manager.backend.adapters = adapters
        manager.backend.declares(tenant)
        self.refused.pop(name, None)
        self.sections[name], self.managers[name], self.shares[name] = tenant, manager, share
        self.starts[name] = asyncio.Event()
        self._registry.backends[name] = manager.backend

    def refuse(self, tenant: TenantSection, why: str, adapters: Mapping[str, str]) -> None:
        """Add a tenant that is refused, so that its state can be shown."""
        socket = self._rundir.engine_socket(tenant.name)
        backend = TenantServer(tenant.name, socket, tenant.max_model_len, adapters=adapters)
        backend.declares(tenant)
        backend.fail(why)
        self.sections[tenant.name], self.refused[tenant.name] = tenant, why
        self._registry.backends[tenant.name] = backend

    # -- first starts -------------------------------------------------------------------

    def has_started(self, name: str, serves: bool) -> None:
        """Note that a start has succeeded (`serves`) or failed. Only the tenant's first start
        counts; one that will be repeated (`begins_again`) has not failed."""
        manager = self.managers[name]
        if not self.starts[name].is_set() and (serves or not manager.begins_again):
            if not serves and not manager.stopping:
                self.failures[name] = manager.failure
                self._has_failed.set()
            self.starts[name].set()

    async def started(self) -> None:
        """Return when each tenant's first start has succeeded or failed, or is not to come."""
        for event in list(self.starts.values()):
            await event.wait()

    async def all_start(self) -> None:
        """Raise `EngineFailed` as soon as a first start fails. Never returns."""
        while not self.failures:
            self._has_failed.clear()
            await self._has_failed.wait()
        raise next(iter(self.failures.values()))

    # -- ending -------------------------------------------------------------------------

    def unmake(self, name: str) -> None:
        """Remove a tenant whose engine has ended."""
        if name in self.starts:
            self.starts.pop(name).set()
            del self.managers[name], self.shares[name]
        self.failures.pop(name, None)
        self.refused.pop(name, None)
        self._registry.forget(name)
        del self.sections[name]
        self._rundir.forget(name)
