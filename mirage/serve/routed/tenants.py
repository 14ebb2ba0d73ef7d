"""Tenants on the router's side: their rows in the table, and facts that the router learns."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from mirage.config import HANG_S
from mirage.control.routes.pace import ReplicaPace
from mirage.control.routes.quarantine import ReplicaQuarantine
from mirage.serve.ends.ending import Ending
from mirage.serve.ends.strikes import MOST_STRIKES, STRUCK_S, KeyStrikes
from mirage.serve.ends.suspects import Blame, RequestFacts, SuspectRefusal, Suspects
from mirage.serve.health.awaited_answers import AwaitedAnswers
from mirage.serve.routed.messages import BlameMemory, TenantCount
from mirage.serve.routed.table import RoutedRow, RouterTable
from mirage.serve.whatif.past import UntoldRequests

log = logging.getLogger(__name__)


@dataclass(eq=False)
class RoutedTenant:
    """Tenant on the router's side. `row` is replaced with each table. Times are by
    `time.monotonic`."""

    row: RoutedRow
    device: str = ""
    """Name of the tenant's device; empty if there is only one."""
    quarantine: ReplicaQuarantine | None = None
    """Bodies that may have ended an engine of any replica; None if there is only one device."""
    pace: ReplicaPace = field(default_factory=ReplicaPace)
    suspects: Suspects = field(default_factory=Suspects)
    strikes: KeyStrikes = field(default_factory=KeyStrikes)
    answers: AwaitedAnswers = field(default_factory=AwaitedAnswers)
    end: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the present engine has ended and the cause is known; then replaced by a new
    event.
    """
    engine: int = 0
    """This router's own number of the present engine. Unlike `RoutedRow.life` it goes on growing
    when another supervisor takes over.
    """
    running: int = 0
    """Number of requests that run at the present engine and that the supervisor does not know: this
    router passed them on without asking, or the supervisor that admitted them has gone.
    """
    passed: int = 0
    """Number of such requests (`running`) since this router's start, ended ones included."""
    untold: UntoldRequests = field(default_factory=UntoldRequests)
    """Lengths and times of ended requests that the supervisor has yet to be told."""
    in_flight: int = 0
    """Requests to this tenant that wait or run."""

    @property
    def name(self) -> str:
        return self.row.name

    def refuses(self, body_digest: str, now: float) -> SuspectRefusal | None:
        """Refusal of a request that must not be sent to the engine now; None if it may be sent."""
        if self.quarantine is not None:
            hold = self.quarantine.holds(self.name, body_digest, now)
            if hold is not None:
                return SuspectRefusal(hold.wait_s, hold.known)
        return self.suspects.refuses(body_digest, now)

    def begins(self, request: RequestFacts, now: float) -> int:
        """Note that a request is sent to the engine; returns its number for `ends`."""
        if self.quarantine is not None:
            if self.quarantine.suspects(self.name, request.body_digest, now):
                self.suspects.suspects(request.body_digest, now)
            self.quarantine.begins(self.name, request.body_digest)
            self.pace.begins(now)
        return self.suspects.begins(request)

    def breaks(self, body_digest: str, now: float) -> None:
        """Note that the engine broke off a request that it had read, for a reason not known yet."""
        if self.quarantine is not None:
            self.quarantine.breaks(self.name, [body_digest], now)

    def ends(self, number: int, body_digest: str, now: float, *, well: bool) -> None:
        """Note that request `number` has ended; `well` is true if it was answered without an
        error.
        """
        self.suspects.ends(number, now, well=well)
        if self.quarantine is not None:
            self.quarantine.ends(self.name, body_digest, now, well=well)
            self.pace.ends(now, well=well)

    def ended(self, ending: Ending, now: float) -> Blame:
        """Note that the engine has ended; returns the requests that ran, and the culprit if known.

        `now` is by `time.monotonic`. Requests that wait on `end` may look up their blame in
        `suspects` afterwards.
        """
        blame = self.suspects.engine_ended(ending, now)
        if self.quarantine is not None:
            there, known = {one.body_digest for one in blame.there}, blame.culprit is not None
            self.quarantine.judged(self.name, there, blame.bodies, now, known=known)
        key = blame.culprit.key if blame.culprit is not None else ""
        if key and self.strikes.strike(key, now):
            log.warning(
                "key %r ended the engine of %r %d times: it is refused there for %.0f s",
                *(key, self.name, MOST_STRIKES, STRUCK_S),
            )
        self.end.set()
        self.end = asyncio.Event()
        return blame

    @property
    def memory(self) -> BlameMemory:
        """Evidence against requests and keys that may have ended the engine, for the router that
        follows this one."""
        return BlameMemory(*self.suspects.remembered, *self.strikes.remembered)

    @property
    def count(self) -> TenantCount:
        """Message to the supervisor with `running` and `passed`."""
        return TenantCount(self.name, self.row.life, self.running, self.passed)


class RoutedTenants:
    """All tenants of the table in use."""

    def __init__(self, device: str = "", quarantine: ReplicaQuarantine | None = None) -> None:
        """`device` is the device's name among several, which share the `quarantine`."""
        self.device, self._hang_s, self._quarantine = device, HANG_S, quarantine
        self.table = RouterTable()
        self._tenants: dict[str, RoutedTenant] = {}
        self._names: dict[str, RoutedTenant] = {}
        """Tenants that were not removed, by all names that requests may use."""
        self._memory: dict[str, BlameMemory] = {}
        """Evidence of an earlier router about tenants that are not in a table yet."""

    def begin(self, hang_s: float, memory: dict[str, BlameMemory]) -> None:
        """Use the evidence of an earlier router about requests that ended engines; `hang_s` is the
        number of seconds after which a hang is noticed."""
        self._hang_s, self._memory = hang_s, memory

    def holds(self, table: RouterTable, *, first: bool = False) -> None:
        """Replace the table; `first` is true for the first table of a connection.

        A tenant whose engine's number has changed begins to count running requests anew, except in
        a first table for an engine that was taken over.
        """
        self.table = table
        before, self._tenants = self._tenants, {}
        for row in table.tenants:
            one = before.get(row.name) or self._made(row)
            goes_on = one.row.life == row.life or (first and row.adopted)
            if not goes_on:
                one.engine, one.running = one.engine + 1, 0
            one.row = row
            self._tenants[row.name] = one
        self._names = {
            name: one for one in self.served for name in (*one.row.aliases, *one.row.adapters)
        } | {one.name: one for one in self.served}

    def _made(self, row: RoutedRow) -> RoutedTenant:
        suspects = Suspects(self._hang_s)
        one = RoutedTenant(row, self.device, self._quarantine, suspects=suspects)
        if (memory := self._memory.pop(row.name, None)) is not None:
            one.suspects.remember(memory.culprits, memory.suspected)
            one.strikes.remember(memory.strikes, memory.struck)
            if self._quarantine is not None:
                self._quarantine.remember(row.name, memory.culprits, memory.suspected)
        return one

    def __iter__(self) -> Iterator[RoutedTenant]:
        return iter(self._tenants.values())

    def __contains__(self, name: str) -> bool:
        return name in self._tenants

    def __getitem__(self, name: str) -> RoutedTenant:
        return self._tenants[name]

    def serving(self, model: str) -> RoutedTenant | None:
        """Tenant that has `model` among its names and was not removed; None if there is none."""
        return self._names.get(model)

    @property
    def served(self) -> list[RoutedTenant]:
        """Tenants that were not removed."""
        return [one for one in self if not one.row.leaves]

    @property
    def models(self) -> list[str]:
        """All names that requests may use: tenants' own, aliases, and adapters."""
        return [name for one in self.served for name in one.row.names]
