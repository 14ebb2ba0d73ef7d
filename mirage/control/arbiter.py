"""Arbiter: decides about memory and turns together; the control server calls it.

It joins the pure controller with the pure sharing, so that the holder of the turn is the active
tenant for the controller. Like both it has no clock and no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from mirage.config import Config
from mirage.control.controller import Command, Controller
from mirage.control.decision_counts import DecisionCounts
from mirage.control.draining import Draining
from mirage.control.growth_waits import GrowthWaits
from mirage.control.loans import LoanBook
from mirage.control.profiled import UNPROFILED, Profiled
from mirage.control.rules import Rules
from mirage.geometry import footprint
from mirage.protocol import Allotment, Hello, Refusal, Report, Turn
from scheduler.sharing import Sharing, make_sharing
from scheduler.tenants import Tenant


class Arbiter:
    """Decides memory and turns of one device. Events go in with their time in seconds; `decide`
    returns (tenant, message) pairs.

    Under spatial sharing no `Turn` is ever sent.
    """

    def __init__(
        self, controller: Controller, sharing: Sharing, *, temporal: bool, draining: Draining
    ) -> None:
        self.controller = controller
        self.sharing = sharing
        self.loans = LoanBook()
        self.growth, self.decisions = GrowthWaits(), DecisionCounts()
        self._unbooked = False
        """True if loans may have changed although no allotment was sent."""
        self._temporal = temporal
        self._draining = draining
        self._holders: frozenset[str] = frozenset()
        self._sleepers: set[str] = set()
        """Tenants whose engines were told to sleep."""
        self._ending: set[str] = set()
        """Tenants whose engines were sent SIGKILL."""
        self._granting: str | None = None
        """Tenant that was chosen for the turn and not told yet: its layers are about to come
        back."""
        self._grant_by = 0.0

    @classmethod
    def of(
        cls,
        config: Config,
        rules: Rules | None = None,
        profiled: Mapping[str, Profiled] = UNPROFILED,
    ) -> Self:
        """Return the arbiter of a configuration. `rules`, if given, replace the configured ones;
        `profiled` maps a tenant's name to the step times that are known before its engine has run a
        step."""
        temporal = config.sharing.mode == "temporal"
        turn_s = config.sharing.turn_s if temporal else None
        sharing = make_sharing([t.name for t in config.tenants], turn_s)
        draining = Draining(config.sharing.drain, config.sharing.turn_s)
        controller = Controller.of(config, rules, profiled)
        return cls(controller, sharing, temporal=temporal, draining=draining)

    def declares(self, tenant: Tenant, profiled: Profiled | None = None) -> None:
        """Add a tenant at the end of the order of turns, or change its rights.

        `profiled` has its step times until its engine has measured them. See `Controller.declares`
        for the time at which rights take effect.
        """
        self.controller.declares(tenant, profiled)
        self.sharing.enters(tenant.name)

    def removed(self, name: str) -> None:
        """Remove a tenant whose engine is lost, or that never had one, from memory, turns and
        counts."""
        self.sharing.leaves(name)
        self.controller.removed(name)
        for book in (self.loans, self.growth, self.decisions):
            book.forget(name)

    def joined(self, hello: Hello, now: float) -> None:
        """Note an engine's hello.

        Raise `DoesNotFitError` if the share of a new engine is too small for it. Raise
        `LedgerError` if the ledger cannot book the engine: its tenant is unknown or has an engine,
        or it holds more than is free, or, if another server had it, was granted more than is free.
        """
        self._unbooked = True
        if (holdings := hello.holdings) is None:
            shape, held_bytes = hello.shape, hello.held_bytes
            hollow = held_bytes < footprint(shape, 0, shape.min_extents)
            self.controller.joined(hello.tenant, shape, held_bytes, now, lean=hollow)
            return
        self.controller.adopted(hello.tenant, hello.shape, holdings, now)
        if holdings.allotment.asleep:
            self._sleepers.add(hello.tenant)
        self._heard(hello.tenant, holdings.report, now)

    def reported(self, tenant: str, report: Report, now: float) -> None:
        """Note an engine's report. Raise `LedgerError` if the engine breaks the protocol."""
        self.controller.reported(tenant, report, now)
        self._heard(tenant, report, now)

    def _heard(self, tenant: str, report: Report, now: float) -> None:
        """Pass a report on to loans, growth times and turns. The report of a sleeping tenant can
        only end its turn; that of an engine that was sent SIGKILL is ignored. The controller has
        booked the reported memory already."""
        if tenant in self._ending:
            return
        if tenant in self._sleepers:
            self._dozes(tenant, report, now)
            return
        self.loans.reported(tenant, report, self.controller.own_blocks(tenant), now)
        self.growth.reported(tenant, report, now)
        self.sharing.has_work(tenant, report.running + report.waiting > 0, now)
        self.sharing.holds(tenant, report.holds_turn, now)

    def _dozes(self, tenant: str, report: Report, now: float) -> None:
        """Take the turn away from a sleeping tenant if its report shows that it does not step any
        more."""
        if report.asleep and not (self._temporal and report.holds_turn):
            self._passes_on(tenant, now)

    def _passes_on(self, tenant: str, now: float) -> None:
        """Take the turn away from `tenant`, if it has it, because it does not step any more.

        The next `decide` may give the turn to another tenant.
        """
        self.sharing.lost(tenant, now)
        self._holders -= {tenant}

    def sleeps(self, tenant: str, now: float) -> list[tuple[str, Allotment | Refusal | Turn]]:
        """Put a tenant that joined to sleep; return the messages for its engine."""
        self._sleepers.add(tenant)
        self._rests(tenant)
        if self._granting == tenant:
            self._granting = None
        self.sharing.has_work(tenant, False, now)
        told: list[tuple[str, Allotment | Refusal | Turn]] = []
        if self._temporal:
            told.append((tenant, Turn(False)))
        self.decisions.slept(tenant)
        return [*told, (tenant, self.controller.sleeps(tenant))]

    def wakes(self, tenant: str, now: float) -> None:
        """Wake a tenant that was told to sleep: it takes part in plans and turns from now on."""
        self._sleepers.discard(tenant)
        self.controller.wakes(tenant, now)

    def goes_on(self, tenant: str, now: float) -> None:
        """Wake an adopted engine that the previous server had told to sleep, and that has not
        fallen asleep yet; the caller leaves out those that are asleep. Nothing happens to an engine
        that was not told to sleep."""
        if tenant in self._sleepers:
            self.wakes(tenant, now)

    def ends(self, tenant: str, now: float) -> None:
        """Note that an engine was sent SIGKILL: if it had the turn, another tenant gets it.

        Its memory is lent only once it is `lost`, because a process that hangs in a call of the
        driver may end late or never.
        """
        self._ending.add(tenant)
        self._passes_on(tenant, now)

    def lost(self, tenant: str, now: float) -> None:
        """Note that an engine is gone: its memory is free, and another tenant gets its turn."""
        self.controller.lost(tenant, now)
        self._rests(tenant)
        self._sleepers.discard(tenant)
        self._ending.discard(tenant)
        self._passes_on(tenant, now)

    def decide(self, now: float) -> list[tuple[str, Allotment | Refusal | Turn]]:
        """Return the messages to send now, in order: turns that end, memory, turns that begin.

        A turn begins once the others have made room for its holder's layers, or after the
        controller's `patience_s` seconds. If the holder were told before, its first step would
        stream all layers, which takes longer than waiting.
        """
        ended = self._turns(now) if self._temporal else []
        commands = self.controller.decide(now)
        self._book(commands, now)
        memory = [m for m in commands if not self._is_early(m)]
        self.decisions.told(memory, self.controller.why)
        return [*ended, *memory, *self._grant(now)]

    def next_deadline(self, now: float) -> float | None:
        """Return the time in seconds at which `decide` may have more to say without another event;
        None for never."""
        times = (
            self.sharing.next_deadline(),
            self.controller.next_deadline(now),
            self._draining.until,
            self._grant_by if self._granting else None,
        )
        return min([t for t in times if t is not None], default=None)

    def _book(self, commands: list[Command], now: float) -> None:
        """Record the loans that the present plan makes, if they may have changed."""
        if self._unbooked or any(isinstance(one.message, Allotment) for one in commands):
            self.loans.planned(self.controller.lent(now), now)
            self._unbooked = False

    def _rests(self, tenant: str) -> None:
        """End the loans and the open demand for growth of a tenant that sleeps or is lost: it
        neither lends nor borrows any more."""
        self.loans.lost(tenant)
        self.growth.rests(tenant)
        self._unbooked = True

    def _turns(self, now: float) -> list[tuple[str, Allotment | Refusal | Turn]]:
        before, self._holders = self._holders, self.sharing.decide(now)
        for name in self._holders - before:
            self.controller.turn(name, now)
            self.sharing.prolongs(self.controller.way_back_s(name, now))
            self._granting, self._grant_by = name, now + self.controller.patience_s
        return [
            *[(name, self._revoked(name, now)) for name in sorted(before - self._holders)],
            *[(name, self._stopped(name, now)) for name in self._drained_enough(now)],
        ]

    def _revoked(self, name: str, now: float) -> Turn:
        self.controller.revoked(now)
        if self._draining.begins(name, now, costly=self._costly(now)):
            return Turn(False, drain=True)
        return self._stopped(name, now)

    def _stopped(self, name: str, now: float) -> Turn:
        return Turn(False, spill_bytes=self.controller.spill_bytes(name, now))

    def _is_early(self, command: Command) -> bool:
        """True for a refusal to the tenant that is about to get the turn. It is not sent, because
        the tenant would ask again immediately."""
        return command.tenant == self._granting and isinstance(command.message, Refusal)

    def _grant(self, now: float) -> list[tuple[str, Allotment | Refusal | Turn]]:
        name = self._granting
        if name is None:
            return []
        if name in self._holders and now < self._grant_by and self.controller.restores(name, now):
            return []
        self._granting = None
        return [(name, Turn(True))] if name in self._holders else []

    def _drained_enough(self, now: float) -> list[str]:
        """Return the tenant that drains, in a list, if it shall stop now; else an empty list."""
        name = self._draining.name
        if name is None:
            return []
        if self.sharing.leaving != name:
            self._draining.over()
            return []
        return [name] if self._draining.ends(now, costly=self._costly(now)) else []

    def _costly(self, now: float) -> bool:
        """True if the next holder of the turn would stream more layers than its decode hides, if
        the present one stopped now."""
        upcoming = self.sharing.upcoming()
        if upcoming in (None, self.sharing.leaving):
            return False
        return not self.controller.covers(upcoming, now)
