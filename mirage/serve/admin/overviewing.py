"""Route of an overview: each tenant's memory, rates and latencies, and the last decisions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import msgspec
from aiohttp import web

from mirage.control.loan_changes import LoanChange
from mirage.control.loans import LoanBook
from mirage.serve.admin.forms import StateChange, TenantStatus
from mirage.serve.admin.shown import until
from mirage.serve.admin.status import TenantsView
from mirage.serve.overview.decisions import loan_decisions
from mirage.serve.overview.forms import (
    Decision,
    OverviewTenant,
    OverviewTold,
)
from mirage.serve.overview.latencies import NONE_ENDED, latencies
from mirage.serve.overview.memory import by_role
from mirage.serve.registry.registry import Registry
from mirage.serve.whatif.past import PastChunk

MOST_DECISIONS = 15
"""Most decisions of each kind in an overview: changes of states, and changes of loans."""


NEWEST = attrgetter("t")


class Overviewing:
    """Maker of overviews of one device.

    `clock` returns seconds since 1970, `running` seconds of a monotonic clock.
    """

    def __init__(
        self,
        view: TenantsView,
        registry: Registry,
        loans: LoanBook,
        clock: Callable[[], float] = time.time,
        running: Callable[[], float] = time.monotonic,
    ) -> None:
        self._view, self._registry, self._loans = view, registry, loans
        self._clock, self._running = clock, running

    def routes(self) -> list[web.RouteDef]:
        """Routes of `mirage top`."""
        return [web.get("/overview", self._overview)]

    async def _overview(self, request: web.Request) -> web.Response:
        return web.Response(body=await self.encoded(), content_type="application/json")

    async def encoded(self, *, reasons: bool = True) -> bytes:
        """An `OverviewTold` as JSON. `reasons` adds lines of logs, which not everybody may see.

        Data that changes is copied first, without a pause; the rest is computed in a thread.
        """
        found = self._found(reasons=reasons)
        return await asyncio.to_thread(lambda: msgspec.json.encode(told(found)))

    def _found(self, *, reasons: bool) -> OverviewFound:
        now, running = self._clock(), self._running()
        device = self._registry.sources.device(reasons=reasons)
        return OverviewFound(
            now=now,
            running=running,
            reasons=reasons,
            blank=OverviewTold(
                t=now,
                policy=self._registry.policy.value,
                device=self._view.device,
                device_bytes=self._registry.device_bytes,
                status=device["status"],
                reason=device.get("reason", ""),
                tenants=[],
                decisions=[],
            ),
            tenants=[self._tenant(name, reasons=reasons) for name in self._view.sections],
            states=list(self._view.recent),
            loans=list(self._loans.changes),
            past=self._registry.past.chunks,
        )

    def _tenant(self, name: str, *, reasons: bool) -> OverviewTenant:
        """A tenant of the overview, without latencies; without `reasons` its `reason` is empty."""
        one = self._view.status(name)
        report, shape = self._registry.reports.get(name), self._registry.shapes.get(name)
        queued = report.waiting if report is not None else 0
        return OverviewTenant(
            name=name,
            state=one.state,
            since=one.since,
            reason=self._registry.backends[name].reason if reasons else "",
            next=until(_unexplained(one)),
            memory=by_role(one.held_bytes, report, shape),
            share_bytes=one.share_bytes,
            layers=shape.layers if shape is not None else 0,
            layers_remapped=report.layers_remapped if report is not None else 0,
            running=max(0, one.running - queued),
            waiting=one.waiting + queued,
            rates=self._registry.pace.rates(name) if report is not None else None,
            latencies=NONE_ENDED,
        )


class OverviewFound(NamedTuple):
    """Facts about the tenants, copied for one overview."""

    now: float
    running: float
    reasons: bool
    blank: OverviewTold
    """The overview without tenants and decisions."""
    tenants: list[OverviewTenant]
    """Tenants without their latencies."""
    states: Sequence[StateChange]
    loans: Sequence[LoanChange]
    past: Sequence[PastChunk]


def told(found: OverviewFound) -> OverviewTold:
    """Overview made of the copied data."""
    times = latencies(found.past, found.running)
    tenants = [
        msgspec.structs.replace(one, latencies=times.get(one.name, NONE_ENDED))
        for one in found.tenants
    ]
    states = [state_decision(one, reasons=found.reasons) for one in found.states]
    loans = loan_decisions(found.loans, found.now - found.running)
    decisions = decided(states, loans)
    return msgspec.structs.replace(found.blank, tenants=tenants, decisions=decisions)


def decided(*kinds: Iterable[Decision]) -> list[Decision]:
    """Last `MOST_DECISIONS` of each kind, so that no kind displaces another; the newest first."""
    some = (sorted(each, key=NEWEST, reverse=True)[:MOST_DECISIONS] for each in kinds)
    return sorted(chain.from_iterable(some), key=NEWEST, reverse=True)


def state_decision(change: StateChange, *, reasons: bool) -> Decision:
    """Decision that tells a change of a tenant's state in words; without `reasons` its reason is
    empty."""
    if change.before == change.state:
        text = f"{change.tenant} is {'removed' if change.removed else 'declared again'}"
    else:
        text = f"{change.tenant} is {change.state}, and was {change.before}"
    return Decision(change.t, change.tenant, text, change.reason if reasons else "")


def _unexplained(one: TenantStatus) -> TenantStatus:
    return msgspec.structs.replace(one, reason="")
