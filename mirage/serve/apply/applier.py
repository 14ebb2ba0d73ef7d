"""Configurations applied to one device while it serves, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from mirage.config import Config, HttpSection, TenantSection
from mirage.control.profiled import Profiled
from mirage.control.roster.fitting import Fitting, fitting
from mirage.control.roster.states import GONE, LifeState
from mirage.errors import CommandFailed
from mirage.serve.adapting import adapters
from mirage.serve.apply import said
from mirage.serve.apply.difference import ConfigDifference, difference
from mirage.serve.apply.forms import ABSENT, ApplyTold, ChangeTold, FittingTold
from mirage.serve.apply.recorded import config_record, found_record
from mirage.serve.apply.revision import Revision
from mirage.serve.apply.source import ConfigSource, Written
from mirage.serve.apply.state_file import KeptState, StateFile
from mirage.serve.apply.what_if import ServedConfig, known_engines, what_if
from mirage.serve.clients.certificate import check_tls
from mirage.serve.device.changes import DomainChange
from mirage.serve.device.domain import Domain
from mirage.serve.fit.fit import Fit
from mirage.serve.launch.preflight import Preflight, look_at, refusal, speeds
from mirage.serve.launch.vllm_facts import Probe
from mirage.serve.models.step_times import profiled
from mirage.serve.roster.declared import bytes_of, roster_of
from mirage.serve.whatif.forms import WhatIfFacts


class Origin(NamedTuple):
    """Source of a configuration, and the file that keeps configurations applied later."""

    source: ConfigSource
    written: Written
    sha256: str
    """Hash of the server's configuration file at this start; empty if it has no file."""
    state: StateFile


class Foreseen(NamedTuple):
    """A configuration that is about to be applied, and what would follow from that."""

    change: ConfigDifference
    declared: Config
    domain: DomainChange
    fits: Mapping[str, Fit]
    """Memory of each tenant of the configuration at its start (`Fit`)."""


class ConfigApplier:
    """Applies configurations to `domain`, which serves `declared` at first."""

    def __init__(
        self,
        origin: Origin,
        declared: Config,
        found: Preflight,
        domain: Domain,
        probe: Probe,
    ) -> None:
        self.source, self.wanted, self.revision = origin.source, origin.written, Revision()
        self._declared, self._fits = _rostered(declared), dict(found.fits)
        self._domain, self._probe = domain, probe
        self._kept = KeptState(origin.state, self.source.path, origin.written, origin.sha256)
        self._lock = asyncio.Lock()
        self._having: asyncio.Future[None] | None = None
        """Task that makes the present change, or made the last one."""

    @property
    def http(self) -> HttpSection:
        """Limits of clients that are in force now."""
        return self._declared.http

    async def apply(
        self,
        edit: Callable[[Written], Written],
        *,
        fresh: Callable[[], None] = lambda: None,
        drain_s: float | None = None,
        dry_run: bool = False,
        facts: bool = False,
    ) -> ApplyTold:
        """Apply the configuration that `edit` makes of the present one. With `dry_run` nothing
        changes, and only the effects are returned.

        `fresh` raises if the present configuration is no longer the one that the caller knows.
        Running requests of tenants that stop have `drain_s` seconds, None for the roster's own
        time. With `facts` a dry run also returns what a simulation of both configurations needs.
        Raises `ConfigError` for a configuration that cannot be served, `CommandFailed` for one that
        needs another start of the server, or if the state file cannot be written; then nothing has
        changed.
        """
        async with self._lock:
            if self._having is not None:
                await asyncio.wait([self._having])
            fresh()
            wanted = edit(self.wanted)
            foreseen = await asyncio.to_thread(self._foresee, wanted, drain_s)
            fresh()
            change = foreseen.change
            outlook = self._outlook(foreseen)
            awaited = self._awaited(foreseen, outlook)
            asks = dry_run and facts and not change.is_none
            simulable = await self._what_if(foreseen) if asks else None
            if not dry_run:  # to its end, even if the client goes away
                self._having = asyncio.ensure_future(self._have(wanted, foreseen))
                await asyncio.shield(self._having)
            lines = said.lines(change, outlook, dry_run=dry_run, keeps=self._kept.keeps)
            lines += [] if dry_run else self._not_loaded(change.adapts)
            return ApplyTold(
                applied=not dry_run and not change.is_none,
                revision=self.revision.number,
                added=change.added,
                changed=tuple(ChangeTold(**one._asdict()) for one in change.changed),
                removed=change.removed,
                roster=change.roster,
                http=change.http,
                fitting=tuple(_told(one) for one in outlook),
                awaited=awaited,
                lines=tuple(lines),
                what_if=simulable,
            )

    async def _have(self, wanted: Written, foreseen: Foreseen) -> None:
        """Write the configuration to the state file, then apply it."""
        change = foreseen.change
        await asyncio.to_thread(self._kept.keep, wanted)
        self.wanted, self._declared = wanted, foreseen.declared
        if change.is_none:
            return
        await self._domain.room_for(change.added)
        self._fits = dict(foreseen.fits)
        self.revision.grows()
        self._domain.apply(foreseen.domain)
        if change.http:
            self._domain.desk.limits(foreseen.declared.http)
        self._record()
        await self._domain.adapted(change.adapts)

    def _not_loaded(self, names: Iterable[str]) -> list[str]:
        """Line for each adapter of these tenants that could not be loaded."""
        books = {name: self._domain.registry.backends[name].loading for name in names}
        return [
            f"{name}: adapter {adapter!r} is not loaded: {reason}"
            for name, book in books.items()
            for adapter, reason in book.failed.items()
        ]

    def _record(self) -> None:
        """Write what is served into the run's record, for a server that takes over.

        Tenants that were refused at the start are noted as such.
        """
        config, backends = self._domain.config, self._domain.registry.backends
        adapters = {name: dict(one.adapters) for name, one in backends.items()}
        found = Preflight(self._fits, dict(self._domain.tenants.refused), adapters, config)
        self._domain.book.declares(config_record(self.source, self.wanted), found_record(found))

    # -- what would follow --------------------------------------------------------------

    def _foresee(self, wanted: Written, drain_s: float | None) -> Foreseen:
        """Find out what would follow from a configuration.

        This takes some seconds if vLLM has to look at models. Raises `ConfigError` for a
        configuration that cannot be served, and `CommandFailed` for one that needs another start of
        the server.
        """
        declared = self.source.config(wanted)
        declared = _rostered(declared)
        change = difference(self._declared, declared)
        if change.fixed:
            raise CommandFailed(said.fixed(change.fixed))
        if change.http:
            check_tls(declared.http)
        found = self._look_at(declared, change)
        domain = self._domain_change(declared, change, found, drain_s)
        names = {tenant.name for tenant in declared.tenants}
        fits = {n: fit for n, fit in (self._fits | found.fits).items() if n in names}
        roster_of(domain.config, fits, speeds(declared.device).link, 0.0)
        return Foreseen(change, declared, domain, fits)

    def _look_at(self, declared: Config, change: ConfigDifference) -> Preflight:
        """Checks, with vLLM's answers, of the tenants that need a new engine; also tenants whose
        adapters change are checked. Raises `ConfigError` if a tenant cannot be served.
        """
        unknown = [one.name for one in change.changed if one.name not in self._fits]
        anew = {*change.needs_engines, *unknown}
        names = {*anew, *change.adapts}
        nothing = Preflight({}, {}, {}, declared)
        if not names and not change.renames:
            return nothing
        named, refused = adapters.check(declared)
        if refused:
            raise refusal(refused)
        if not names:
            return nothing
        some = [tenant for tenant in declared.tenants if tenant.name in names]
        device = declared.device.model_copy(update={"page": self._page or declared.device.page})
        part = declared.model_copy(update={"tenants": some, "device": device})
        found = look_at(part, self._probe)
        if found.refused:
            raise refusal(found.refused)
        fits = {name: found.fits[name] for name in anew}
        return found._replace(fits=fits, adapters={name: named[name] for name in anew})

    @property
    def _page(self) -> int | None:
        """Bytes of a page, which is the same for all engines of a device; None if there is no
        tenant."""
        return next((fit.page.bytes for fit in self._fits.values()), None)

    def _domain_change(
        self,
        declared: Config,
        change: ConfigDifference,
        found: Preflight,
        drain_s: float | None,
    ) -> DomainChange:
        every = [self._resolved(tenant, found) for tenant in declared.tenants]
        config = declared.model_copy(update={"tenants": every})
        anew = {*change.added, *(one.name for one in change.changed)}
        some = [tenant for tenant in every if tenant.name in found.fits]
        return DomainChange(
            config,
            change.removed,
            tuple(tenant for tenant in every if tenant.name in anew),
            found.fits,
            found.adapters,
            _profiled(config, some),
            drain_s,
        )

    def _resolved(self, tenant: TenantSection, found: Preflight) -> TenantSection:
        """The tenant, with a number as its share where the configuration says ``auto``."""
        if tenant.share is not None:
            return tenant
        known = found.config if tenant.name in found.fits else self._domain.config
        return tenant.model_copy(update={"share": known.tenant(tenant.name).share})

    def _outlook(self, foreseen: Foreseen) -> list[Fitting]:
        """Fitting of each new tenant, and of each awake tenant whose engine starts anew: the bytes
        that its start takes, and the tenants that would yield now."""
        change, config = foreseen.change, foreseen.domain.config
        coming = {
            name: bytes_of(config, config.tenant(name), foreseen.fits[name])
            for name in change.needs_engines
            if name in change.added or self._is_awake(name)
        }
        return fitting(self._domain.attendance.roster, coming, change.removed, time.monotonic())

    async def _what_if(self, foreseen: Foreseen) -> WhatIfFacts:
        """Facts for a simulation of both configurations, made in a thread."""
        registry, roster = self._domain.registry, self._domain.attendance.roster
        now = ServedConfig(self._domain.config, self._fits)
        after = ServedConfig(foreseen.domain.config, foreseen.fits)
        known, past = known_engines(registry, roster), registry.past.chunks
        return await asyncio.to_thread(what_if, now, after, foreseen.change, known, past)

    def _is_awake(self, name: str) -> bool:
        state = self._domain.registry.backends[name].state
        return state not in GONE and state is not LifeState.SLEEPING

    def _awaited(self, foreseen: Foreseen, outlook: list[Fitting]) -> dict[str, str]:
        """State that each tenant will settle in, for a client that waits for the effects; tenants
        that need not be waited for are left out."""
        change, backends = foreseen.change, self._domain.registry.backends
        awaited = dict.fromkeys(change.removed, ABSENT)
        for one in change.changed:
            if one.restart and backends[one.name].state is LifeState.SLEEPING:
                awaited[one.name] = LifeState.STOPPED.value
        for place in outlook:
            waits = place.name in change.added and _waits(foreseen.declared.tenant(place.name))
            if place.comes and not waits:
                awaited[place.name] = LifeState.READY.value
        return awaited


def _waits(tenant: TenantSection) -> bool:
    return tenant.start == "on_request"


def _rostered(config: Config) -> Config:
    """Copy of a configuration whose tenants may sleep and wake.

    In a server that runs they may always, also if the configuration has no section `roster`.
    """
    return config.model_copy(update={"roster": config.roster})


def _profiled(config: Config, tenants: list[TenantSection]) -> dict[str, Profiled]:
    return profiled(config.model_copy(update={"tenants": tenants})) if tenants else {}


def _told(one: Fitting) -> FittingTold:
    return FittingTold(
        name=one.name,
        bytes=one.nbytes,
        spare_bytes=one.spare,
        yields=one.yields,
        comes=one.comes,
    )
