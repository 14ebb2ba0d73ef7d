"""The table by which the router serves, as plain data that the supervisor pushes. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from mirage.control.roster.states import LifeState
from mirage.serve.ends.comeback import ComebackTimes
from mirage.serve.rates import NO_BOUNDS, NO_LIMITS, BodyBounds, RateLimits

REACHABLE = frozenset({LifeState.READY, LifeState.DRAINING, LifeState.SLEEPING, LifeState.WAKING})
"""States in which there is an engine, in whose queue a request that was admitted may wait."""


class RoutedRow(msgspec.Struct, frozen=True):
    """A tenant's row in the table that the supervisor pushes to the router."""

    name: str
    socket: str
    """Path at which its engine's server listens."""
    max_model_len: int
    state: LifeState = LifeState.STARTING
    life: int = 0
    """Number of its engine; requests of an earlier one have ended with it."""
    at_once: bool = True
    """True if requests go on without asking the supervisor."""
    adopted: bool = False
    """True if its engine was another supervisor's: its requests go on."""
    well: bool = False
    """True if it serves, or will when it is asked."""
    reason: str = ""
    """Reason of its state, which is a line of a log; empty if there is none."""
    adapters: dict[str, str] = {}
    """LoRA adapters that are served as models of their own: where each lies, by its name."""
    known: dict[str, str] = {}
    """Names that its engine has for adapters, where they are others."""
    aliases: tuple[str, ...] = ()
    limits: RateLimits = NO_LIMITS
    bounds: BodyBounds = NO_BOUNDS
    comeback: ComebackTimes = ComebackTimes()
    leaves: bool = False
    """True if it was removed, and has not ended yet: no new request finds it."""
    wake_s: float = 0.0
    """Seconds that it takes to wake."""

    @property
    def names(self) -> tuple[str, ...]:
        """All names that requests may use."""
        return (self.name, *self.aliases, *self.adapters)

    def known_as(self, model: str) -> str:
        """Name by which its engine knows `model`, one of `names`."""
        return self.name if model in self.aliases else self.known.get(model, model)

    def comes_s(self, now: float) -> float:
        """Seconds from a request until the tenant is ready, as past wakes and starts predict."""
        if self.state is LifeState.READY and self.at_once:
            return 0.0
        if self.state in (LifeState.SLEEPING, LifeState.WAKING):
            return self.wake_s
        return self.wait_s(now) or self.comeback.start_s

    def wait_s(self, now: float) -> float | None:
        """Seconds after which a request that is not served now may be; None if that is not so."""
        wait_s = self.comeback.wait_s(now)
        if wait_s is None and self.state is not LifeState.FAILED:
            return self.comeback.start_s  # it ends at the moment: a start follows
        return wait_s


class RouterTable(msgspec.Struct, frozen=True):
    """All tenants, and the health of what they share."""

    tenants: tuple[RoutedRow, ...] = ()
    device: dict[str, Any] = msgspec.field(default_factory=lambda: {"status": "ok"})
    """The device, with the reason of its failure."""
    below: dict[str, Any] = {}
    """Memory below the device."""

    def health(self, *, reasons: bool = True) -> dict[str, Any]:
        """The body of ``/health``; `reasons` are lines of logs, and not for everybody."""
        ready = sum(row.well for row in self.tenants)
        status = "ok" if ready == len(self.tenants) else "degraded" if ready else "down"
        known = {row.name: row.reason for row in self.tenants if row.reason and reasons}
        device = self.device if reasons else {"status": self.device["status"]}
        return (
            {"status": status, "tenants": {row.name: row.state for row in self.tenants}}
            | {"device": device}
            | ({"reasons": known} if known else {})
            | self.below
        )
