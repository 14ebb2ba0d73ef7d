"""Tenants as operators see them, put together from the parts of a server."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from math import isfinite
from pathlib import Path

from mirage.config import Config, Policy, TenantSection
from mirage.control.roster.member import RosterMember
from mirage.control.roster.states import LifeState, WeightsPlace
from mirage.serve.admin.forms import (
    FORM_VERSION,
    AdapterStatus,
    DeclaredTenant,
    DeviceStatus,
    OperatorAct,
    StateChange,
    TenantStatus,
    TenantsTold,
)
from mirage.serve.admin.journal import SeenState, StateJournal
from mirage.serve.registry.registry import Registry
from mirage.serve.roster.attendance import Attendance

MOST_RECENT = 50
"""Number of changes of states that are kept, the newest."""


class TenantsView:
    """View of all tenants of one device."""

    def __init__(
        self,
        config: Config,
        sections: Mapping[str, TenantSection],
        registry: Registry,
        attendance: Attendance,
        log: Callable[[str], Path],
        device: str = "",
        clock: Callable[[], float] = time.time,
        routers: Callable[[], list[str]] = list,
        own_router: Callable[[], bool] = lambda: True,
    ) -> None:
        """`sections` are the declared tenants, a mapping that may change.

        `log` returns the path of a tenant's log. `device` is a name for the device, empty for its
        kind and index, as in ``cuda:0``. `routers` returns the machines whose routers are connected
        to the device, and `own_router` True if its own router is.
        """
        self._config, self._registry, self._attendance = config, registry, attendance
        self.sections = sections
        self._log, self._clock, self._routers = log, clock, routers
        self._own_router = own_router
        self._journal = StateJournal(self.seen(), clock())
        self.recent: deque[StateChange] = deque(maxlen=MOST_RECENT)
        """Last changes of states, the newest last."""
        for backend in registry.backends.values():
            backend.passed.clear()
        self.device = device or f"{config.device.kind}:{config.device.index}"

    def seen(self) -> dict[str, SeenState]:
        """Present state of each tenant, by name."""
        backends = self._registry.backends.items()
        return {
            name: SeenState(one.state.value, one.reason, removed=one.leaves)
            for name, one in backends
        }

    def told(self, url: str, revision: int) -> TenantsTold:
        """All tenants, with facts about the server at `url` and the present `revision` of
        operators' wishes."""
        server = DeviceStatus(
            pid=os.getpid(),
            url=url,
            policy=self._config.policy.value,
            device=self.device,
            device_bytes=self._config.device.memory,
            routers=self._routers(),
            own_router=self._own_router(),
        )
        every = [self.status(name) for name in self.sections]
        return TenantsTold(
            form_version=FORM_VERSION, revision=revision, server=server, tenants=every
        )

    def look(self, revision: int) -> list[StateChange]:
        """Changes of states since the last look, also those of states that are over already."""
        every = self._registry.backends
        found = {
            name: seen._replace(passed=tuple(every[name].take_passed()))
            for name, seen in self.seen().items()
        }
        changes = self._journal.look(found, self._clock(), revision)
        self.recent += changes
        return changes

    def acted(self, name: str, act: OperatorAct, revision: int) -> StateChange:
        """Line for watchers about an act on a tenant."""
        return self._journal.acted(name, act, self._clock(), revision)

    async def moved(self) -> None:
        """Wait until a tenant's state changes; return immediately if one has changed since the last
        wait.
        """
        await self._registry.moved.wait()
        self._registry.moved.clear()

    def status(self, name: str) -> TenantStatus:
        """Status of a tenant; `since` and `reason` are those of the last look."""
        tenant = self.sections[name]
        backend, member = self._registry.backends[name], self.member(name)
        return TenantStatus(
            name=name,
            spec=declared(tenant),
            state=backend.state.value,
            since=self._journal.since(name),
            reason=self._journal.reason(name),
            weights=self._weights(name, member).value,
            device=self.device,
            held_bytes=self._held(name, member),
            share_bytes=self._share(tenant, member),
            asleep_bytes=self._asleep(member),
            running=member.running if member is not None else 0,
            waiting=len(member.waiting) + member.inside if member is not None else 0,
            ready_s=self._ready_s(name),
            yields_s=self._attendance.yields_s(name),
            adapters=[
                AdapterStatus(name=adapter, state=one.state.value, reason=one.reason)
                for adapter, one in backend.loading.told().items()
            ],
            restarts=backend.restarts,
            removed=backend.leaves,
            log=str(self._log(name)),
        )

    def member(self, name: str) -> RosterMember | None:
        """Tenant on the roster; None if it was refused at the server's start, or was removed."""
        return self._attendance.roster.members.get(name)

    def _weights(self, name: str, member: RosterMember | None) -> WeightsPlace:
        if member is not None:
            return member.life.place
        return WeightsPlace.HOST if self._registry.keeps(name) else WeightsPlace.DISK

    def _held(self, name: str, member: RosterMember | None) -> int:
        if (report := self._registry.reports.get(name)) is not None:
            return report.held_bytes
        return member.nbytes if member is not None else 0

    def _share(self, tenant: TenantSection, member: RosterMember | None) -> int | None:
        if member is not None:
            return member.own.awake
        share = tenant.share
        return None if share is None else int(self._config.device.memory * share / 100)

    def _asleep(self, member: RosterMember | None) -> int | None:
        sleeps = self._config.policy is Policy.MIRAGE
        return member.own.asleep if member is not None and sleeps else None

    def _ready_s(self, name: str) -> float | None:
        backend = self._registry.backends[name]
        if backend.state is LifeState.READY:
            return 0.0
        if self.member(name) is None:
            return backend.comeback.times.wait_s(time.monotonic())
        seconds = self._attendance.ready_s(name)
        return seconds if isfinite(seconds) else None


def declared(tenant: TenantSection) -> DeclaredTenant:
    """Tenant's section, without the keys that only its engine reads."""
    return DeclaredTenant(
        share_percent=tenant.share,
        aliases=tenant.aliases,
        adapters={name: str(folder) for name, folder in tenant.adapters.items()},
        priority=tenant.priority,
        start=tenant.start,
        keep_alive_s=tenant.keep_alive,
        stop_after_s=tenant.stop_after,
        pinned=tenant.pinned,
        max_waiting=tenant.max_waiting,
        max_wait_s=tenant.max_wait_s,
        keep_weights=tenant.keep_weights,
    )
